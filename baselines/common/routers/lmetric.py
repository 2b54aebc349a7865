"""LMetric: uncached prompt tokens times batch size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serving_gym.baselines.common.router import Router, in_flight_counts
from serving_gym.baselines.common.routers.max_score import MaxScorePicker
from serving_gym.baselines.common.routers.uncached_load import UncachedLoad
from serving_gym.baselines.policy import Action, Configured, Constants, tunable_choice
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


@dataclass(frozen=True)
class LMetricConfig(Constants):
    """Constants of `LMetricPolicy`.

    Attributes:
        count_queue: Whether uncached prompt tokens that the engine has been sent and has not answered yet count too.
            llm-d's scorer: false; the paper: true.
    """

    count_queue: bool = tunable_choice(False, True)


class LMetricPolicy(Router, Configured[LMetricConfig]):
    """The lowest product of a request's uncached prompt tokens and of the requests in flight with it.

    arXiv 2603.15202, section 5.1, as llm-d-router's `lmetric-scorer` has it (llm-d-router#2351, August 2026): PToken =
    prompt tokens less those of the blocks that the engine's prefix cache holds, by its KV events; BS = requests in
    flight + 1. Equals in turns (`max-score-picker`). The paper counts the uncached prompts in the engine's queue as
    well (`count_queue`).
    """

    name = "lmetric"

    def begin(self) -> None:
        """No ties so far."""
        self._picker, self._load = MaxScorePicker(), UncachedLoad()

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The lowest product."""
        able = np.flatnonzero(state.can_take)
        own = np.maximum(request.input_tokens - request.cached_tokens, 0)
        uncached = own + self._load.of(state) if self.config.count_queue else own
        cost = uncached * (in_flight_counts(state) + 1)
        place = int(able[self._picker.pick(-cost[able].astype(np.float64))])
        self._load.record(request, int(own[place]))
        return place
