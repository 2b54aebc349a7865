"""Places of constants in the ranges in which they may be searched."""

from __future__ import annotations

import math
from typing import Any

from serving_gym.baselines.policy import Tunable

_DIGITS = 4  # significant, so that tuned values can be read


def to_unit(tunable: Tunable, value: Any) -> float:
    """Place of a value in its range, 0 to 1; values outside go to the nearer end.

    A value that is chosen among several has its share of the range; one that is not among them goes to the beginning.
    """
    if tunable.values:
        return (tunable.values.index(value) + 0.5) / len(tunable.values) if value in tunable.values else 0.0
    low, high = (math.log(end) if tunable.log else end for end in (tunable.low, tunable.high))
    place = ((math.log(value) if value > 0 else -math.inf) if tunable.log else value) - low
    return min(1.0, max(0.0, place / (high - low)))


def from_unit(tunable: Tunable, place: float) -> Any:
    """The value at a place of its range, to four significant digits."""
    if tunable.values:
        return tunable.values[min(int(place * len(tunable.values)), len(tunable.values) - 1)]
    low, high = (math.log(end) if tunable.log else end for end in (tunable.low, tunable.high))
    value = low + (high - low) * min(1.0, max(0.0, place))
    return float(f"{math.exp(value) if tunable.log else value:.{_DIGITS}g}")
