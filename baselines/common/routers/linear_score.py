"""A weighted sum of what the observation says of a place; the weights are what a tuner finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router
from serving_gym.baselines.policy import Action, Tunable
from serving_gym.calibration.fields import check_finite
from serving_gym.envs.routing.state import RoutingState
from serving_gym.envs.simulator.kernel.features import PLACE_FEATURES
from serving_gym.envs.simulator.kernel.place_scores import PlaceScore

# The first two are 1 wherever a request may go.
SCORED = PLACE_FEATURES[2:]


@dataclass(frozen=True)
class LinearScoreConfig:
    """Weight of each place feature (`envs.simulator.kernel.features.PLACE_FEATURES`); the highest score wins.

    The values here follow JSQ in seconds, with an eye on KV overflow; source: ours. They are where a tuner begins.

    Attributes:
        in_flight, unanswered, waiting, running, kv_usage: Weight of the feature of that name.
        queued_tokens, prefill_backlog_s, remaining_tokens, drain_s, context_usage: Weight of the feature of that name.
        peak_usage, excess_usage, iteration_s, own_prefill_s, own_decode_s: Weight of the feature of that name.
        prefix_hit, kv_capacity, network_s: Weight of the feature of that name.
    """

    in_flight: float = 0.0
    unanswered: float = 0.0
    waiting: float = 0.0
    running: float = 0.0
    kv_usage: float = 0.0
    queued_tokens: float = 0.0
    prefill_backlog_s: float = -1.0
    remaining_tokens: float = 0.0
    drain_s: float = 0.0
    context_usage: float = 0.0
    peak_usage: float = 0.0
    excess_usage: float = -1.0
    iteration_s: float = -1.0
    own_prefill_s: float = -1.0
    own_decode_s: float = -1.0
    prefix_hit: float = 0.0
    kv_capacity: float = 0.0
    network_s: float = -1.0

    def __post_init__(self) -> None:
        check_finite(self, *vars(self))

    @staticmethod
    def tunables() -> dict[str, Tunable]:
        """Constants that a tuner may search: all of them."""
        return {name: Tunable(-4.0, 4.0) for name in SCORED}


class LinearScorePolicy(Router):
    """The place with the highest weighted sum of features among those that can take the request; ties to the first.

    It decides by the observation alone, so it runs wherever one can be had, and for many episodes in one call. It holds
    a request only where no place can take it.

    Args:
        config: Its weights.
    """

    name = "linear_score"

    def __init__(self, config: LinearScoreConfig | None = None) -> None:
        self.config = config or LinearScoreConfig()
        self._weights = np.zeros(len(PLACE_FEATURES), np.float32)
        self._weights[-len(SCORED) :] = astuple(self.config)
        self.in_kernel = PlaceScore(self._weights)

    def act(self, observation: Mapping[str, NDArray[np.float32]], state: RoutingState) -> Action:
        """The best place, or None where none can take the request."""
        num_places = len(state.can_take)
        best = int(
            _best(observation["places"][None, :num_places], state.can_take[None], self._weights, -1)[0]
        )
        return None if best < 0 else best

    def act_batch(
        self, observation: Mapping[str, NDArray[np.float32]], masks: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """The best place in each of N episodes, or to hold, (N,).

        Args:
            observation: `places` is (N, R, features).
            masks: (N, R + 1), or more where there are other actions.
        """
        hold = observation["places"].shape[1]
        choices: NDArray[np.int64] = _best(observation["places"], masks[:, :hold], self._weights, hold)
        return choices


@njit(cache=True)
def _best(
    places: NDArray[np.float32], can_take: NDArray[np.bool_], weights: NDArray[np.float32], nowhere: int
) -> Any:
    """First row of the highest score of each of N, (N,); `nowhere` where none can take the request."""
    best = np.full(len(places), nowhere, np.int64)
    for i in range(len(places)):
        highest = -np.inf
        for row in range(places.shape[1]):
            if not can_take[i, row]:
                continue
            score = 0.0
            for k in range(len(weights)):
                score += weights[k] * places[i, row, k]
            if score > highest:
                best[i], highest = row, score
    return best
