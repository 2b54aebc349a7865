"""Interquartile means of validation returns over trainings, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.runners.comparison.statistics import bootstrap_interval, interquartile_mean

AXES = ("minutes", "steps")
_POINTS = 60


def curve_of(trainings: Sequence[Sequence[dict[str, Any]]], axis: str) -> dict[str, list[float]]:
    """The return over time or decisions: `x`, `iqm`, `low` and `high`, as long as each other.

    Between two validations of a training the earlier one counts, after the last one the last.

    Args:
        trainings: Validations of each, in order.
        axis: "minutes" or "steps".
    """
    first = max(rows[0][axis] for rows in trainings)
    last = max(rows[-1][axis] for rows in trainings)
    grid = np.linspace(first, max(last, first), _POINTS)
    values = np.stack([_held(rows, axis, grid) for rows in trainings])
    ends = [bootstrap_interval([column]) for column in values.T]
    return {
        "x": grid.tolist(),
        "iqm": [float(interquartile_mean(column)) for column in values.T],
        "low": [low for low, _ in ends],
        "high": [high for _, high in ends],
    }


def figure_of(values: Sequence[float]) -> dict[str, Any]:
    """Interquartile mean over trainings, and its 95 % interval."""
    return {"iqm": float(interquartile_mean(values)), "ci95": list(bootstrap_interval([values]))}


def agent_summary(seeds: Sequence[int], trainings: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """What `curves.json` says of an agent.

    Args:
        seeds: Of its trainings.
        trainings: Validations of each, in order.
    """
    kept = [max(row["return"] for row in rows) for rows in trainings]
    return {
        "curves": {axis: curve_of(trainings, axis) for axis in AXES},
        "first": figure_of([rows[0]["return"] for rows in trainings]),
        "last": figure_of([rows[-1]["return"] for rows in trainings]),
        "kept": figure_of(kept),
        "minutes": float(np.median([rows[-1]["minutes"] for rows in trainings])),
        "steps": float(np.median([rows[-1]["steps"] for rows in trainings])),
        "trainings": [
            {
                "seed": seed,
                "kept_return": best,
                "validations": [{name: row[name] for name in (*AXES, "return")} for row in rows],
            }
            for seed, best, rows in zip(seeds, kept, trainings, strict=True)
        ],
    }


def _held(rows: Sequence[dict[str, Any]], axis: str, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return of the last validation at or before each point of the grid."""
    places = np.searchsorted([row[axis] for row in rows], grid, side="right") - 1
    returns = np.array([row["return"] for row in rows], np.float64)
    held: NDArray[np.float64] = returns[np.maximum(places, 0)]
    return held
