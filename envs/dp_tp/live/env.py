"""The DP/TP environment on a live server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.episode import last_arrival_s, unfinished_in
from serving_gym.envs.dp_tp.action import action_mask, decode_action
from serving_gym.envs.dp_tp.config import DPTPConfig
from serving_gym.envs.dp_tp.env import DPTPEnv
from serving_gym.envs.dp_tp.episode import DPTPEpisode
from serving_gym.envs.interface.commands import Command, Redeploy, SetLayout
from serving_gym.envs.interface.layout import changed_regions, groups_of
from serving_gym.envs.interface.metrics import RequestRecords
from serving_gym.envs.interface.reward import Outcome
from serving_gym.envs.live.client_health import ClientHealth
from serving_gym.envs.live.control import ControlDeadline, ControlOverride, NoDecision
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.live.switching.backend import SwitchingBackend


class LiveDPTPEpisode(DPTPEpisode):
    """An episode on a server with the plugin; the simulated node lends it the nominal speeds of its profile.

    Args:
        config: What the environment is made of.
        settings: The server and how to deal with it.

    Raises:
        ValueError: something in the configuration is impossible on a live server, or it does not answer.
    """

    def __init__(self, config: DPTPConfig, settings: LiveSettings) -> None:
        super().__init__(config)
        config.randomise.check_live()
        if config.faults_per_gpu_hour:
            raise ValueError(
                "env.faults_per_gpu_hour must be 0: faults cannot be injected into a live server"
            )
        triggers = tuple(i for i, name in enumerate(self.classes) if name in config.decide_on)
        self.backend = SwitchingBackend(config.cluster, self.slos, settings, triggers)

    def reset(self, seed: int, split: str | None = None) -> None:
        """Begins the episode of a seed: the arrivals, lengths and classes it has in simulation."""
        workload = self.source.sample(seed, split or self.config.split)
        self._state = self.backend.reset(workload)
        self.encoder.reset()
        self.deadline_s = last_arrival_s(self.backend.workload, self.slos) + self.config.drain_limit_s
        self._start()

    def mask(self) -> NDArray[np.bool_]:
        """(num_actions,), which actions are possible now."""
        return action_mask(self.state, self.num_base)

    def step(self, action: int | np.integer | Command | None, interval_s: float | None = None) -> Outcome:
        """Carries out a decision and waits for the next one."""
        before_s = self.backend.now_s
        switched, refused = self._order(action)
        span_s = self.config.decision_interval_s if interval_s is None else interval_s
        self.backend.advance(min(before_s + span_s, self.deadline_s))
        terminated = self.backend.idle
        self._state = self.backend.observe()
        now_s = self._state.now_s
        truncated = not terminated and now_s >= self.deadline_s
        self.done = terminated or truncated
        abandoned = unfinished_in(self._state.totals).astype(np.int64) if truncated else None
        interval = self.meter.measure(self._state.totals, self.backend.latency_cost(), switched, abandoned)
        return Outcome(
            interval.reward(self.config.objective),
            interval.terms(self.classes),
            now_s - before_s,
            terminated,
            truncated,
            refused,
        )

    def _order(self, action: int | np.integer | Command | None) -> tuple[int, str]:
        """Base engines that begin to be reconfigured, and why the command was refused."""
        if action is None:
            return 0, ""
        command = (
            decode_action(int(action), self.num_base) if isinstance(action, (int, np.integer)) else action
        )
        touched = self._changes(command)
        receipt = self.backend.apply(command)
        if not receipt.accepted:
            self.num_refused += 1
            return 0, receipt.reason
        return touched, ""

    def _changes(self, command: Command) -> int:
        """Base engines that a command begins to reconfigure; the choice of the first layout is free."""
        if self.backend.now_s == 0 or isinstance(command, Redeploy) or sum(command.layout) != self.num_base:
            return 0
        regions = changed_regions(groups_of(self.state.target_layout), groups_of(command.layout))
        return sum(region.length for region in regions)

    def observe_into(self, engines: NDArray[np.float32], cluster: NDArray[np.float32]) -> None:
        """Writes the observation of the present state; once per step."""
        self.encoder.encode(self.state, engines, cluster)

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that the node has been kept."""
        return self.config.cluster.num_gpus * self.state.now_s

    def fork(self) -> NoReturn:
        """Refuses: reality has no second copy.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("an episode on a live server cannot be forked")


class LiveDPTPEnv(DPTPEnv):
    """`Serving/DPTP-v1` on a running vLLM server with the plugin: same spaces, state, reward and records.

    What differs is what reality differs in. The clock is real and goes on while a policy thinks. A switch takes as long
    as it takes (`core.backend.switches()`). Weights are always whole, and a `Redeploy` is had at time zero alone.
    Nominal speeds in the observation are those of `cluster.profile`: give one that was measured. `close()` lets go of
    the server.

    Args:
        settings: The server, whose ranks are the base engines, and how to deal with it.
        render_mode: `human`, `ansi`, `rgb_array` or None.
        control_within_s: Longest time a policy may take, seconds; then all is left as it is (`info["overrides"]`).
        config: As of `DPTPEnv`.

    Raises:
        ValueError: something in the configuration is impossible on a live server, or it does not answer.
    """

    core: LiveDPTPEpisode
    commands = (SetLayout, Redeploy, NoDecision)
    survives_failures = True  # errors of a policy: `NoDecision` replaces its action

    def __init__(
        self,
        settings: LiveSettings,
        render_mode: str | None = None,
        control_within_s: float = 10.0,
        **config: Any,
    ) -> None:
        self._set_up(LiveDPTPEpisode(DPTPConfig(**config), settings), render_mode)
        self._deadline = ControlDeadline(control_within_s)
        self._overrides: list[ControlOverride] = []
        self._executed: Any = None

    def _checked(self, action: Any) -> Any:
        """Checks an action; one that is not allowed counts as no decision, as the requests are real."""
        try:
            return super()._checked(action)
        except ValueError as error:
            return NoDecision(str(error))

    def _begin(self, seed: int, split: str | None) -> None:
        super()._begin(seed, split)
        self._overrides, self._executed = [], None
        self._deadline.shown()

    def _advance(self, action: Any) -> Outcome:
        self._overrides = self._deadline.overrides(action, self.core.backend.now_s)
        outcome = super()._advance(None if self._overrides else action)
        self._executed = None if outcome.refused else self.core.state.target_layout
        self._deadline.shown()
        return outcome

    def _info(self, dt_s: float, terms: dict[str, float], refused: str) -> dict[str, Any]:
        info = super()._info(dt_s, terms, refused)
        return info | {"executed": self._executed, "overrides": self._overrides}

    def records(self) -> RequestRecords:
        """What happened to every request that has arrived."""
        return self.core.backend.results()

    def record_requests(self, sink: Callable[[dict[str, Any]], None]) -> None:
        """Lets each request of the next episodes be told when it has ended."""
        self.core.backend.record_requests(sink)

    def client_health(self) -> ClientHealth:
        """What the client itself has added to the present episode."""
        return self.core.backend.client_health()

    def transition_times(self) -> dict[str, list[float]]:
        """How long the server's last switches took once they might take place, s."""
        cut_overs = [switch["cut_over_s"] for switch in self.core.backend.switches()]
        return {"switch_s": [seconds for seconds in cut_overs if seconds is not None]}

    def close(self) -> None:
        """Lets go of the server."""
        self.core.backend.close()
        super().close()
