"""One DP/TP episode: simulator, encoder and reward. The scalar and the batched environment are made of these."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.fields import check_not_negative, check_positive
from serving_gym.envs.dp_tp.action import action_mask, decode_action, settled_mask
from serving_gym.envs.dp_tp.observation import ENGINE_FEATURES, Encoder, ObservationScales
from serving_gym.envs.interface.backend import (
    SLO,
    TOTALS,
    ClusterSpec,
    ClusterState,
    Command,
    Fault,
    Redeploy,
    promises,
)
from serving_gym.envs.interface.layout import changed_regions, groups_of
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.reward import Outcome, RewardMeter
from serving_gym.envs.simulator.cluster import Cluster
from serving_gym.envs.simulator.kernel.state import PS_PER_S
from serving_gym.envs.simulator.scheduling import to_ps
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec

DEFAULT_SLOS = {
    "standard": SLO(ttft_s=0.5, tpot_s=0.02),
    "normal": SLO(ttft_s=0.5, tpot_s=0.02),
    "priority": SLO(ttft_s=0.2, tpot_s=0.01),
    "long": SLO(ttft_s=20.0, tpot_s=0.02),
}


@dataclass(frozen=True)
class DPTPConfig:
    """What a DP/TP environment is made of.

    Attributes:
        workload: Requests of an episode.
        cluster: The node.
        slos: Latency promise by request class.
        objective: Weights of the reward terms.
        scales: Scales of the observation.
        decision_interval_s: Time between decisions, seconds.
        decide_on: Classes whose arrival asks for a decision at once.
        drain_limit_s: How long after the last arrival an episode may go on before it is cut off, seconds.
        faults_per_gpu_hour: Rate of GPU failures.
        split: Part of the workload that episodes are drawn from; None: the workload's own.
    """

    workload: WorkloadSpec = field(default_factory=lambda: WorkloadSpec(name="flying_bursty"))
    cluster: ClusterSpec = field(default_factory=ClusterSpec)
    slos: dict[str, SLO] = field(default_factory=lambda: dict(DEFAULT_SLOS))
    objective: Objective = field(default_factory=Objective)
    scales: ObservationScales = field(default_factory=ObservationScales)
    decision_interval_s: float = 1.0
    decide_on: tuple[str, ...] = ()
    drain_limit_s: float = 300.0
    faults_per_gpu_hour: float = 0.0
    split: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cluster, ClusterSpec):
            raise ValueError("dp_tp decides about a node: choose a cluster without groups of replicas")
        check_positive(self, "decision_interval_s", "drain_limit_s")
        if self.workload.num_clients:
            raise ValueError(
                "dp_tp needs requests that arrive when the workload says; workload.num_clients must be 0"
            )
        num_base = self.cluster.num_base
        if num_base < 1 or num_base & (num_base - 1) or self.cluster.max_group not in (None, num_base):
            raise ValueError(
                f"dp_tp needs a power of two of base engines that may all be merged (cluster.max_group null); "
                f"got {num_base} with cluster.max_group {self.cluster.max_group}"
            )
        check_not_negative(self, "faults_per_gpu_hour")


class DPTPCore:
    """Runs episodes of one configuration.

    Args:
        config: What the environment is made of.

    Raises:
        ValueError: Something in it is unknown or impossible.
    """

    def __init__(self, config: DPTPConfig) -> None:
        self.config = config
        self.source = WorkloadSource(config.workload)
        self.classes = self.source.classes
        self.slos = promises(config.slos, self.classes)
        triggers = tuple(i for i, name in enumerate(self.classes) if name in config.decide_on)
        self.simulator = Simulator(config.cluster, self.slos, triggers)
        self.num_base = config.cluster.num_base
        self.encoder = _make_encoder(config, self.simulator.cluster, len(self.classes))
        self.meter = RewardMeter(len(self.classes))
        self._interval_ps = to_ps(config.decision_interval_s)
        self.done = True

    @property
    def engines_shape(self) -> tuple[int, int]:
        """Shape of the observation's engine matrix."""
        return (self.num_base, len(ENGINE_FEATURES))

    @property
    def cluster_shape(self) -> tuple[int]:
        """Shape of the observation's cluster vector."""
        return (self.encoder.cluster_size,)

    def reset(self, seed: int, split: str | None = None) -> None:
        """Begins the episode that a seed stands for: its arrivals, classes and failures.

        Args:
            seed: Which episode.
            split: Where it is drawn from; None: the configuration's split.
        """
        workload = self.source.sample(seed, split or self.config.split)
        self._state: ClusterState | None = self.simulator.reset(
            workload, self._faults(seed, workload.duration_s)
        )
        self.encoder.reset()
        self.meter.reset()
        self.deadline_ps = to_ps(float(workload.arrival_s[-1]) + self.config.drain_limit_s)
        self.done = False
        self.num_refused = 0

    def _faults(self, seed: int, duration_s: float) -> tuple[Fault, ...]:
        rate = self.config.faults_per_gpu_hour * self.config.cluster.num_gpus / 3600.0
        if rate == 0.0:
            return ()
        rng = np.random.default_rng(np.random.SeedSequence([seed, _FAULT_STREAM]))
        times = np.sort(rng.uniform(0.0, duration_s, rng.poisson(rate * duration_s)))
        gpus = rng.integers(self.config.cluster.num_gpus, size=len(times))
        return tuple(Fault(float(time), int(gpu)) for time, gpu in zip(times, gpus, strict=True))

    @property
    def state(self) -> ClusterState:
        """What the cluster shows at this decision; made when somebody asks."""
        if self._state is None:
            self._state = self.simulator.observe()
        return self._state

    def mask(self) -> NDArray[np.bool_]:
        """(num_actions,), which actions are possible now."""
        simulator = self.simulator
        if simulator.settled:
            return settled_mask(simulator.layout, self.num_base, simulator.can_switch_live)
        return action_mask(self.state, self.num_base, simulator.can_switch_live)

    def step(self, action: int | np.integer | Command | None, interval_s: float | None = None) -> Outcome:
        """Carries out a decision and lets time pass to the next one.

        Args:
            action: An action, a command, or None (stay).
            interval_s: Time to the next decision if no request asks for one before; None: the configuration's.
        """
        switched, refused = self._apply(action)
        simulator = self.simulator
        before_ps = simulator.now_ps
        span_ps = self._interval_ps if interval_s is None else to_ps(interval_s)
        simulator.advance_ps(min(before_ps + span_ps, self.deadline_ps))
        self._state = None
        now_ps = simulator.now_ps
        terminated = simulator.idle
        truncated = not terminated and now_ps >= self.deadline_ps
        self.done = terminated or truncated
        interval = self.meter.measure(
            simulator.world.stats, simulator.latency_cost, switched, self._in_flight() if truncated else None
        )
        return Outcome(
            interval.reward(self.config.objective),
            interval.terms(self.classes),
            (now_ps - before_ps) / PS_PER_S,
            terminated,
            truncated,
            refused,
        )

    def _apply(self, action: int | np.integer | Command | None) -> tuple[int, str]:
        """Base engines that begin to be reconfigured, and why the command was refused."""
        if action is None:
            return 0, ""
        command = (
            decode_action(int(action), self.num_base) if isinstance(action, (int, np.integer)) else action
        )
        touched = 0 if self.simulator.is_as_wanted(command) else self._touched(command)
        receipt = self.simulator.apply(command)
        if not receipt.accepted:
            self.num_refused += 1
            return 0, receipt.reason
        return touched, ""

    def _touched(self, command: Command) -> int:
        if self.simulator.untouched:
            return 0
        if isinstance(command, Redeploy):
            return self.num_base
        if sum(command.layout) != self.num_base:
            return 0
        regions = changed_regions(self.simulator.target_groups, groups_of(command.layout))
        return sum(region.length for region in regions)

    def _in_flight(self) -> NDArray[np.int64]:
        totals = self.state.totals
        gone = sum(totals[:, TOTALS.index(name)] for name in ("refused", "failed", "finished"))
        return np.asarray(totals[:, TOTALS.index("arrived")] - gone).astype(np.int64)

    def observe(self) -> dict[str, NDArray[np.float32]]:
        """The observation of the present state; once per step."""
        engines, cluster = np.empty(self.engines_shape, np.float32), np.empty(self.cluster_shape, np.float32)
        self.observe_into(engines, cluster)
        return {"engines": engines, "cluster": cluster}

    def observe_into(self, engines: NDArray[np.float32], cluster: NDArray[np.float32]) -> None:
        """Writes the observation of the present state; once per step."""
        simulator = self.simulator
        if not simulator.settled:
            self.encoder.encode(self.state, engines, cluster)
            return
        pooled = simulator.world.cluster[0]
        self.encoder.encode_settled(
            simulator.now_s,
            simulator.shown(),
            simulator.layout,
            (int(pooled["num_pooled"]), int(pooled["pooled_tokens"])),
            simulator.world.stats,
            engines,
            cluster,
        )

    def fork(self) -> DPTPCore:
        """A copy of the episode that continues to the same numbers."""
        copy = DPTPCore.__new__(DPTPCore)
        copy.__dict__.update(self.__dict__)
        copy.simulator = self.simulator.fork()
        copy.encoder = self.encoder.fork()
        copy.meter = self.meter.fork()
        return copy


_FAULT_STREAM = 0xFA17


def _make_encoder(config: DPTPConfig, cluster: Cluster, num_classes: int) -> Encoder:
    """An encoder that knows the engines' nominal speed from the same profile the simulator runs on."""
    tables, count = cluster.tables, len(cluster.widths)
    budget = config.cluster.max_num_batched_tokens
    return Encoder(
        num_base=config.cluster.num_base,
        base_width=config.cluster.base_width,
        num_classes=num_classes,
        prefill_s_per_token=tables.mixed_ps[:count, -1] / PS_PER_S / budget,
        decode_s=tables.decode_ps[:count] / PS_PER_S,
        kv_s_per_token=tables.kinds["kv_ps"][:count] / PS_PER_S,
        scales=config.scales,
    )
