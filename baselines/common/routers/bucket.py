"""SGLang's buckets: engines by length of the prompt."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router, lowest
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

FIRST_LONGEST = 4096  # characters that the first buckets divide evenly
CHARACTERS_A_TOKEN = 4  # source: ours


@dataclass(frozen=True)
class BucketConfig(Constants):
    """Constants of `BucketPolicy`, SGLang's defaults.

    Attributes:
        balance_abs_threshold: Loads are out of balance where the largest exceeds the smallest by more characters ...
        balance_rel_threshold: ... and is more than so many times as large.
        adjust_interval_s: Time between two adjustments of the buckets, and over which load is counted, seconds.
    """

    balance_abs_threshold: float = tunable(32, 1.0, 1e6, log=True)
    balance_rel_threshold: float = tunable(1.0001, 1.0, 8.0, log=True)
    adjust_interval_s: float = tunable(5.0, 0.5, 60.0, log=True)

    def __post_init__(self) -> None:
        check_not_negative(self, "balance_abs_threshold")
        check_at_least(self, 1, "balance_rel_threshold")
        check_positive(self, "adjust_interval_s")


class BucketPolicy(Router, Configured[BucketConfig]):
    """Short prompts to the first engines and long ones to the last, in buckets of equal load; or the least loaded.

    SGLang's model gateway of 2026, `policies/bucket.rs`. An engine's load is the characters of the prompts that it was
    sent in the last `adjust_interval_s`, the older ones being dropped after each decision. Out of balance the smallest
    load wins, the first of equals; else the engine whose bucket has the prompt's length. Every `adjust_interval_s`, if
    the load per engine has more than doubled or halved, buckets are laid out anew over the lengths of the prompts that
    are counted (`bucket_ends`).

    Departures: a token counts as four characters; loads are compared among engines that can take the request, and where
    the bucket's engine cannot, the smallest load wins.
    """

    name = "bucket"

    def begin(self) -> None:
        """Even buckets."""
        num_places = len(self.engines)
        gap = FIRST_LONGEST // num_places
        self._ends: list[float] = [(i + 1) * gap - 1 for i in range(num_places - 1)] + [np.inf]
        self._load = np.zeros(num_places, np.int64)
        self._counted: deque[tuple[float, int, int]] = deque()  # when, characters, place
        self._bucket_load = 0
        self._adjusted_s = 0.0

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The bucket, or the least load."""
        self._adjust(state.now_s)
        length = CHARACTERS_A_TOKEN * request.input_tokens
        place = int(np.searchsorted(self._ends, length))
        if not state.can_take[place] or self._out_of_balance(self._load[state.can_take]):
            place = lowest(self._load, state.can_take)
        self._count(state.now_s, length, place)
        return place

    def _out_of_balance(self, load: NDArray[np.int64]) -> bool:
        most, least = int(load.max()), int(load.min())
        config = self.config
        return most - least > config.balance_abs_threshold and most > config.balance_rel_threshold * least

    def _count(self, now_s: float, length: int, place: int) -> None:
        self._load[place] += length
        while self._counted and now_s - self._counted[0][0] > self.config.adjust_interval_s:
            _, old_length, old_place = self._counted.popleft()
            self._load[old_place] -= old_length
        self._counted.append((now_s, length, place))

    def _adjust(self, now_s: float) -> None:
        """Lays the buckets out anew, if it is time and the load has changed."""
        passed = (now_s - self._adjusted_s) // self.config.adjust_interval_s
        if passed < 1:
            return
        self._adjusted_s += passed * self.config.adjust_interval_s
        if not self._counted:
            return
        lengths = sorted(length for _, length, _ in self._counted)
        before, share = self._bucket_load, sum(lengths) // len(self._ends)
        if before and share <= 2 * before and before <= 2 * share:
            return
        self._bucket_load = share
        self._ends = bucket_ends(lengths, len(self._ends))


def bucket_ends(lengths: list[int], num_buckets: int) -> list[float]:
    """The largest length of each bucket, such that each has about the same load.

    A bucket ends at the length with which those that it takes, from the shortest on, have an equal share of all. Where
    that length belongs to the bucket before, and where too few are left, it is as wide as the share is large.

    Args:
        lengths: Of prompts, ascending.
        num_buckets: At least 1; the last one has no end.
    """
    share = sum(lengths) // num_buckets
    ends: list[float] = []
    begin = at = 0
    for _ in range(num_buckets - 1):
        load, end = 0, begin + share
        while at < len(lengths):
            length = lengths[at]
            load, at = load + length, at + 1
            if load >= share:
                end = length if length > begin else end
                break
        ends.append(end)
        begin = end + 1
    return [*ends, np.inf]
