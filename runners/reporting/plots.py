"""Plots of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from serving_gym.runners.reporting.output import write_atomically
from serving_gym.runners.rollouts.rollout import Episode

INTERVAL_METRICS = ("return", "slo_attainment", "goodput_rps", "ttft_p99_s", "tpot_p50_s", "gpu_hours")
_BIN_S = 10.0


def plot_intervals(path: Path, policies: Mapping[str, Mapping[str, Any]]) -> None:
    """Interquartile mean and 95 % interval of the main figures, one panel each.

    Args:
        path: PNG to write.
        policies: the `policies` of `comparison.json`.
    """
    figure = Figure(figsize=(12, 0.9 + 0.8 * len(policies)), layout="constrained")
    axes = figure.subplots(1, len(INTERVAL_METRICS), sharey=True)
    names = list(policies)
    for axis, metric in zip(axes, INTERVAL_METRICS, strict=True):
        for row, name in enumerate(names):
            entry = policies[name]["metrics"][metric]
            centre, (low, high) = entry["iqm"], entry["ci95"]
            if np.isfinite([centre, low, high]).all():
                axis.plot([low, high], [row, row], color=f"C{row}", linewidth=3, alpha=0.5)
                axis.plot([centre], [row], marker="o", color=f"C{row}")
            else:
                axis.text(0.5, row, "inf", ha="center", transform=axis.get_yaxis_transform())
        axis.set_title(metric, fontsize=9)
        axis.tick_params(labelsize=8)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    _save(figure, path)


def plot_timeline(path: Path, episodes: Mapping[str, Episode], ttft_slo_s: Sequence[float]) -> None:
    """Arrivals, requests in the system, and P90 TTFT by time of arrival, over one episode.

    Args:
        path: PNG to write.
        episodes: one episode of each policy, all of the same seed.
        ttft_slo_s: promises to draw, seconds.
    """
    figure = Figure(figsize=(12, 7), layout="constrained")
    rate, inside, ttft = figure.subplots(3, 1, sharex=True)
    for name, episode in episodes.items():
        records = episode.records
        edges = np.arange(0.0, episode.duration_s + _BIN_S, _BIN_S)
        if name == next(iter(episodes)):
            rate.stairs(np.histogram(records.arrival_s, edges)[0] / _BIN_S, edges, color="black")
        gone = np.sort(np.where(np.isnan(records.finish_s), np.inf, records.finish_s))
        inside.plot(
            edges, np.searchsorted(records.arrival_s, edges) - np.searchsorted(gone, edges), label=name
        )
        ttft.stairs(_p90_by_bin(records.arrival_s, records.ttft_s, edges), edges, label=name, baseline=None)
    for slo_s in ttft_slo_s:
        ttft.axhline(slo_s, color="grey", linestyle=":", linewidth=1)
    rate.set_ylabel("arrivals, requests/s")
    inside.set_ylabel("requests in system")
    ttft.set(ylabel="P90 TTFT, s", xlabel="time, s", yscale="log")
    inside.legend(fontsize=8)
    _save(figure, path)


def _p90_by_bin(arrival_s: Any, ttft_s: Any, edges: Any) -> Any:
    place = np.digitize(arrival_s, edges) - 1
    finite = np.isfinite(ttft_s)
    groups = [ttft_s[finite & (place == b)] for b in range(len(edges) - 1)]
    return np.array([np.percentile(group, 90) if group.size else np.nan for group in groups])


def _save(figure: Figure, path: Path) -> None:
    with mpl.rc_context({"savefig.dpi": 120}):
        write_atomically(path, lambda partial: figure.savefig(partial, format="png"))
