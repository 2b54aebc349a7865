"""Figures of comparisons and trainings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

from serving_gym.runners.reporting.figure_style import (
    PNG,
    Look,
    bin_length_s,
    clean,
    log_ticks,
    looks_of,
    save,
    short,
    time_axis,
)
from serving_gym.runners.rollouts.rollout import Episode

FloatArray = NDArray[np.float64]

_LOG_RATIO = 30.0  # of the largest to the smallest value, from which a scale is logarithmic
_SAME = 0.01  # relative difference up to which GPU-hours are the same, and are not shown
_ROLE_LINES = {
    "static": "--",
    "plain": ":",
    "random": (0, (1, 4)),
    "clairvoyant": "-.",
}  # other lines are solid


@dataclass(frozen=True)
class Metric:
    """A metric as a figure shows it.

    Attributes:
        label: Name with unit.
        better: "higher" or "lower".
        factor: From the metric's unit to the label's.
    """

    label: str
    better: str
    factor: float = 1.0


INTERVAL_METRICS = {
    "return": Metric("return", "higher"),
    "slo_attainment": Metric("SLO attainment, %", "higher", 100.0),
    "goodput_rps": Metric("goodput, requests/s", "higher"),
    "ttft_p99_s": Metric("P99 TTFT, s", "lower"),
    "tpot_p50_s": Metric("median TPOT, ms", "lower", 1000.0),
}
_GPU_HOURS = {"gpu_hours": Metric("GPU-hours", "lower")}
_PRICE = {"cost_usd": Metric("rent, US$", "lower")}


def plot_intervals(
    path: Path,
    policies: Mapping[str, Mapping[str, Any]],
    pools: Mapping[str, Mapping[str, Any]] | None = None,
    figures: str = PNG,
    learned: Collection[str] = (),
) -> None:
    """Draws interquartile mean and 95 % interval of the main metrics, one panel each, the highest return on top.

    Trainings that are pooled share a row: the pool's mean and, for the return, its interval over trainings and
    episodes; small open marks are the trainings.

    Args:
        path: PNG to write.
        policies: The `policies` of `comparison.json`.
        pools: Its `pools`.
        figures: `png`, or `pdf` for a PDF beside it.
        learned: Its `learned`: a single one, or a single pool of them, is drawn in black.
    """
    rows = _rows(policies, pools or {})
    looks = looks_of(rows, _agent(_row_names(learned, pools or {})))
    metrics = _shown(policies)
    figure = Figure(figsize=(1.9 * len(metrics) + 2.2, 1.1 + 0.36 * len(rows)), layout="constrained")
    axes = figure.subplots(1, len(metrics), sharey=True)
    for axis, (name, metric) in zip(axes, metrics.items(), strict=True):
        clean(axis)
        _scale(axis, rows, name, metric)
        for place, (policy, row) in enumerate(rows.items()):
            _draw_row(axis, place, row, name, metric.factor, looks[policy])
        axis.set_title(f"{metric.label}\n({metric.better} is better)", fontsize=9)
        axis.tick_params(labelsize=8)
    axes[0].set_yticks(range(len(rows)), [row.label for row in rows.values()])
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    save(figure, path, figures)


def _shown(policies: Mapping[str, Mapping[str, Any]]) -> dict[str, Metric]:
    """Metrics of the panels: rent in place of GPU-hours where machines have prices; neither where all use the same."""
    figures = [entry["metrics"] for entry in policies.values()]
    priced = all("cost_usd" in entry for entry in figures)
    usage, name = (_PRICE, "cost_usd") if priced else (_GPU_HOURS, "gpu_hours")
    used = [entry[name]["iqm"] for entry in figures]
    return INTERVAL_METRICS | (usage if max(used) > (1 + _SAME) * min(used) else {})


@dataclass(frozen=True)
class _Row:
    """A row of the intervals: a policy, or trainings that are pooled.

    Attributes:
        label: What is written at its left.
        entries: The policy's metrics, or those of each training.
        pooled: Interquartile mean and interval of the pool's return; None: it is one policy.
    """

    label: str
    entries: tuple[Mapping[str, Any], ...]
    pooled: Mapping[str, Any] | None = None

    def figure(self, metric: str) -> tuple[float, float, float]:
        """Centre and both ends of the interval; the ends are NaN where there is none."""
        if self.pooled is not None:
            if metric == "return":
                return (self.pooled["iqm"], *self.pooled["ci95"])
            return (float(np.mean(self.members(metric))), np.nan, np.nan)
        entry = self.entries[0][metric]
        return (entry["iqm"], *entry["ci95"])

    def members(self, metric: str) -> list[float]:
        """Centres of the trainings; none of a single policy."""
        return [] if self.pooled is None else [entry[metric]["iqm"] for entry in self.entries]

    def values(self, metric: str) -> list[float]:
        """All finite values that are drawn."""
        return [value for value in (*self.figure(metric), *self.members(metric)) if np.isfinite(value)]


def _rows(
    policies: Mapping[str, Mapping[str, Any]], pools: Mapping[str, Mapping[str, Any]]
) -> dict[str, _Row]:
    """Rows by policy or pattern, the highest return first."""
    members = {name for pool in pools.values() for name in pool["members"]}
    rows = {
        name: _Row(short(name), (entry["metrics"],))
        for name, entry in policies.items()
        if name not in members
    }
    for pattern, pool in pools.items():
        label = f"{short(pattern)} ({len(pool['members'])} trainings)"
        entries = tuple(policies[name]["metrics"] for name in pool["members"])
        rows[pattern] = _Row(label, entries, pool["return"])
    return dict(sorted(rows.items(), key=lambda item: -item[1].figure("return")[0]))


def _scale(axis: Any, rows: Mapping[str, _Row], name: str, metric: Metric) -> None:
    """A logarithmic scale where values differ by much, else few ticks."""
    values = np.array([value for row in rows.values() for value in row.values(name)]) * metric.factor
    if values.size and values.min() > 0 and values.max() > _LOG_RATIO * values.min():
        axis.set_xscale("log")
        log_ticks(axis.xaxis, values.tolist())
    else:
        axis.xaxis.set_major_locator(MaxNLocator(4))


def _draw_row(axis: Any, place: int, row: _Row, metric: str, factor: float, look: Look) -> None:
    centre, low, high = row.figure(metric)
    if not np.isfinite(centre):
        axis.text(0.97, place, "∞", ha="right", va="center", transform=axis.get_yaxis_transform())
        return
    for value in row.members(metric):
        if np.isfinite(value):
            axis.plot(
                factor * value, place, look.mark, markersize=4, color=look.colour, fillstyle="none", alpha=0.7
            )
    if np.isfinite([low, high]).all():
        axis.plot([factor * low, factor * high], [place, place], color=look.colour, linewidth=2.5, alpha=0.45)
    axis.plot(factor * centre, place, marker=look.mark, markersize=6, color=look.colour)


def plot_learning_curve(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    references: Mapping[str, tuple[float, str]],
    start: str,
    title: str,
    agent: str = "agent",
    figures: str = PNG,
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
        agent: Name of the agent.
        figures: `png`, or `pdf` for a PDF beside it.
    """
    looks = looks_of(references, agent)
    own = looks[agent].colour
    figure = Figure(figsize=(10, 5.0), layout="constrained")
    axis = figure.subplots()
    clean(axis)
    steps, returns = ([row[key] for row in rows] for key in ("steps", "return"))
    axis.plot(steps, returns, color=own, marker="o", markersize=4, linewidth=2, label=agent, zorder=4)
    axis.plot(steps[:1], returns[:1], "s", color="white", markeredgecolor=own, markersize=9, zorder=5,
              label=f"start of training ({start}): {returns[0]:.4g}")  # fmt: skip
    best = int(np.argmax(returns))
    axis.plot(steps[best], returns[best], "*", color=own, markeredgecolor="white", markersize=17, zorder=6,
              label=f"kept policy: {returns[best]:.4g}")  # fmt: skip
    floor = _floor(returns, [value for value, _ in references.values()])
    for name, (value, role) in sorted(references.items(), key=lambda item: -item[1][0]):
        shown, line = value >= floor, _ROLE_LINES.get(role, "-")
        axis.plot([], [], color=looks[name].colour, linestyle=line,
                  label=f"{short(name)} ({role}): {value:.4g}" + ("" if shown else ", below the picture"))  # fmt: skip
        if shown:
            axis.axhline(value, color=looks[name].colour, linestyle=line, linewidth=1.5)
    axis.set(xlabel="training steps (decisions)", ylabel="validation return (higher is better)")
    axis.set_title(title, fontsize=10)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    _add_minutes(axis, steps, [row["minutes"] for row in rows])
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    save(figure, path, figures)


