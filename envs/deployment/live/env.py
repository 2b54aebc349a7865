"""The deployment environment on launched servers."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.deployment.candidates import Candidate
from serving_gym.envs.deployment.config import DeploymentConfig
from serving_gym.envs.deployment.env import DeploymentEnv
from serving_gym.envs.deployment.episode import DeploymentEpisode
from serving_gym.envs.deployment.live.fleet import DividedFleet, changed_gpus
from serving_gym.envs.deployment.observation import SpanFigures
from serving_gym.envs.deployment.state import Deploy, DeploymentState, SwitchUnderway
from serving_gym.envs.interface.reward import Outcome
from serving_gym.envs.live.control import ControlDeadline, ControlOverride, NoDecision
from serving_gym.envs.live.run import DrivesServers
from serving_gym.envs.machines.cluster import Deployment
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.simulator.kernel.state import PS_PER_S

FloatArray = NDArray[np.float64]
Action = int | np.integer | Deploy | NoDecision | None


class LiveDeploymentEpisode(DeploymentEpisode):
    """An episode on launched servers; the simulated cluster lends it what kinds of replicas cost and reach.

    Args:
        config: What the environment is made of.
        fleet: The servers.
        control_within_s: Longest time a policy may take, s.

    Raises:
        ValueError: something in the configuration is impossible on launched servers.
    """

    def __init__(self, config: DeploymentConfig, fleet: DividedFleet, control_within_s: float) -> None:
        check_divided(config.cluster)
        config.randomise.check_live()
        self.fleet = fleet
        fleet.end_requests_after(config.cluster.request_timeout_s)
        super().__init__(config)
        self._deadline = ControlDeadline(control_within_s)
        self.overridden: list[ControlOverride] = []
        self.executed: dict[str, Any] | None = None

    def reset(self, seed: int, split: str | None = None) -> None:
        """Begins the episode of a seed; the clock waits for the first decision."""
        workload, types = self._begin(seed, split)
        self.fleet.reset(workload, self.slos, types, self.typing.num_types)
        self._since_switch_s = self._p99_read_s = 0.0
        self.overridden, self.executed = [], None
        self._look()
        receipt = self.fleet.deploy(*self._spelled_out(self._first()))
        if not receipt.accepted:
            raise ValueError(f"the deployment that an episode begins with is not possible: {receipt.reason}")
        self._look()
        self._deadline.shown()

    # -- from the servers, not the simulator --------------------------------------------------------------------------

    @property
    def _num_slots(self) -> int:
        return len(self.fleet.slots)

    @property
    def _now_s(self) -> float:
        return self.fleet.now_s if self.fleet.begun else 0.0

    @property
    def _num_seen(self) -> int:
        return int(self._now_s // self.config.span_s)

    @property
    def deployment(self) -> Deployment:
        """Replicas in force, or those to be when the switch under way is done."""
        return self.fleet.deployment

    @property
    def slots(self) -> NDArray[np.int64]:
        """(K,), slot of each replica of `deployment`."""
        return self.fleet.places

    @property
    def underway(self) -> SwitchUnderway | None:
        """The switch under way."""
        switch = self.fleet.switch
        if switch is None:
            return None
        return SwitchUnderway(switch.started_s, self.fleet.due_s, self.fleet.draining)

    def _find_candidates(self) -> list[Candidate]:
        """Those that the platform and the envelope allow."""
        return [
            candidate
            for candidate in super()._find_candidates()
            if candidate.stay or not self.fleet.why_not(self.placed(candidate))
        ]

    # -- a step --------------------------------------------------------------------------------------------------------

    def step(self, action: Action, interval_s: float | None = None) -> Outcome:
        """Carries out a decision and waits for the next one.

        Args:
            action: A candidate, a command, `NoDecision`, or None.
            interval_s: Time to the next decision; None: to the end of the span.
        """
        fleet = self.fleet
        self.overridden = self._late(action)
        self.executed, switched, refused = None, 0, ""
        if not self.overridden and not isinstance(action, NoDecision) and action is not None:
            switched, refused = self._carry_out(action)
        if not fleet.begun:
            fleet.open()
        before_s, deadline_s = fleet.now_s, self.deadline_ps / PS_PER_S
        next_s = (self._num_seen + 1) * self.config.span_s if interval_s is None else before_s + interval_s
        self._wait(min(next_s, deadline_s), deadline_s)
        terminated = fleet.idle
        truncated = not terminated and fleet.now_s >= deadline_s
        self.done = terminated or truncated
        totals, latency_cost = fleet.books()
        self._measure_live(before_s, totals)
        unfinished = fleet.unfinished() if truncated else None
        interval = self.meter.measure(totals, latency_cost, switched, unfinished)
        self._look()
        terms = interval.terms(self.classes) | self._own_terms()
        reward = self._reward(interval)
        self._deadline.shown()
        return Outcome(reward, terms, self.span.dt_s, terminated, truncated, refused)

    def _wait(self, until_s: float, deadline_s: float) -> None:
        """Waits for a decision or the end of the episode, and takes the 99th percentile of each span that ends."""
        fleet, self._p99_charged_s = self.fleet, 0.0
        while True:
            end_s = (int(self._p99_read_s // self.config.span_s) + 1) * self.config.span_s
            fleet.advance(min(end_s, until_s), lambda: fleet.idle)
            over = fleet.idle or fleet.now_s >= deadline_s
            if over or fleet.now_s >= end_s:
                self._last_p99_s = fleet.p99_s(self._p99_read_s)
                self._p99_charged_s += self._last_p99_s
                self._p99_read_s = fleet.now_s
            if over or fleet.now_s >= until_s:
                return

    def _late(self, action: Action) -> list[ControlOverride]:
        """Why a decision does not count; the first one, for which the clock waits, is never late."""
        if not self.fleet.begun and not isinstance(action, NoDecision):
            return []
        return self._deadline.overrides(action, self._now_s)

    def _carry_out(self, action: int | np.integer | Deploy) -> tuple[int, str]:
        """GPUs in replicas that come, and why the command was refused."""
        command, reason = self._command(action)
        free, before = not self.fleet.begun, self.deployment
        if command is not None:
            receipt = self.fleet.deploy(*self._spelled_out(command))
            reason = receipt.reason
        if command is None or reason:
            self.num_refused += 1
            return 0, reason
        self.executed = {"deployment": str(self.deployment), "replicas": _ranks(self.deployment)}
        changed = len(changed_gpus(before, self.deployment))
        if free or before == self.deployment:
            return 0, ""
        self._since_switch_s = self._now_s
        return changed, ""

    def _spelled_out(self, command: Deploy) -> tuple[Deployment, FloatArray, str]:
        shares = self.shares_of(command.deployment, True) if command.shares is None else command.shares
        return command.deployment, np.asarray(shares, np.float64), command.switch

    def _measure_live(self, before_s: float, totals: FloatArray) -> None:
        """Works out what the time since the last decision brought."""
        busy_s = self.fleet.shown()["busy_s"]
        self.span = SpanFigures(
            self.fleet.now_s - before_s,
            totals - self._totals,
            self._last_p99_s,
            np.maximum(busy_s - self._busy_s, 0.0),
            self.fleet.now_s - self._since_switch_s,
        )
        self._totals, self._busy_s = totals, busy_s

    def _observe(self) -> DeploymentState:
        fleet = self.fleet
        pooled = fleet.pooled() if fleet.begun else []
        totals = fleet.books()[0] if fleet.begun else self._totals
        tokens = int(fleet.workload.input_tokens[pooled].sum())
        return DeploymentState(
            now_s=self._now_s,
            deployment=self.deployment,
            engines=fleet.shown()[self.slots],
            shares=fleet.shares.copy(),
            switch=self.underway,
            history=self.counts[: self._num_seen].copy(),
            forecast=self.forecast,
            num_pooled=len(pooled),
            pooled_tokens=tokens,
            totals=totals,
            coming=np.zeros((0, self.typing.num_types)),
        )

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that the cluster has been kept, idle GPUs included."""
        return self.config.cluster.num_gpus * self.state.now_s

    def fork(self) -> NoReturn:
        """Refuses: reality has no second copy.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("an episode on launched servers cannot be forked")


class LiveDeploymentEnv(DrivesServers, DeploymentEnv):
    """`Serving/Deployment-v1` with servers of this machine: same spaces, state, reward and records.

    A GPU of the cluster is a rank here, a GPU or a set of cores (`backend.slots`). What differs is what reality differs
    in. The clock is real and goes on while a policy thinks; one that takes longer than `control_within_s`, or fails,
    leaves all as it is (`info["overrides"]`); the first decision, for which the clock waits, may take its time. A
    switch drains, stops and starts servers (`envs.deployment.live.fleet`), and lasts as long as that takes: nothing is
    migrated, and what has not ended when draining must is lost. A division that the platform cannot have, prefill and
    decode workers, and on CPUs pipeline stages, is no choice, nor is one that the envelope forbids; who proposes it all
    the same is told why (`info["refused"]`). `coming` of the state is empty, as nobody knows what is to come. `close()`
    stops the servers.

    Args:
        fleet: The servers.
        control_within_s: Longest time a policy may take, s.
        render_mode: `human`, `ansi`, `rgb_array` or None.
        config: As of `DeploymentEnv`.

    Raises:
        ValueError: something in the configuration is impossible on launched servers.
    """

    fleet: DividedFleet
    core: LiveDeploymentEpisode
    commands = (Deploy, NoDecision)

    def __init__(
        self, fleet: DividedFleet, control_within_s: float, render_mode: str | None = None, **config: Any
    ) -> None:
        self.fleet = fleet
        self._set_up(LiveDeploymentEpisode(DeploymentConfig(**config), fleet, control_within_s), render_mode)

    def transition_times(self) -> dict[str, list[float]]:
        """How long each start, and each switch from the order to the last replica's first answer, has taken, s."""
        fleet = self.core.fleet
        return {
            "start_s": fleet.start_times_s(),
            "switch_s": [switch.took_s for switch in fleet.switches if not switch.failed],
        }

    def _info(self, dt_s: float, terms: dict[str, float], refused: str) -> dict[str, Any]:
        return super()._info(dt_s, terms, refused) | {
            "executed": self.core.executed,
            "overrides": self.core.overridden,
        }


def _ranks(deployment: Deployment) -> list[list[int]]:
    """GPUs of each replica."""
    return [list(replica.gpus) for replica in deployment.replicas]


def check_divided(spec: DeploymentSpec) -> None:
    """Refuses what launched servers cannot be.

    Raises:
        ValueError: there is more than one machine, or the queue order is not vLLM's.
    """
    if spec.num_machines != 1:
        raise ValueError(f"cluster.num_machines must be 1 on launched servers, got {spec.num_machines}")
    if spec.order not in ("fcfs", "priority"):
        raise ValueError(f"cluster.order must be fcfs or priority on servers of vLLM, got {spec.order!r}")
