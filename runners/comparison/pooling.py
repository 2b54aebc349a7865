"""Pools several trainings of one agent, to estimate the result of a new training on new episodes.

A single training says how good one set of weights is; a learner is judged by several, each from its own seed. Every
member runs the same episodes. Intervals are bootstrapped over both at once: members are drawn with replacement, and so
are episodes, inside each workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from serving_gym.runners.comparison.aggregate import Scored, column
from serving_gym.runners.comparison.statistics import (
    FloatArray,
    crossed_interval,
    over_strata,
    probability_of_improvement,
    relative_gains,
)

Results = Mapping[str, Sequence[Scored]]


def pooled(
    results: Results, pools: Mapping[str, Sequence[str]], strata: Sequence[str] | None = None
) -> dict[str, Any]:
    """The part of `comparison.json` on each pool; `{}` without pools.

    Args:
        results: Episodes by policy, all over the same seeds in the same order.
        pools: Members by pattern.
        strata: Workload of each seed, where there are several.
    """
    return {pattern: _pool(results, members, strata) for pattern, members in pools.items()}


def _pool(results: Results, members: Sequence[str], strata: Sequence[str] | None) -> dict[str, Any]:
    returns = {name: column(episodes, "return") for name, episodes in results.items()}
    others = [name for name in results if name not in members]
    labels = np.zeros(len(returns[members[0]])) if strata is None else np.asarray(strata)
    tables = [
        np.stack([returns[name][labels == label] for name in members])
        for label in dict.fromkeys(labels.tolist())
    ]
    return {
        "members": list(members),
        "return": _figure(tables),
        "relative_improvement": {other: _figure(_gains(returns, members, other, strata)) for other in others},
        "probability_of_improvement": {
            other: float(
                np.mean([probability_of_improvement(returns[name], returns[other]) for name in members])
            )
            for other in others
        },
        "us_per_decision": float(
            np.median([episode.us_per_decision for name in members for episode in results[name]])
        ),
    }


def _gains(
    returns: Mapping[str, FloatArray], members: Sequence[str], other: str, strata: Sequence[str] | None
) -> list[FloatArray]:
    """Gains over another policy, (members, episodes) for each workload."""
    each = [relative_gains(returns[name], returns[other], strata) for name in members]
    return [np.stack(rows) for rows in zip(*each, strict=True)]


def _figure(tables: Sequence[FloatArray]) -> dict[str, Any]:
    """Interquartile mean over members and episodes, with its interval."""
    return {
        "iqm": float(over_strata([table.ravel() for table in tables])),
        "ci95": crossed_interval(tables),
    }
