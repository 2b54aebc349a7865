"""What policies read off a `ClusterState`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.state import TOTALS, ClusterState

_ARRIVED, _ARRIVED_TOKENS = TOTALS.index("arrived"), TOTALS.index("arrived_tokens")
_ANSWERED = [TOTALS.index(name) for name in ("finished", "generated_tokens", "tpot_sum_s")]
_GONE = [TOTALS.index(name) for name in ("refused", "failed", "finished")]
_NEVER_SERVED = [TOTALS.index(name) for name in ("refused", "first_tokens")]


def requests_in_system(state: ClusterState) -> int:
    """Requests that run, stand paused, wait at an engine or wait in the pool."""
    engines = state.engines
    return int(engines["num_running"].sum() + engines["num_waiting"].sum()) + state.num_pooled


def requests_waiting(state: ClusterState) -> int:
    """Requests that wait at an engine or in the pool."""
    return int(state.engines["num_waiting"].sum()) + state.num_pooled


def answer_s(state: ClusterState) -> float:
    """Mean time from first to last token of the requests that have finished, seconds; 0 where none has."""
    finished, tokens, tpot_s = state.totals[:, _ANSWERED].T
    return float((tokens * tpot_s / np.maximum(finished, 1.0)).sum() / max(1.0, finished.sum()))


def tokens_to_prefill(state: ClusterState) -> int:
    """Prompt tokens that are queued or being worked on, and not computed yet."""
    return int(state.engines["pending_prefill_tokens"].sum()) + state.pooled_tokens


def in_flight_by_class(state: ClusterState) -> NDArray[np.float64]:
    """(num_classes,), requests that have arrived and not left."""
    return np.asarray(state.totals[:, _ARRIVED] - state.totals[:, _GONE].sum(axis=1))


def without_first_token(state: ClusterState) -> NDArray[np.float64]:
    """(num_classes,), requests that have arrived and wait for their first token. Failed ones may be counted."""
    return np.asarray(state.totals[:, _ARRIVED] - state.totals[:, _NEVER_SERVED].sum(axis=1))


def mean_prompt_tokens(state: ClusterState) -> NDArray[np.float64]:
    """(num_classes,), mean prompt of the requests that have arrived, tokens; 0 where there are none."""
    totals = state.totals
    return np.asarray(totals[:, _ARRIVED_TOKENS] / np.maximum(totals[:, _ARRIVED], 1.0))


class ArrivalRates:
    """Exponential averages of what arrives a second.

    Args:
        smoothing_s: Their time constant, seconds.
    """

    def __init__(self, smoothing_s: float) -> None:
        self._smoothing_s, self._last_s = smoothing_s, 0.0
        self._counted, self._rates = np.zeros(2), np.zeros(2)

    def follow(self, state: ClusterState) -> tuple[float, float]:
        """Prompt tokens and requests a second, as of a state that is later than the one before."""
        elapsed_s = state.now_s - self._last_s
        if elapsed_s > 0:
            counted = state.totals[:, [_ARRIVED_TOKENS, _ARRIVED]].sum(axis=0)
            new = 1.0 - math.exp(-elapsed_s / self._smoothing_s)
            self._rates += new * ((counted - self._counted) / elapsed_s - self._rates)
            self._last_s, self._counted = state.now_s, counted
        return float(self._rates[0]), float(self._rates[1])
