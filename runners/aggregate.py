"""From episodes to figures with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from runners.rollout import Episode
from runners.statistics import FloatArray, bootstrap_interval, interquartile_mean


def column(episodes: Sequence[Episode], metric: str) -> FloatArray:
    """One figure over episodes, (episodes,)."""
    return np.array([episode.metrics[metric] for episode in episodes])


def aggregate(episodes: Sequence[Episode]) -> dict[str, dict[str, Any]]:
    """Interquartile mean and 95 % bootstrap interval of every figure; NaN where no episode says anything."""
    summary = {}
    for metric in episodes[0].metrics:
        values = column(episodes, metric)
        values = values[~np.isnan(values)]
        known = values.size > 0
        summary[metric] = {
            "iqm": float(interquartile_mean(values)) if known else np.nan,
            "ci95": bootstrap_interval([values]) if known else (np.nan, np.nan),
        }
    return summary
