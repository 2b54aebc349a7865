"""Which parameters and how many examples of a test belong to the default tier, and which to the full one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy


def full_except(values: Iterable[Any], *default: Any) -> list[Any]:
    """Parameters that are marked `full`, apart from those of the default tier.

    Args:
        values: All parameters.
        default: Those that the default tier keeps.

    Raises:
        ValueError: One of `default` is not among the values.
    """
    values = list(values)
    if missing := [value for value in default if value not in values]:
        raise ValueError(f"full_except: {missing} not in {values}")
    return [value if value in default else pytest.param(value, marks=pytest.mark.full) for value in values]


def given_in_tiers(*strategies: SearchStrategy[Any], default: int, full: int) -> Callable[[Any], Any]:
    """Hypothesis' `given` with fewer examples in the default tier than in the full one.

    Args:
        strategies: Of the test's arguments.
        default: Number of examples in the default tier. SERVING_GYM_EXAMPLES replaces both numbers.
        full: Number of examples in the full tier.
    """
    numbers = [int(os.environ.get("SERVING_GYM_EXAMPLES", number)) for number in (default, full)]

    def decorate(check: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("examples", [numbers[0], pytest.param(numbers[1], marks=pytest.mark.full)])
        def test(examples: int) -> None:
            allowed = [HealthCheck.too_slow, HealthCheck.data_too_large]
            runs = settings(max_examples=examples, deadline=None, suppress_health_check=allowed)
            runs(given(*strategies)(check))()

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorate
