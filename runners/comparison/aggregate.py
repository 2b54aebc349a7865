"""From episodes to figures with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from serving_gym.runners.comparison.statistics import FloatArray, bootstrap_interval, mean, over_strata


class Scored(Protocol):
    """Figures of a policy on an episode, as `runners.rollouts.rollout.Score` and `Episode` have them."""

    @property
    def metrics(self) -> dict[str, float]:
        """Figures by name."""
        ...

    @property
    def us_per_decision(self) -> float:
        """Mean time of a decision, microseconds."""
        ...


def column(episodes: Sequence[Scored], metric: str) -> FloatArray:
    """One figure over episodes, (episodes,)."""
    return np.array([episode.metrics[metric] for episode in episodes])


def column_of_some(episodes: Sequence[Scored], metric: str) -> FloatArray:
    """The same of a figure that not all have, such as one of a class of requests; NaN in those that do not."""
    return np.array([episode.metrics.get(metric, np.nan) for episode in episodes])


def names_of(episodes: Sequence[Scored]) -> tuple[str, ...]:
    """Figures that some episode has, in the order in which they occur."""
    return tuple(dict.fromkeys(name for episode in episodes for name in episode.metrics))


def aggregate(episodes: Sequence[Scored], strata: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    """Interquartile mean, its 95 % bootstrap interval and the mean of every figure; NaN where no episode says anything.

    Args:
        episodes: of one policy.
        strata: workload of each, inside which the bootstrap draws; None: all of one.
    """
    labels = np.array(["" for _ in episodes] if strata is None else list(strata))
    summary = {}
    for metric in names_of(episodes):
        values = column_of_some(episodes, metric)
        known = ~np.isnan(values)
        groups = [values[known & (labels == label)] for label in dict.fromkeys(labels.tolist())]
        groups = [group for group in groups if group.size]
        summary[metric] = {
            "iqm": float(over_strata(groups)) if groups else np.nan,
            "ci95": bootstrap_interval(groups) if groups else (np.nan, np.nan),
            "mean": float(over_strata(groups, mean)) if groups else np.nan,
        }
    return summary
