"""Prompt tokens in flight that no prefix cache was thought to hold, by what the router sent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import in_flight_sum
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

_FIRST_SIZE = 1024
_UNKNOWN = -1


class UncachedLoad:
    """Uncached prompt tokens of requests sent whose first token has not come.

    llm-d-router's `inflight-load-producer` with its default, `addEstimatedOutputTokens: false`: of a request only what
    the prefix index did not know of counts, and all of it is released with the first token of the answer. A request
    that somebody else sent counts its whole prompt.
    """

    def __init__(self) -> None:
        self._tokens = np.full(_FIRST_SIZE, _UNKNOWN, np.int64)  # by row of the workload

    def record(self, request: RoutedRequest, uncached_tokens: int) -> None:
        """Remembers what a request adds to the load of the engine it was sent to."""
        if request.index >= len(self._tokens):
            grown = np.full(2 * (request.index + 1), _UNKNOWN, np.int64)
            grown[: len(self._tokens)] = self._tokens
            self._tokens = grown
        self._tokens[request.index] = uncached_tokens

    def of(self, state: RoutingState) -> NDArray[np.float64]:
        """Load of each place, (P,) tokens."""
        flights = state.in_flight
        index = np.minimum(flights["index"], len(self._tokens) - 1)
        known = np.where(flights["index"] < len(self._tokens), self._tokens[index], _UNKNOWN)
        tokens = np.where(known == _UNKNOWN, flights["input_tokens"], known)
        return in_flight_sum(state, np.where(flights["first_token_s"] < 0, tokens, 0))
