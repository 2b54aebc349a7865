"""Checks of a dataclass's numeric fields. Each error names the field, what is allowed and the value; None passes."""

from __future__ import annotations

import math
from collections.abc import Callable


def check_positive(config: object, *names: str, prefix: str = "", finite: bool = False) -> None:
    """Raises ValueError for the first named field that is not above 0.

    Args:
        config: Whose fields.
        names: Fields to check.
        prefix: What the message puts before the field, as "agent.".
        finite: Whether infinity is refused too.
    """
    _check(config, names, prefix, ("be positive", "be positive and finite"), lambda value: value > 0, finite)


def check_not_negative(config: object, *names: str, prefix: str = "", finite: bool = False) -> None:
    """Raises ValueError for the first named field that is below 0; arguments as in `check_positive`."""
    _check(
        config,
        names,
        prefix,
        ("not be negative", "be finite and not negative"),
        lambda value: value >= 0,
        finite,
    )


def check_at_least(config: object, least: float, *names: str, prefix: str = "", finite: bool = False) -> None:
    """Raises ValueError for the first named field that is below `least`; other arguments as in `check_positive`."""
    allowed = (f"be at least {least}", f"be finite and at least {least}")
    _check(config, names, prefix, allowed, lambda value: value >= least, finite)


def check_finite(config: object, *names: str, prefix: str = "") -> None:
    """Raises ValueError for the first named field that is infinite or no number; arguments as in `check_positive`."""
    _check(config, names, prefix, ("be finite", "be finite"), math.isfinite, False)


def check_within(config: object, interval: str, *names: str, prefix: str = "") -> None:
    """Raises ValueError for the first named field outside an interval.

    Args:
        config: Whose fields.
        interval: As in mathematics: "[0, 1)" holds 0 but not 1.
        names: Fields to check.
        prefix: What the message puts before the field, as "agent.".
    """
    low, high = (float(end) for end in interval[1:-1].split(","))

    def inside(value: float) -> bool:
        above = value >= low if interval[0] == "[" else value > low
        return above and (value <= high if interval[-1] == "]" else value < high)

    for name in names:
        value = getattr(config, name)
        if value is not None and not inside(value):
            raise ValueError(f"{prefix}{name} must lie in {interval}, got {value}")


def _check(
    config: object,
    names: tuple[str, ...],
    prefix: str,
    allowed: tuple[str, str],
    holds: Callable[[float], bool],
    finite: bool,
) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not (holds(value) and (value < math.inf or not finite)):
            raise ValueError(f"{prefix}{name} must {allowed[finite]}, got {value}")
