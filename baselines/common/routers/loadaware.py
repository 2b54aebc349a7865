"""production-stack's `loadaware`: cached share of the prompt against relative load."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router, in_flight_counts, lowest
from serving_gym.baselines.policy import Action, Configured, Constants, tunable, tunable_choice
from serving_gym.calibration.fields import check_not_negative, check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

COLD = ("load", "rate")


@dataclass(frozen=True)
class LoadAwareConfig(Constants):
    """Constants of `LoadAwarePolicy`.

    Attributes:
        beta: Cached share of the prompt that a load of twice the mean costs. Source: production-stack (1.0).
        cold: What decides of a prompt of which no engine holds anything. "load": the same score, which then is the
            lowest load; "rate": the fewest requests a second lately, as production-stack has it.
        qps_window_s: Over which requests are counted for the rate. Source: production-stack, `--request-stats-window`
            (60 s).
    """

    beta: float = tunable(1.0, 0.01, 100.0, log=True)
    cold: str = tunable_choice("load", "rate")
    qps_window_s: float = 60.0

    def __post_init__(self) -> None:
        check_not_negative(self, "beta")
        check_choice("cold", self.cold, COLD)
        check_positive(self, "qps_window_s")


class LoadAwarePolicy(Router, Configured[LoadAwareConfig]):
    """The highest cached share of the prompt less `beta` times the relative load.

    vLLM production-stack's `LoadAwareRouter` (production-stack#1035, August 2026): relative load is (requests in flight
    - their mean) / max(1, mean) over the engines that can take the request. Ties go to the first engine.

    Departures: production-stack does not score a prompt of which nothing is cached anywhere, but sends it where the
    fewest requests a second go, whatever an engine's speed (`cold`: "rate"); what is cached is asked of LMCache's
    controller there, here of the engines' KV events; requests carry no session key, which a cold prompt would be hashed
    by.
    """

    name = "loadaware"

    def begin(self) -> None:
        """Nothing has been sent anywhere."""
        self._sent: deque[tuple[float, int]] = deque()
        self._recent = np.zeros(len(self.engines), np.int64)

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The highest score, or the lowest rate."""
        self._forget(state.now_s - self.config.qps_window_s)
        by_rate = self.config.cold == "rate" and not request.cached_tokens[state.can_take].any()
        place = lowest(self._recent if by_rate else -self._score(state, request), state.can_take)
        self._sent.append((state.now_s, place))
        self._recent[place] += 1
        return place

    def _forget(self, since_s: float) -> None:
        """Leaves out what was sent before."""
        while self._sent and self._sent[0][0] < since_s:
            self._recent[self._sent.popleft()[1]] -= 1

    def _score(self, state: RoutingState, request: RoutedRequest) -> NDArray[np.float64]:
        """Cached share less relative load, (P,)."""
        load = in_flight_counts(state)
        mean = float(load[state.can_take].mean())
        share = np.minimum(request.cached_tokens / max(request.input_tokens, 1), 1.0)
        score: NDArray[np.float64] = share - self.config.beta * (load - mean) / max(1.0, mean)
        return score
