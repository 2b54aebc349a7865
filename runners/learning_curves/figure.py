"""Draws learning curves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from serving_gym.runners.reporting.figure_style import PNG, clean, looks_of, save, short

_LABELS = {"minutes": "time of training, min", "steps": "decisions"}
_LOG_RATIO = 5.0  # between agents' decisions, from which their axis is logarithmic


def plot_curves(path: Path, results: Mapping[str, Any], figures: str = PNG) -> None:
    """Draws the interquartile mean and its 95 % interval over minutes and over decisions, one line an agent.

    Lines of other policies that lie far below all curves are listed in the legend only.

    Args:
        path: PNG to write.
        results: The content of `curves.json`.
        figures: `png`, or `pdf` for a PDF beside it.
    """
    agents, references = results["agents"], results["references"]
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    panels = dict(zip(_LABELS, figure.subplots(1, 2, sharey=True), strict=True))
    lowest = min(min(each["curves"]["minutes"]["low"]) for each in agents.values())
    highest = max(max(each["curves"]["minutes"]["high"]) for each in agents.values())
    floor = lowest - 0.25 * max(highest - lowest, 0.05 * abs(lowest))
    first = next(iter(agents))
    looks = looks_of([*agents, *references], first)
    for axis_name, axis in panels.items():
        clean(axis)
        for name, each in agents.items():
            _draw_agent(axis, axis_name, name, each, looks[name].colour)
        for name, reference in references.items():
            if reference["return"] >= floor:
                axis.axhline(reference["return"], color=looks[name].colour, linestyle="--", linewidth=1.1)
        axis.set_xlabel(_LABELS[axis_name])
    ends = [each["curves"]["steps"]["x"][-1] for each in agents.values()]
    if max(ends) > _LOG_RATIO * min(ends):
        least = max(min(ends) / 10.0, 1.0)
        panels["steps"].set_xscale("symlog", linthresh=least, linscale=0.3)
        panels["steps"].set_xlim(left=0.0)
    else:
        panels["steps"].xaxis.set_major_formatter(EngFormatter(sep=""))
    for name, reference in sorted(references.items(), key=lambda item: -item[1]["return"]):
        below = "" if reference["return"] >= floor else ", below the picture"
        label = f"{short(name)} ({reference['role']}): {reference['return']:.4g}{below}"
        panels["minutes"].plot([], [], color=looks[name].colour, linestyle="--", label=label)
    panels["minutes"].set_ylabel("validation return (higher is better)")
    figure.suptitle(
        f"{results['env']} on {results['workload']}: interquartile mean over trainings, bootstrap 95 % interval, "
        f"{results['validation_seeds']} validation episodes",
        fontsize=10,
        x=0.01,
        ha="left",
    )
    figure.legend(
        *panels["minutes"].get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False
    )
    save(figure, path, figures)


def _draw_agent(axis: Any, axis_name: str, name: str, each: Mapping[str, Any], colour: str) -> None:
    curve = each["curves"][axis_name]
    count = len(each["trainings"])
    label = f"{name}, {count} training{'s' if count > 1 else ''}: {each['last']['iqm']:.4g}"
    line = {"color": colour, "linewidth": 2, "drawstyle": "steps-post"}
    axis.plot(curve["x"], curve["iqm"], label=label, zorder=4, **line)
    ends = (curve["low"], curve["high"])
    axis.fill_between(curve["x"], *ends, step="post", color=colour, alpha=0.18, linewidth=0, zorder=3)
