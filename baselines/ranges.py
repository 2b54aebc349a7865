"""Places of constants in the ranges in which they may be searched."""

from __future__ import annotations

import math

from serving_gym.baselines.policy import Tunable

_DIGITS = 4  # significant, so that tuned values can be read


def to_unit(tunable: Tunable, value: float) -> float:
    """Place of a value in its range, 0 to 1; values outside go to the nearer end."""
    low, high = (math.log(end) if tunable.log else end for end in (tunable.low, tunable.high))
    place = ((math.log(value) if value > 0 else -math.inf) if tunable.log else value) - low
    return min(1.0, max(0.0, place / (high - low)))


def from_unit(tunable: Tunable, place: float) -> float:
    """The value at a place of its range, to four significant digits."""
    low, high = (math.log(end) if tunable.log else end for end in (tunable.low, tunable.high))
    value = low + (high - low) * min(1.0, max(0.0, place))
    return float(f"{math.exp(value) if tunable.log else value:.{_DIGITS}g}")
