"""Figures of a report, as SVG that stands in the page."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter
from numpy.typing import NDArray

from serving_gym.runners.html.series import Series
from serving_gym.runners.reporting.figure_style import AGENT_LOOK, COLOURS, Look

Looks = Mapping[str, Look]  # by policy
STYLES = ("-", "--", "-.", ":")  # so that colour is not all that tells lines apart
WIDTH_IN = 9.0
_POINTS = 400  # of a distribution's curve
_MOST_MARKS = 150


def style_of(place: int) -> dict[str, Any]:
    """Colour and line of the n-th class or engine."""
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": STYLES[(place // 2) % len(STYLES)]}


def line_of(policy: str, place: int, looks: Looks) -> dict[str, Any]:
    """A policy's colour, and a line by its place in the figure; without a look, both by its place."""
    style = style_of(place)
    return style | {"color": looks[policy].colour} if policy in looks else style


def svg(figure: Figure, name: str) -> str:
    """A figure as an SVG element, whose ids begin with a name of their own.

    Args:
        figure: The figure.
        name: Distinct from that of the page's other figures.
    """
    file = io.StringIO()
    with mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "font.size": 9}
    ):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return re.sub(
        r'(<svg[^>]*?) width="[^"]*"',
        r"\1",
        re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1),
        count=1,
    )


