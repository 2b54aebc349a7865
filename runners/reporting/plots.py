"""Plots of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from serving_gym.runners.reporting.output import write_atomically
from serving_gym.runners.rollouts.rollout import Episode

INTERVAL_METRICS = ("return", "slo_attainment", "goodput_rps", "ttft_p99_s", "tpot_p50_s", "gpu_hours")
_BIN_S = 10.0
_ROLE_LINES = {
    "static": "--",
    "plain": ":",
    "random": (0, (1, 4)),
    "clairvoyant": "-.",
}  # other lines are solid


def plot_intervals(path: Path, policies: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws interquartile mean and 95 % interval of the main metrics, one panel each.

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


def plot_learning_curve(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    references: Mapping[str, tuple[float, str]],
    start: str,
    title: str,
) -> None:
    """Draws the validation return over training, with the returns of other policies on the same episodes.

    References far below the curve (further than the distance of curve and best reference) are listed in the legend
    only, so that the curve stays readable.

    Args:
        path: PNG to write.
        rows: Validations in order, with `steps`, `minutes` and `return`.
        references: Return on the validation episodes and role (`runners.comparison.verdict.ROLES`), by policy.
        start: Name of the initial policy.
        title: Heading.
    """
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    axis = figure.subplots()
    steps, returns = ([row[key] for row in rows] for key in ("steps", "return"))
    axis.plot(steps, returns, color="black", marker="o", markersize=4, linewidth=2, label="agent", zorder=4)
    axis.plot(steps[:1], returns[:1], "s", color="white", markeredgecolor="black", markersize=9, zorder=5,
              label=f"training start ({start}): {returns[0]:.4g}")  # fmt: skip
    best = int(np.argmax(returns))
    axis.plot(steps[best], returns[best], "*", color="black", markersize=15, zorder=6,
              label=f"kept policy: {returns[best]:.4g}")  # fmt: skip
    floor = _floor(returns, [value for value, _ in references.values()])
    for i, (name, (value, role)) in enumerate(sorted(references.items(), key=lambda item: -item[1][0])):
        shown = value >= floor
        axis.plot([], [], color=f"C{i}", linestyle=_ROLE_LINES.get(role, "-"),
                  label=f"{name} ({role}): {value:.4g}" + ("" if shown else ", below the picture"))  # fmt: skip
        if shown:
            axis.axhline(value, color=f"C{i}", linestyle=_ROLE_LINES.get(role, "-"), linewidth=1.5)
    axis.set(xlabel="training steps (decisions)", ylabel="validation return")
    axis.set_title(title, fontsize=10)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.grid(alpha=0.25)
    _add_minutes(axis, steps, [row["minutes"] for row in rows])
    figure.legend(loc="outside right upper", fontsize=8)
    _save(figure, path)


def _floor(curve: Sequence[float], references: Sequence[float]) -> float:
    """Lowest return that is drawn."""
    low, high = min(curve), max([*curve, *references])
    return low - max(high - low, 0.05 * abs(low))


def _add_minutes(axis: Any, steps: Sequence[int], minutes: Sequence[float]) -> None:
    """Adds a second axis at the top with the time of some validations."""
    chosen = sorted({round(i) for i in np.linspace(0, len(steps) - 1, min(len(steps), 6)).tolist()})
    top = axis.secondary_xaxis("top")
    top.set_xticks([steps[i] for i in chosen], [f"{minutes[i]:.2g}" for i in chosen])
    top.set_xlabel("minutes")


def plot_timeline(path: Path, episodes: Mapping[str, Episode], ttft_slo_s: Sequence[float]) -> None:
    """Draws arrivals, requests in the system, and P90 TTFT by time of arrival, over one episode.

    Args:
        path: PNG to write.
        episodes: one episode of each policy, all of the same seed.
        ttft_slo_s: TTFT SLOs to draw, seconds.
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
