"""Aggregates metrics of episodes, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from serving_gym.runners.comparison.statistics import FloatArray, bootstrap_interval, mean, over_strata


class Scored(Protocol):
    """Metrics of a policy on an episode, as in `runners.rollouts.rollout.Score` and `Episode`."""

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics by name."""
        ...

    @property
    def us_per_decision(self) -> float:
        """Mean time of a decision, microseconds."""
        ...


def column(episodes: Sequence[Scored], metric: str) -> FloatArray:
    """One metric over episodes, (episodes,)."""
    return np.array([episode.metrics[metric] for episode in episodes])


def column_of_some(episodes: Sequence[Scored], metric: str) -> FloatArray:
    """The same for a metric that some episodes lack, such as one of a request class; NaN where it is missing."""
    return np.array([episode.metrics.get(metric, np.nan) for episode in episodes])


def names_of(episodes: Sequence[Scored]) -> tuple[str, ...]:
    """Metrics that at least one episode has, in order of occurrence."""
    return tuple(dict.fromkeys(name for episode in episodes for name in episode.metrics))


def aggregate(episodes: Sequence[Scored], strata: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    """Interquartile mean, its 95 % bootstrap interval and mean of every metric; NaN if all episodes lack it.

    Args:
        episodes: of one policy.
        strata: workload of each episode, inside which the bootstrap draws; None: one workload.
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