def time_series(episodes: Mapping[str, Series], capacity: str, looks: Looks) -> Figure:
    """Load, queues, KV cache and layouts over time, by policy.

    Args:
        episodes: By policy, on the same arrivals.
        capacity: What is in service: engines, instances.
        looks: Of the policies.
    """
    with_ratio = all(series.kv_usage_ratio.size for series in episodes.values())
    with_serving = any(np.ptp(series.serving) > 0 for series in episodes.values() if series.serving.size)
    with_layouts = any(len(series.layouts) > 1 for series in episodes.values())
    rows = 4 + with_serving + with_layouts
    height = 1.35 * rows + 0.5 + (0.25 * len(episodes) if with_layouts else 0.0)
    figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
    axes = list(figure.subplots(rows, 1, sharex=True))
    first = next(iter(episodes.values()))
    axes[0].stairs(first.arrivals_rps, first.edges_s, color="black", linewidth=1)
    axes[0].set_ylabel("arrivals\n1/s")
    for place, (name, series) in enumerate(episodes.items()):
        line = line_of(name, place, looks) | {"linewidth": 1.2}
        axes[1].plot(series.edges_s, series.waiting, label=name, **line)
        axes[2].plot(series.edges_s, series.running, **line)
        if with_ratio:
            axes[3].plot(series.seen_s, series.kv_usage_ratio, **line)
        else:
            axes[3].plot(series.edges_s, series.kv_tokens, **line)
        if with_serving and series.serving.size:
            axes[4].step(series.seen_s, series.serving, where="post", **line)
        if len(episodes) == 1:
            _mark(axes, series)
    axes[1].set_ylabel("waiting\nrequests")
    axes[2].set_ylabel("running\nrequests")
    axes[3].set_ylabel("KV cache\nin use" if with_ratio else "KV cache\ntokens")
    axes[3].yaxis.set_major_formatter(PercentFormatter(1.0) if with_ratio else EngFormatter(sep=""))
    if with_serving:
        axes[4].set_ylabel(f"{capacity}\nin service")
    if with_layouts:
        _layouts(axes[-1], episodes)
    for axis in axes[: rows - with_layouts]:
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
    axes[-1].set_xlabel("time, s")
    if len(episodes) > 1:
        figure.legend(*axes[1].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    return figure


def _mark(axes: Sequence[Any], series: Series) -> None:
    """Lines where decisions changed something."""
    marks = series.marks[:: max(len(series.marks) // _MOST_MARKS, 1)]
    for mark in marks:
        for axis in axes:
            axis.axvline(mark.at_s, color="#999999", linewidth=0.6, alpha=0.7, zorder=0)


def _layouts(axis: Any, episodes: Mapping[str, Series]) -> None:
    """Bars of layouts, one row a policy."""
    names = list(dict.fromkeys(layout for series in episodes.values() for _, layout in series.layouts))
    hatches = ("", "///", "...", "xxx", "\\\\\\", "+++")
    for row, series in enumerate(episodes.values()):
        ends = [at_s for at_s, _ in series.layouts[1:]] + [float(series.edges_s[-1])]
        for (begin, layout), end in zip(series.layouts, ends, strict=True):
            place = names.index(layout)
            axis.broken_barh(
                [(begin, end - begin)],
                (row - 0.4, 0.8),
                facecolors=COLOURS[place % len(COLOURS)],
                hatch=hatches[(place // len(COLOURS)) % len(hatches)],
                edgecolor="white",
                linewidth=0.3,
            )
    for place, layout in enumerate(names[:12]):
        axis.plot([], [], "s", color=COLOURS[place % len(COLOURS)], label=layout)
    axis.set_yticks(range(len(episodes)), list(episodes))
    axis.set_ylim(len(episodes) - 0.5, -0.5)
    axis.legend(
        title="layout", fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.45), frameon=False
    )


def distributions(
    groups: Mapping[str, pd.DataFrame], slos_s: Mapping[str, Mapping[str, float]], looks: Looks
) -> Figure:
    """Cumulative distributions of TTFT and TPOT; what a request without an end misses is missing at the top.

    Args:
        groups: Requests by class or policy.
        slos_s: `ttft_s` and `tpot_s` by class; drawn where a group has its name, or there is one class.
        looks: Of the policies; classes have none.
    """
    figure = Figure(figsize=(WIDTH_IN, 3.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for place, (name, requests) in enumerate(groups.items()):
        for axis, latency in zip(axes, (ttft_of(requests), tpot_of(requests)), strict=True):
            known = latency[~np.isnan(latency)]
            if not known.size:
                continue
            share = np.linspace(0.0, 1.0, min(_POINTS, known.size))
            curve = np.quantile(np.sort(known), share, method="higher")
            finite = np.isfinite(curve) & (curve > 0)
            line = line_of(name, place, looks)
            axis.plot(curve[finite], share[finite], label=f"{name} ({len(requests):,})", **line)
    labels = {"ttft_s": "time to first token, s", "tpot_s": "time per output token, s"}
    for axis, (key, label) in zip(axes, labels.items(), strict=True):
        for place, name in enumerate(groups):
            slo = slos_s.get(name) or (
                next(iter(slos_s.values())) if len(slos_s) == 1 and not place else None
            )
            if slo:
                colour = COLOURS[place % len(COLOURS)] if name in slos_s else "#555555"
                axis.axvline(slo[key], color=colour, linestyle=":", linewidth=1)
        axis.set(xscale="log", xlabel=label)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("share of requests")
    axes[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    return figure


def ttft_of(requests: pd.DataFrame) -> NDArray[np.float64]:
    """TTFT of requests, s; infinite where one did not finish."""
    ttft_s = (requests["first_token_s"] - requests["arrival_s"]).to_numpy(np.float64)
    return np.where(requests["outcome"] == "finished", ttft_s, np.inf)


def tpot_of(requests: pd.DataFrame) -> NDArray[np.float64]:
    """TPOT of requests, s; NaN for one token, infinite where one did not finish."""
    gaps = requests["generated_tokens"].to_numpy(np.float64) - 1.0
    spans = (requests["finish_s"] - requests["first_token_s"]).to_numpy(np.float64)
    tpot_s = np.divide(spans, gaps, out=np.full(len(gaps), np.nan), where=gaps > 0)
    return np.where(requests["outcome"] == "finished", tpot_s, np.inf)


def gains(rows: Sequence[tuple[str, float, float, float]], label: str) -> Figure:
    """Paired gains with their intervals; one that excludes 0 is filled.

    Args:
        rows: Name, gain and interval, shares.
        label: Of the axis.
    """
    figure = Figure(figsize=(WIDTH_IN, 0.8 + 0.3 * len(rows)), layout="constrained")
    axis = figure.subplots()
    for place, (_, centre, low, high) in enumerate(rows):
        better, worse = low > 0, high < 0
        colour = COLOURS[0] if better else COLOURS[1] if worse else "#777777"
        axis.plot([low, high], [place, place], color=colour, linewidth=2)
        marker = "^" if better else "v" if worse else "o"
        axis.plot(
            [centre], [place], marker=marker, color=colour, markerfacecolor=colour if better or worse else "w"
        )
    axis.axvline(0.0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    spread = [abs(value) for _, *values in rows for value in values if np.isfinite(value)]
    if spread and max(spread) > 2.0:
        axis.set_xscale("symlog", linthresh=0.5)
    axis.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.set_xlabel(label)
    axis.grid(alpha=0.25, axis="x")
    return figure


def trade_off(policies: Mapping[str, Mapping[str, Any]], cost: str, quality: str, looks: Looks) -> Figure:
    """Cost against quality, with the intervals of both; up and to the left is better.

    Args:
        policies: `policies` of `comparison.json`.
        cost: Metric of the horizontal axis.
        quality: Metric of the vertical axis.
        looks: Of the policies.
    """
    figure = Figure(figsize=(WIDTH_IN, 4.2), layout="constrained")
    axis = figure.subplots()
    for name, entry in policies.items():
        x, y = entry["metrics"][cost], entry["metrics"][quality]
        spans = [
            [[value["iqm"] - value["ci95"][0]], [value["ci95"][1] - value["iqm"]]]
            if None not in (value["iqm"], *value["ci95"])
            else None
            for value in (x, y)
        ]
        if x["iqm"] is not None and y["iqm"] is not None:
            axis.errorbar(
                x["iqm"],
                y["iqm"],
                xerr=spans[0] if spans[0] is None else np.maximum(spans[0], 0.0),
                yerr=spans[1] if spans[1] is None else np.maximum(spans[1], 0.0),
                marker=looks[name].mark,
                color=looks[name].colour,
                linestyle="",
                elinewidth=0.8,
                label=name,
            )
    axis.set(xlabel=f"{cost} (less is better)", ylabel=f"{quality} (more is better)")
    axis.grid(alpha=0.25)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def learning(rows: Sequence[Mapping[str, Any]], references: Mapping[str, float], looks: Looks) -> Figure:
    """Validation return over training, with the returns of other policies.

    Args:
        rows: Validations with `steps` and `return`.
        references: Returns of other policies on the same episodes.
        looks: Of the policies.
    """
    figure = Figure(figsize=(WIDTH_IN, 3.6), layout="constrained")
    axis = figure.subplots()
    steps, returns = ([row[key] for row in rows] for key in ("steps", "return"))
    axis.plot(steps, returns, color=AGENT_LOOK.colour, marker=AGENT_LOOK.mark, markersize=3, label="agent")
    lowest = min(returns) - max(max([*returns, *references.values()]) - min(returns), 1e-9)
    for place, (name, value) in enumerate(sorted(references.items(), key=lambda item: -item[1])):
        line = line_of(name, place, looks)
        if value >= lowest:
            axis.axhline(value, **line, linewidth=1.2, label=f"{name}: {value:.4g}")
        else:
            axis.plot([], [], **line, label=f"{name}: {value:.4g}, below")
    axis.set(xlabel="training steps (decisions)", ylabel="validation return (more is better)")
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.grid(alpha=0.25)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def watched(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """What a monitor has read: requests, KV cache and tokens a second of each engine.

    Args:
        rows: Of `readings.jsonl`.
    """
    figure = Figure(figsize=(WIDTH_IN, 5.0), layout="constrained")
    panels = (
        ("num_running", "batch"),
        ("num_waiting", "queue"),
        ("kv_usage_ratio", "KV cache\nin use"),
        ("generated_tokens_per_s", "generated\ntokens/s"),
    )
    axes = figure.subplots(len(panels), 1, sharex=True)
    urls = list(
        dict.fromkeys(
            server["url"] for row in rows for server in row["servers"] if server["kind"] == "engine"
        )
    )
    for place, url in enumerate(urls):
        of = [
            (row["at_s"], server)
            for row in rows
            for server in row["servers"]
            if server["url"] == url and "num_running" in server
        ]
        for axis, (key, label) in zip(axes, panels, strict=True):
            values = [np.nan if server["stale"] else server.get(key) for _, server in of]
            axis.plot(
                [at_s for at_s, _ in of],
                [np.nan if value is None else value for value in values],
                label=url.partition("://")[2],
                **style_of(place),
            )
            axis.set_ylabel(label)
    for axis in axes:
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
    axes[2].yaxis.set_major_formatter(PercentFormatter(1.0))
    axes[-1].set_xlabel("time, s")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=8)
    return figure