def _floor(curve: Sequence[float], references: Sequence[float]) -> float:
    """Lowest return that is drawn."""
    low, high = min(curve), max([*curve, *references])
    return low - max(high - low, 0.05 * abs(low))


def _add_minutes(axis: Any, steps: Sequence[int], minutes: Sequence[float]) -> None:
    """Adds a second axis at the top with the time of some validations."""
    chosen = sorted({round(i) for i in np.linspace(0, len(steps) - 1, min(len(steps), 6)).tolist()})
    top = axis.secondary_xaxis("top")
    top.set_xticks([steps[i] for i in chosen], [f"{minutes[i]:.2g}" for i in chosen])
    top.set_xlabel("time of training, min")


def plot_timeline(
    path: Path,
    episodes: Mapping[str, Episode],
    slos_s: Sequence[tuple[float, float]],
    pools: Mapping[str, Mapping[str, Any]] | None = None,
    figures: str = PNG,
    learned: Collection[str] = (),
) -> None:
    """Draws arrivals, requests in the system, and P90 TTFT and TPOT by time of arrival, over one episode.

    Bins fit the length of the episode. A bin whose P90 is infinite, because requests were refused or never finished,
    has a mark at the upper edge. Trainings that are pooled have one colour.

    Args:
        path: PNG to write.
        episodes: One episode of each policy, all of the same seed.
        slos_s: TTFT and TPOT of the SLO of each request class, seconds.
        pools: The `pools` of `comparison.json`.
        figures: `png`, or `pdf` for a PDF beside it.
        learned: As of `plot_intervals`.
    """
    names = _row_names(episodes, pools or {})
    looks = looks_of(names.values(), _agent(_row_names(learned, pools or {})))
    duration_s = max(episode.duration_s for episode in episodes.values())
    length_s = bin_length_s(duration_s)
    edges = np.arange(0.0, duration_s + length_s, length_s)
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    rate, inside, ttft, tpot = figure.subplots(4, 1, sharex=True, height_ratios=(1, 1.3, 1.3, 1.3))
    first = next(iter(episodes.values())).records
    rate.stairs(np.histogram(first.arrival_s, edges)[0] / length_s, edges, fill=True, color="#b0b0b0")
    for name, episode in episodes.items():
        look, records = looks[names[name]], episode.records
        gone = np.sort(np.where(np.isnan(records.finish_s), np.inf, records.finish_s))
        number = np.searchsorted(records.arrival_s, edges) - np.searchsorted(gone, edges)
        inside.plot(edges, number, color=look.colour, linewidth=1.4)
        _draw_p90(ttft, records.arrival_s, records.ttft_s, edges, look)
        _draw_p90(tpot, records.arrival_s, 1000.0 * records.tpot_s, edges, look)
    for axis, limits in ((ttft, {slo[0] for slo in slos_s}), (tpot, {1000.0 * slo[1] for slo in slos_s})):
        _draw_slos(axis, limits)
    for axis in (ttft, tpot):
        drawn = [height for line in axis.get_lines() for height in np.asarray(line.get_ydata(), float)]
        log_ticks(axis.yaxis, drawn)
    _label(rate, "arrivals,\nrequests/s")
    _label(inside, "in the system,\nrequests\n(lower is better)")
    _label(ttft, "P90 TTFT, s\n(lower is better)")
    _label(tpot, "P90 TPOT, ms\n(lower is better)")
    time_axis(tpot, duration_s)
    rate.set_title(
        f"one episode in bins of {length_s:g} s, latencies by time of arrival", fontsize=9, loc="left"
    )
    handles = [
        Line2D([], [], color=looks[name].colour, label=short(name)) for name in dict.fromkeys(names.values())
    ]
    figure.legend(
        handles=handles, loc="outside upper right", ncols=min(len(handles), 4), fontsize=8, frameon=False
    )
    save(figure, path, figures)


