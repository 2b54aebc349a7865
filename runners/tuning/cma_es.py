"""CMA-ES over constants with ranges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import cma
import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.policy import Tunable
from serving_gym.baselines.ranges import from_unit, to_unit


def to_params(tunables: Mapping[str, Tunable], places: NDArray[np.float64]) -> dict[str, Any]:
    """Values by name from places in the unit cube, in the order of `tunables`."""
    return {name: from_unit(tunables[name], float(p)) for name, p in zip(tunables, places, strict=False)}


def search(
    score: Callable[[Mapping[str, Any]], float],
    tunables: Mapping[str, Tunable],
    start: Mapping[str, Any],
    evaluations: int,
    sigma: float,
    seed: int,
) -> None:
    """Maximises `score` with `evaluations` candidates.

    Args:
        score: score of values by name.
        tunables: ranges by name.
        start: initial values; those out of range begin at its end.
        evaluations: calls to make.
        sigma: initial step size, share of a range.
        seed: of the search.
    """
    begin = [min(max(to_unit(tunables[name], start[name]), 0.0), 1.0) for name in tunables]
    begin += [0.5] * (
        len(begin) == 1
    )  # CMA-ES wants two dimensions; the second one of a single constant is idle
    rng = np.random.default_rng(seed)
    options = {
        "bounds": [0.0, 1.0],
        "seed": math.nan,  # leave NumPy's global generator alone
        "randn": lambda *shape: rng.standard_normal(shape),
        "verbose": -9,
    }
    strategy = cma.CMAEvolutionStrategy(begin, sigma, options)
    left = evaluations
    while left > 0:
        candidates = strategy.ask()
        scores = [-score(to_params(tunables, np.asarray(candidate))) for candidate in candidates[:left]]
        left -= len(scores)
        if len(scores) == len(candidates):
            strategy.tell(candidates, scores)
