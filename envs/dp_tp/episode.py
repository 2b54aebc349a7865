"""One DP/TP episode: simulator, encoder and reward. The scalar and the vector environment are made of these."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.episode import SteppedEpisode
from serving_gym.envs.dp_tp.action import action_mask, decode_action, settled_mask
from serving_gym.envs.dp_tp.config import DPTPConfig
from serving_gym.envs.dp_tp.observation import Encoder
from serving_gym.envs.interface.cluster import Fault
from serving_gym.envs.interface.commands import Command, Redeploy
from serving_gym.envs.interface.layout import changed_regions, groups_of
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.reward import Outcome
from serving_gym.envs.interface.state import ClusterState
from serving_gym.envs.simulator.cluster import Cluster
from serving_gym.envs.simulator.kernel.state import PS_PER_S
from serving_gym.envs.simulator.scheduling import to_ps
from serving_gym.envs.simulator.simulator import Simulator


class DPTPEpisode(SteppedEpisode[DPTPConfig]):
    """Runs episodes of one configuration.

    Args:
        config: What the environment is made of.

    Raises:
        ValueError: Something in it is unknown or impossible.
    """

    simulator: Simulator

    def __init__(self, config: DPTPConfig) -> None:
        super().__init__(config)
        triggers = tuple(i for i, name in enumerate(self.classes) if name in config.decide_on)
        self.simulator = Simulator(config.cluster, self.slos, triggers, levels=config.randomise.levels)
        self._check_front_end(len(self.simulator.tables.fronts) > 0)
        self.num_base = config.cluster.num_base
        self.encoder = _make_encoder(config, self.simulator.cluster, len(self.classes))
        self._interval_ps = to_ps(config.decision_interval_s)

    def reset(self, seed: int, split: str | None = None) -> None:
        """Begins the episode of a seed: its arrivals, classes, failures and factors.

        Args:
            seed: Which episode.
            split: Where it is drawn from; None: the configuration's split.
        """
        workload = self._sample(seed, split)
        self._state: ClusterState | None = self.simulator.reset(
            workload, self._faults(seed, workload.duration_s), self.config.randomise.draw(seed, 1)
        )
        self.encoder.reset()

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
        """Observable state of the cluster at this decision; built on first access."""
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
            interval_s: Time to the next decision if no request triggers one before; None: the configuration's.
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
            simulator.world.stats,
            simulator.latency_cost,
            switched,
            self.unfinished() if truncated else None,
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

    def observe(self) -> dict[str, NDArray[np.float32]]:
        """The observation of the present state; once per step."""
        parts = {name: np.empty(shape, np.float32) for name, shape in self.encoder.shapes.items()}
        self.observe_into(**parts)
        return parts

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

    @property
    def policy_spec(self) -> PolicySpec:
        """What a policy knows before an episode."""
        return self._make_policy_spec(self.config.decision_interval_s)

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that the node has been kept."""
        return self.config.cluster.num_gpus * self.simulator.now_s

    def fork(self) -> Self:
        """A copy of the episode that continues to the same numbers."""
        copy = self._copy()
        copy.encoder = self.encoder.fork()
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
