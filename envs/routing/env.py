"""The scalar routing environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.envs.base.placement import Observation, PlacementEnv, PlacementSpaces
from serving_gym.envs.interface.fleet import FleetCommand
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.routing.batch import EpisodeBatch
from serving_gym.envs.routing.config import RoutingConfig
from serving_gym.envs.routing.episode import Episode
from serving_gym.envs.routing.render import Renderer
from serving_gym.envs.routing.state import Dispatch, RoutingState
from serving_gym.envs.simulator.kernel.features import (
    CLUSTER_FEATURES,
    HIGHEST,
    PLACE_FEATURES,
    REQUEST_FEATURES,
)
from serving_gym.envs.simulator.kernel.place_scores import PlaceScore


def make_spaces(episode: Episode) -> PlacementSpaces:
    """Observation and action space of a configuration."""
    rows, classes = episode.config.num_rows, len(episode.classes)
    observation = spaces.Dict(
        {
            "places": spaces.Box(0.0, HIGHEST, (rows, len(PLACE_FEATURES)), np.float32),
            "request": spaces.Box(0.0, HIGHEST, (len(REQUEST_FEATURES) + classes,), np.float32),
            "cluster": spaces.Box(0.0, HIGHEST, (len(CLUSTER_FEATURES),), np.float32),
        }
    )
    return observation, spaces.Discrete(rows + 1)


class RoutingEnv(PlacementEnv):
    """Where does each request go? `Serving/Routing-v0`.

    A fleet of LLM engines, alike or of several GPUs, sizes and models, stands behind one router. Each request that
    arrives is sent to one of them, for good, or held in the router's queue. What is known is what a router knows: its
    own record of what it sent and of the tokens that came back, gauges as old as its last poll, and a prediction of how
    long the answer will be. `baselines` has PreServe's router (arXiv 2504.03702) and those of production systems.

    ## Action space

    `Discrete(places + 1)`: a place, or (the last action) hold. What is held is offered again at the next retry,
    `retry_s` after the first of it was held, oldest first within its priority; if one is held once more, the others of
    its class, model and region wait for the retry after that. A request that is held when `queue_capacity` are held
    already is refused. Places that are out of service, serve another model or could not hold the request are masked
    (`action_masks()`, `info["action_mask"]`); one that is chosen anyway is counted in `info["num_refused"]` and holds
    the request. `step` also takes None (hold), and a `Dispatch`, which may change the request's priority and tell the
    fleet something besides (`Migrate`, for one).

    ## Observation space

    `Dict(places=(places, 20), request=(7 + classes,), cluster=(11,))`, float32 in [0, 64], zero where a row has no
    place (`max_places`). Rows and units are named in `envs.simulator.kernel.features`: counts, tokens and seconds are
    log1p(value / scale) with fixed scales, ratios are ratios. The true output length is nowhere in it.

    ## Reward

    `objective.scale` times the weighted sum of the terms in `info["reward_terms"]` over the time to the next decision:
    `latency` (minus the growth of the sum over requests of TTFT / SLO + TPOT / SLO, accrued while they are in the
    system), `ttft_attainment/CLASS` and `tpot_attainment/CLASS` (minus the promises broken), `goodput` (requests
    finished within both), `abandoned` (minus requests refused, failed or left unfinished; each counts as a miss of both
    promises besides, whatever it had kept or missed before). What a decision costs comes when it arises, often many
    decisions later; `info["dt"]` is the time to the next decision, seconds, by which a semi-Markov agent discounts.

    ## Start and end

    An episode begins with an empty fleet and its first arrival. It is terminated when every request has been served,
    refused or lost, and truncated `drain_limit_s` after the last arrival; what is unfinished then counts as missed and
    abandoned.

    ## Arguments

    See `envs.routing.config.RoutingConfig`.

    ## Version history

    * v0: first release.
    """

    core: Episode
    _batch: EpisodeBatch

    def __init__(self, render_mode: str | None = None, **config: Any) -> None:
        episode = Episode(RoutingConfig(**config))
        super().__init__(
            render_mode, EpisodeBatch([episode]), make_spaces(episode), lambda: Renderer(episode.engines)
        )

    @property
    def config(self) -> RoutingConfig:
        """What the environment is made of."""
        return self.core.config

    @property
    def state(self) -> RoutingState:
        """What the router knows now."""
        return self.core.state

    @property
    def policy_spec(self) -> PolicySpec:
        """What a policy is told before an episode."""
        return PolicySpec(
            cluster=self.config.cluster,
            slos=self.core.slos,
            classes=self.core.classes,
            decision_interval_s=self.config.retry_s,
            engines=self.core.engines,
            queue_capacity=self.config.queue_capacity,
        )

    def step(
        self, action: np.int64 | int | Dispatch | None
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes a decision and lets time pass to the next one."""
        if self._batch.done[0]:
            raise RuntimeError("the episode is over; call reset()")
        place, reasons = self._place_of(action)
        before = self.core.num_refused
        observations, outcomes = self._batch.step(np.array([place], np.int64))
        if self.core.num_refused > before:
            reasons.append(f"action {place} is no place that can take the request")
        seen = self._shown(observations)
        terms = outcomes.interval(0).terms(self.core.classes)
        info = self._info(float(outcomes.dt_s[0]), terms, "; ".join(reasons))
        reward = float(outcomes.rewards(self.config.objective)[0])
        return seen, reward, bool(outcomes.terminated[0]), bool(outcomes.truncated[0]), info

    def _place_of(self, action: np.int64 | int | Dispatch | None) -> tuple[int, list[str]]:
        """The place that an action sends the request to, once all else that it says is done, and what was refused."""
        if not isinstance(action, Dispatch):
            return (self._batch.hold if action is None else int(action)), []
        if action.priority is not None:
            self.core.give_priority(action.priority)
        receipts = [self.core.command(command) for command in action.commands]
        self._batch.look_at(0)
        place = self._batch.hold if action.place is None else int(action.place)
        return place, [receipt.reason for receipt in receipts if not receipt.accepted]

    def command(self, command: FleetCommand) -> str:
        """Tells the fleet something between decisions; returns why it was refused, or nothing.

        What has been observed, the mask included, stays as of the decision.
        """
        receipt = self.core.command(command)
        self._batch.look_at(0)
        return receipt.reason

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that replicas have been kept."""
        return float(self.core.simulator.gpu_seconds().sum())

    def roll_forks(
        self, actions: Sequence[int | None], score: PlaceScore, most_decisions: int
    ) -> NDArray[np.float64]:
        """Returns of as many forks as actions, (len(actions),): each takes its action, then the score decides.

        Args:
            actions: Places; None or the last action: to hold.
            score: What decides afterwards.
            most_decisions: Decisions after which a fork is rolled no further.
        """
        first = np.array([self._batch.hold if action is None else action for action in actions], np.int64)
        forever = np.full(len(actions), np.inf)
        outcomes, _ = self._batch.roll_branches([0] * len(actions), first, score, forever, most_decisions)
        return outcomes.rewards(self.config.objective)
