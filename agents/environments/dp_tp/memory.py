"""What the traffic of an episode has been for some minutes: which kind it is shows in minutes, not in seconds.

The environment's observation has averages over seconds, by which loads are told. Traffic in which a prompt of a hundred
thousand tokens comes twice a minute looks for most of that minute like traffic in which none ever does. A policy that
counts for longer can tell them apart; everything it counts is in `ClusterState.totals`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.envs.interface.state import TOTALS, ClusterState

FEATURES = (  # of each time constant; averages are weighted means of the time so far
    "known",  # share of the weights that fall on the episode: 0 at its beginning, towards 1
    "rate",  # log1p of arrivals a second over 2
    "bursts",  # log of the mean square of the rate over the square of its mean: 0 where it never changes
    "prompt",  # log of the mean prompt over 1000 tokens
    "answer",  # log of the mean answer over 200 tokens, of requests that have finished
    "long_prompt",  # log of the mean prompt over 1000 tokens, of the class with the longest
    "long_share",  # share of that class in prompt tokens
    "other_classes",  # share of arrivals that are not of the class with the most
)
_RATE, _PROMPT, _ANSWER = 2.0, 1000.0, 200.0
_LEAST = 1e-9
_COUNTED = tuple(TOTALS.index(name) for name in ("arrived", "arrived_tokens", "finished", "generated_tokens"))
_ARRIVED, _TOKENS, _FINISHED, _GENERATED = range(len(_COUNTED))


class TrafficMemory:
    """Averages over an episode's traffic, and when engines were last split.

    Args:
        constants_s: Time constants, seconds; as many times `FEATURES` are remembered.
    """

    def __init__(self, constants_s: Sequence[float]) -> None:
        self.constants_s = np.array(constants_s, np.float64)
        self.reset()

    def since_split_s(self, now_s: float) -> float:
        """Seconds since engines were last split, as far as decisions have shown; infinite where they never were."""
        return now_s - self._split_s

    def may_merge(self, now_s: float, dwell_s: float) -> bool:
        """Whether engines have not been split for so many seconds."""
        return self.since_split_s(now_s) >= dwell_s

    @property
    def size(self) -> int:
        """How much is remembered."""
        return memory_size(len(self.constants_s))

    def reset(self) -> None:
        """Begins an episode."""
        self._last_s, self._split_s, self._engines = 0.0, -math.inf, 0
        self._totals = np.zeros((0, len(_COUNTED)))
        self._rates = np.zeros((len(self.constants_s), 0, len(_COUNTED)))
        self._squares = np.zeros(len(self.constants_s))

    def fork(self) -> TrafficMemory:
        """A copy that continues independently."""
        twin = TrafficMemory.__new__(TrafficMemory)
        twin.__dict__.update(self.__dict__)
        twin._rates, twin._squares = self._rates.copy(), self._squares.copy()
        return twin

    def watch(self, state: ClusterState) -> None:
        """Takes note of a split alone."""
        if 0 < self._engines < len(state.target_layout):
            self._split_s = state.now_s
        self._engines = len(state.target_layout)

    def follow(self, state: ClusterState) -> NDArray[np.float32]:
        """(size,), what is remembered at a decision, which is taken note of.

        Args:
            state: Later than at the decision before, or the episode's first.
        """
        out = np.zeros(self.size, np.float32)
        self.watch(state)
        if not len(self.constants_s):
            return out
        totals = np.ascontiguousarray(state.totals[:, _COUNTED], np.float64)
        if len(self._totals) != len(totals):
            self._totals = np.zeros_like(totals)
            self._rates = np.zeros((len(self.constants_s), *totals.shape))
        dt = state.now_s - self._last_s
        if dt > 0.0:
            _blend((totals - self._totals) / dt, dt, self.constants_s, self._rates, self._squares)
            self._last_s, self._totals = state.now_s, totals
        _describe(state.now_s, self.constants_s, self._rates, self._squares, out)
        return out


def memory_size(number: int) -> int:
    """Length of what is remembered with so many time constants."""
    return number * len(FEATURES)


@njit(cache=True)
def _blend(
    now: NDArray[np.float64],
    dt: float,
    constants_s: NDArray[np.float64],
    rates: NDArray[np.float64],
    squares: NDArray[np.float64],
) -> None:
    """Adds an interval of `dt` seconds with these rates, (classes, counted), to the averages."""
    arrivals = now[:, _ARRIVED].sum()
    square = max(arrivals * arrivals - arrivals / dt, 0.0)  # less what chance adds to it
    for k in range(len(constants_s)):
        keep = np.exp(-dt / constants_s[k])
        squares[k] = keep * squares[k] + (1.0 - keep) * square
        for c in range(now.shape[0]):
            for j in range(now.shape[1]):
                rates[k, c, j] = keep * rates[k, c, j] + (1.0 - keep) * now[c, j]


@njit(cache=True)
def _describe(
    now_s: float,
    constants_s: NDArray[np.float64],
    rates: NDArray[np.float64],
    squares: NDArray[np.float64],
    out: NDArray[np.float32],
) -> None:
    place = 0
    for k in range(len(constants_s)):
        known = 1.0 - np.exp(-now_s / constants_s[k])
        arrived, tokens = rates[k, :, _ARRIVED].sum(), rates[k, :, _TOKENS].sum()
        finished, generated = rates[k, :, _FINISHED].sum(), rates[k, :, _GENERATED].sum()
        out[place] = known
        if arrived > _LEAST:
            longest, share = 0.0, 0.0
            for c in range(rates.shape[1]):
                if rates[k, c, _ARRIVED] > _LEAST:
                    prompt = rates[k, c, _TOKENS] / rates[k, c, _ARRIVED]
                    if prompt > longest:
                        longest, share = prompt, rates[k, c, _TOKENS] / tokens
            out[place + 1] = np.log1p(arrived / known / _RATE)
            out[place + 2] = np.log(max(squares[k] * known / (arrived * arrived), 0.5))
            out[place + 3] = np.log(tokens / arrived / _PROMPT)
            out[place + 5] = np.log(longest / _PROMPT)
            out[place + 6] = share
            out[place + 7] = 1.0 - rates[k, :, _ARRIVED].max() / arrived
        if finished > _LEAST:
            out[place + 4] = np.log((generated / finished + 1.0) / _ANSWER)
        place += 8
