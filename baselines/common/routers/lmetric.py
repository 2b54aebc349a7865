"""LMetric: uncached prompt tokens times batch size."""

from __future__ import annotations

import numpy as np

from serving_gym.baselines.common.router import Router, in_flight_counts
from serving_gym.baselines.common.routers.max_score import MaxScorePicker
from serving_gym.baselines.policy import Action
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


class LMetricPolicy(Router):
    """The lowest product of a request's uncached prompt tokens and of the requests in flight with it.

    arXiv 2603.15202, section 5.1, as llm-d-router's `lmetric-scorer` has it (llm-d-router#2351, August 2026): PToken =
    prompt tokens less those of the blocks that the engine's prefix cache holds, by its KV events; BS = requests in
    flight + 1. Equals in turns (`max-score-picker`). It has no constants.

    Departure: the paper counts the uncached prompts that are in the engine's queue too, which the scorer of llm-d does
    not.
    """

    name = "lmetric"

    def begin(self) -> None:
        """No ties so far."""
        self._picker = MaxScorePicker()

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The lowest product."""
        able = np.flatnonzero(state.can_take)
        uncached = np.maximum(request.input_tokens - request.cached_tokens, 0)
        cost = uncached * (in_flight_counts(state) + 1)
        return int(able[self._picker.pick(-cost[able].astype(np.float64))])
