"""The routing environment on live servers."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.env import BaseEnv, Observation
from serving_gym.envs.interface.fleet import FleetCommand
from serving_gym.envs.live.control import NoDecision
from serving_gym.envs.live.run import DrivesServers
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.routing.action import check_admission, decode_action
from serving_gym.envs.routing.config import RoutingConfig
from serving_gym.envs.routing.episode import RoutingEpisode
from serving_gym.envs.routing.live.desk import Override
from serving_gym.envs.routing.live.fleet import LiveFleet
from serving_gym.envs.routing.observation import StateEncoder
from serving_gym.envs.routing.render import Renderer
from serving_gym.envs.routing.spaces import make_spaces
from serving_gym.envs.routing.state import Defer, Dispatch, Reject, RoutingPolicy, RoutingState, Verdict
from serving_gym.envs.workload.predictions import predict_lengths


class LiveRoutingEnv(DrivesServers, BaseEnv[RoutingConfig, RoutingState]):
    """`Serving/Routing-v1` with running vLLM servers behind the router: same spaces, state, reward and records.

    What differs is what reality differs in. The clock is real and goes on while a policy thinks; a request that it has
    not decided about `backend.decide_within_s` after its arrival is sent by power of two choices (`info["overrides"]`),
    and so is one about which it fails (`NoDecision`). Gauges are as old as the last scrape. A request whose server is
    lost before its first token is offered again. What prefixes a server has cached nobody knows, and its fleet takes no
    commands. `close()` lets go of the servers.

    Args:
        settings: Servers, one a place of the fleet, and how to deal with them.
        render_mode: `human`, `ansi`, `rgb_array` or None.
        config: As of `RoutingEnv`.

    Raises:
        ValueError: something in the configuration is impossible on live servers, or a server does not answer.
    """

    fleet: LiveFleet
    make_spaces = staticmethod(make_spaces)
    renderer_class = Renderer
    commands = (Dispatch, Reject, Defer, NoDecision)

    def __init__(self, settings: LiveSettings, render_mode: str | None = None, **config: Any) -> None:
        self._set_up(RoutingEpisode(RoutingConfig(**config)), render_mode)
        self.config.randomise.check_live()
        self.fleet = LiveFleet(self.config.cluster, self.core.slos, settings)
        self._encoder = StateEncoder(
            self.core.engines,
            self.core.slos,
            self.config.scales,
            self.config.num_rows,
            self.config.admission,
        )
        self._meter = self.core.meter
        self._state: RoutingState | None = None
        self._ended = True

    @property
    def _begun(self) -> bool:
        return self._state is not None

    @property
    def _over(self) -> bool:
        return self._ended

    def _read_state(self) -> RoutingState:
        assert self._state is not None
        return self._state

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins the episode of a seed: the arrivals, lengths and predictions it has in simulation."""
        self._prepare(*self._next_episode(seed, options))
        self._encoder.reset()
        self._meter.reset()
        self._seen = 0
        self.fleet.begin()
        self._state = self.fleet.wait().state
        self._ended = self._state.request is None
        self._begin_rendering()
        observation = self._observation()
        info = self._info(0.0, {}, None, "") | {"overrides": []}
        self._seen = 0  # what was decided before the policy was first asked is told with its first decision
        return observation, info

    def rehearse(self, policy: RoutingPolicy, seed: int) -> None:
        """Asks a policy about a request that has not come, so that nothing compiles itself while real ones wait.

        Args:
            policy: It is reset afterwards by whoever runs it. What it does wrong it will do again, when it counts.
            seed: Of the episode.
        """
        self._prepare(seed, None)
        state = self.fleet.pretend()
        self._encoder.reset()
        self._meter.reset()
        observation, _ = self._encoder.encode(state)
        self._meter.measure(state.totals, 0.0, 0, None).terms(self.core.classes)
        with contextlib.suppress(Exception):
            policy.reset(self.policy_spec, seed)
            policy.act(observation, state)

    def _prepare(self, seed: int, split: str | None) -> None:
        config = self.config
        workload = self.core.source.sample(seed, split or config.split)
        predicted = predict_lengths(config.prediction, workload, seed)
        self.fleet.prepare(
            workload, predicted, config.retry_s, config.queue_capacity, config.drain_limit_s, seed
        )

    def step(
        self, action: np.int64 | int | Verdict | NoDecision | None
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes a decision and waits for the next one."""
        chosen = self._checked(action)
        check_admission(chosen, self.config.admission)
        assert self.state.request is not None, "an episode that is not over offers a request"
        before_s = self.state.now_s
        executed, refused = self._carry_out(chosen, self.state.request.index)
        offer = self.fleet.wait()
        self._state = offer.state
        self._ended = self._state.request is None
        unfinished = self.fleet.unfinished() if self._ended else None
        interval = self._meter.measure(self._state.totals, offer.latency_cost, 0, unfinished)
        reward = interval.reward(self.config.objective)
        self._record(chosen, reward, refused)
        truncated = unfinished is not None and bool(unfinished.any())
        observation = self._observation()
        terms = interval.terms(self.core.classes) | (interval.refusals() if self.config.admission else {})
        info = self._info(self._state.now_s - before_s, terms, executed, refused)
        return observation, reward, self._ended and not truncated, truncated, info

    def _carry_out(
        self, action: np.int64 | int | Verdict | NoDecision | None, row: int
    ) -> tuple[int | None, str]:
        """Does what was decided about a request; returns where it went, and why not as decided."""
        if isinstance(action, NoDecision):
            return self.fleet.take_over(row, action.reason)
        wish = decode_action(int(action) if isinstance(action, np.integer) else action, self.config.num_rows)
        if isinstance(wish, Reject):
            return self.fleet.reject(row)
        if isinstance(wish, Defer):
            return self.fleet.defer(row)
        executed, refused = self.fleet.decide(row, wish.place, wish.priority)
        if wish.commands:
            refused = "; ".join(filter(None, (refused, "attached servers take no commands")))
        return executed, refused

    def command(self, command: FleetCommand) -> str:
        """Refuses: running servers are attached to as they are."""
        return f"{type(command).__name__}: attached servers take no commands"

    def action_masks(self) -> NDArray[np.bool_]:
        """(actions,), which actions are possible now."""
        return self._mask

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that replicas have been kept."""
        return float(self.fleet.gpu_seconds.sum())

    def _observation(self) -> Observation:
        observation, self._mask = self._encoder.encode(self.state)
        return observation

    def _info(
        self, dt_s: float, terms: dict[str, float], executed: int | None, refused: str
    ) -> dict[str, Any]:
        overrides: list[Override] = self.fleet.overrides
        new, self._seen = overrides[self._seen :], len(overrides)
        return {
            "dt": dt_s,
            "reward_terms": terms,
            "refused": refused,
            "num_refused": self.fleet.impossible,
            "executed": executed,
            "overrides": new,
            "action_mask": self._mask,
        }
