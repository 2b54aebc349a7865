"""Dominance and hypervolume over two metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def not_dominated(costs: FloatArray) -> NDArray[np.bool_]:
    """(N,), which points no other is at least as good as in both, and better in one.

    Args:
        costs: (N, 2), lower is better.
    """
    no_worse = (costs[:, None, :] <= costs[None, :, :]).all(axis=2)  # i no worse than j
    better = (costs[:, None, :] < costs[None, :, :]).any(axis=2)
    dominated: NDArray[np.bool_] = np.any(no_worse & better, axis=0)
    return np.logical_not(dominated)


def hypervolume(costs: FloatArray, reference: Sequence[float]) -> float:
    """Area that points dominate, up to a reference point (Zitzler and Thiele 1999).

    Args:
        costs: (N, 2), lower is better; points that are no better than the reference in both add nothing.
        reference: The worst value of each.
    """
    inside = costs[(costs < np.asarray(reference)).all(axis=1)]
    area, above = 0.0, float(reference[1])
    for first, second in inside[np.lexsort((inside[:, 1], inside[:, 0]))].tolist():
        if second < above:
            area += (reference[0] - first) * (above - second)
            above = second
    return area
