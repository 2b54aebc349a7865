"""The routing environment on live servers."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.env import BaseEnv
from serving_gym.envs.base.placement import Observation
from serving_gym.envs.interface.fleet import FleetCommand
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.reward import RewardMeter
from serving_gym.envs.live.control import NoDecision
from serving_gym.envs.live.run import DrivesServers
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.routing.config import RoutingConfig
from serving_gym.envs.routing.env import make_spaces
from serving_gym.envs.routing.episode import Episode
from serving_gym.envs.routing.live.desk import Override
from serving_gym.envs.routing.live.fleet import LiveFleet
from serving_gym.envs.routing.observation import StateEncoder
from serving_gym.envs.routing.render import Renderer
from serving_gym.envs.routing.state import Dispatch, RoutingPolicy, RoutingState
from serving_gym.envs.workload.predictions import predict_lengths


class LiveRoutingEnv(DrivesServers, BaseEnv[Observation]):
    """`Serving/Routing-v0` with running vLLM servers behind the router: same spaces, state, reward and records.

    What differs is what reality differs in. The clock is real and goes on while a policy thinks; a request that it has
    not decided about `backend.decide_within_s` after its arrival is sent by power of two choices (`info["overrides"]`),
    and so is one about which it fails (`NoDecision`). Gauges are as old as the last scrape. A request whose server is
    lost before its first token is offered again. What prefixes a server has cached nobody knows, and its fleet takes no
    commands. `close()` lets go of the servers.

    Args:
        settings: Servers, one a place of the fleet, and how to deal with them.
        render_mode: `ansi`, `rgb_array` or None.
        config: As of `RoutingEnv`.

    Raises:
        ValueError: something in the configuration is impossible on live servers, or a server does not answer.
    """

    fleet: LiveFleet

    def __init__(self, settings: LiveSettings, render_mode: str | None = None, **config: Any) -> None:
        self._set_render_mode(render_mode)
        self._simulated = Episode(RoutingConfig(**config))
        self.observation_space, self.action_space = make_spaces(self._simulated)
        self.fleet = LiveFleet(self.config.cluster, self._simulated.slos, settings)
        engines, slos = self._simulated.engines, self._simulated.slos
        self._encoder = StateEncoder(engines, slos, self.config.scales, self.config.num_rows)
        self._meter = RewardMeter(len(slos))
        self._renderer = Renderer(engines) if render_mode else None
        self._state: RoutingState | None = None

    @property
    def config(self) -> RoutingConfig:
        """What the environment is made of."""
        return self._simulated.config

    @property
    def state(self) -> RoutingState:
        """What the router knows, as of the decision that is due."""
        if self._state is None:
            raise RuntimeError("there is no episode yet; call reset()")
        return self._state

    @property
    def policy_spec(self) -> PolicySpec:
        """What a policy is told before an episode."""
        return PolicySpec(
            cluster=self.config.cluster,
            slos=self._simulated.slos,
            classes=self._simulated.classes,
            decision_interval_s=self.config.retry_s,
            engines=self._simulated.engines,
            queue_capacity=self.config.queue_capacity,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins the episode that a seed stands for: the arrivals, lengths and predictions it has in simulation."""
        self._prepare(self._seed_of(seed), (options or {}).get("split"))
        self._encoder.reset()
        self._meter.reset()
        self._seen = 0
        self.fleet.begin()
        self._state = self.fleet.wait().state
        self._ended = self._state.request is None
        if self._renderer:
            self._renderer.begin(self._state)
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
        self._meter.measure(state.totals, 0.0, 0, None).terms(self._simulated.classes)
        with contextlib.suppress(Exception):
            policy.reset(self.policy_spec, seed)
            policy.act(observation, state)

    def _prepare(self, seed: int, split: str | None) -> None:
        config = self.config
        workload = self._simulated.source.sample(seed, split or config.split)
        predicted = predict_lengths(config.prediction, workload, seed)
        self.fleet.prepare(
            workload, predicted, config.retry_s, config.queue_capacity, config.drain_limit_s, seed
        )

    def step(
        self, action: np.int64 | int | Dispatch | NoDecision | None
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes a decision and waits for the next one."""
        if self._ended or self.state.request is None:
            raise RuntimeError("the episode is over; call reset()")
        before_s = self.state.now_s
        executed, refused = self._carry_out(action, self.state.request.index)
        offer = self.fleet.wait()
        self._state = offer.state
        self._ended = self._state.request is None
        unfinished = self.fleet.unfinished() if self._ended else None
        interval = self._meter.measure(self._state.totals, offer.latency_cost, 0, unfinished)
        if self._renderer:
            self._renderer.record(self._state)
        truncated = unfinished is not None and bool(unfinished.any())
        observation = self._observation()
        terms = interval.terms(self._simulated.classes)
        info = self._info(self._state.now_s - before_s, terms, executed, refused)
        reward = interval.reward(self.config.objective)
        return observation, reward, self._ended and not truncated, truncated, info

    def _carry_out(
        self, action: np.int64 | int | Dispatch | NoDecision | None, row: int
    ) -> tuple[int | None, str]:
        """Does what was decided about a request; returns where it went, and why not as decided."""
        if isinstance(action, NoDecision):
            return self.fleet.take_over(row, action.reason)
        wish = self._dispatch(action)
        executed, refused = self.fleet.decide(row, wish.place, wish.priority)
        if wish.commands:
            refused = "; ".join(filter(None, (refused, "attached servers take no commands")))
        return executed, refused

    def _dispatch(self, action: np.int64 | int | Dispatch | None) -> Dispatch:
        """An action spelt out."""
        if isinstance(action, Dispatch):
            return action
        return Dispatch(None if action is None or action == self.config.num_rows else int(action))

    def command(self, command: FleetCommand) -> str:
        """Refuses: running servers are attached to as they are."""
        return f"{type(command).__name__}: attached servers take no commands"

    def action_masks(self) -> NDArray[np.bool_]:
        """(places + 1,), which actions are possible now."""
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