def _row_names(policies: Iterable[str], pools: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """By policy, the name it is drawn under: its own, or the pattern of the trainings that it is pooled with."""
    patterns = {name: pattern for pattern, pool in pools.items() for name in pool["members"]}
    return {name: patterns.get(name, name) for name in policies}


def _agent(learned: Mapping[str, str]) -> str | None:
    """The row of the learned policies, if they share one."""
    rows = set(learned.values())
    return rows.pop() if len(rows) == 1 else None


def _draw_slos(axis: Any, limits: Iterable[float]) -> None:
    """A dashed line at each SLO that is in the picture, without widening it."""
    low, high = axis.get_ylim()
    for limit in sorted(limits):
        if low <= limit <= 3 * high:
            axis.axhline(limit, color="black", linestyle="--", linewidth=0.9)
            axis.text(
                1.003, limit, f"SLO {limit:g}", transform=axis.get_yaxis_transform(), fontsize=8, va="center"
            )


def _label(axis: Any, label: str) -> None:
    axis.set_ylabel(label, fontsize=8)
    axis.tick_params(labelsize=8)
    clean(axis)


def _draw_p90(axis: Any, arrival_s: FloatArray, values: FloatArray, edges: FloatArray, look: Look) -> None:
    """The 90th percentile of each bin, on a logarithmic scale; infinite ones as marks at the upper edge."""
    middles, heights = (edges[:-1] + edges[1:]) / 2, _p90_by_bin(arrival_s, values, edges)
    finite = np.where(np.isinf(heights), np.nan, heights)
    axis.plot(middles, finite, color=look.colour, linewidth=1.4, marker=".", markersize=3)
    lost = middles[np.isinf(heights)]
    edge = axis.get_xaxis_transform()
    axis.plot(lost, np.full(len(lost), 0.97), "^", color=look.colour, markersize=4, transform=edge)
    axis.set_yscale("log")


def _p90_by_bin(arrival_s: FloatArray, values: FloatArray, edges: FloatArray) -> FloatArray:
    """(bins,), 90th percentile by time of arrival; NaN in bins without values."""
    known = ~np.isnan(values)
    place = np.digitize(arrival_s, edges) - 1
    groups = [values[known & (place == b)] for b in range(len(edges) - 1)]
    return np.array([np.percentile(group, 90, method="higher") if group.size else np.nan for group in groups])
