"""Draws a Pareto front."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from serving_gym.runners.reporting.figure_style import PNG, Look, clean, log_ticks, looks_of, save, short

_LOG_RATIO = 30.0  # of the largest to the smallest value, from which a scale is logarithmic
_ATTAINMENT = "_attainment"
_NAMES = {"cost_usd": "rent, US$", "slo_attainment": "SLO misses, %"}


def plot_front(path: Path, results: Mapping[str, Any], figures: str = PNG) -> None:
    """Draws every policy at every setting, what is not dominated filled and joined by a line.

    Shares of SLOs kept are drawn as the misses, in per cent, so that 99 and 99.9 % can be told apart.

    Args:
        path: PNG to write.
        results: The content of `pareto.json`.
        figures: `png`, or `pdf` for a PDF beside it.
    """
    names, points = list(results["axes"]), results["points"]
    policies = list(dict.fromkeys(point["policy"] for point in points))
    learned = results["learned"]
    looks = looks_of(policies, learned[0] if len(learned) == 1 else None)
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axis = figure.subplots()
    clean(axis)
    front = sorted(
        (_drawn(names[0], point["mean"][0]), _drawn(names[1], point["mean"][1]))
        for point in points
        if not point["dominated"]
    )
    axis.plot(*zip(*front, strict=True), color="#888888", linewidth=1, zorder=1, label="not dominated")
    for policy in policies:
        own = [point for point in points if point["policy"] == policy]
        _draw(axis, names, own, looks[policy], short(policy))
    for name, which in zip(names, (axis.xaxis, axis.yaxis), strict=True):
        _label(
            axis,
            which,
            name,
            results["axes"][name],
            [_drawn(name, p["mean"][names.index(name)]) for p in points],
        )
    axis.set_title(
        f"{results['env']} on {results['workload']}: mean of {results['seeds']} {results['split']} episodes, "
        f"hypervolume {results['hypervolume']['share']:.3f} of the box",
        fontsize=10,
    )
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    save(figure, path, figures)


def _draw(axis: Any, names: list[str], points: list[Mapping[str, Any]], look: Look, label: str) -> None:
    for i, point in enumerate(points):
        x, y = (_drawn(name, value) for name, value in zip(names, point["mean"], strict=True))
        (low_x, high_x), (low_y, high_y) = (
            sorted(_drawn(name, end) for end in ends) for name, ends in zip(names, point["ci95"], strict=True)
        )
        axis.plot([low_x, high_x], [y, y], color=look.colour, linewidth=1, alpha=0.4, zorder=2)
        axis.plot([x, x], [low_y, high_y], color=look.colour, linewidth=1, alpha=0.4, zorder=2)
        axis.plot(
            x,
            y,
            look.mark,
            color=look.colour,
            markersize=7,
            fillstyle="none" if point["dominated"] else "full",
            linestyle="none",
            label=label if i == 0 else None,
            zorder=3,
        )


def _drawn(name: str, value: float) -> float:
    """A value as it is drawn."""
    return 100.0 * (1.0 - value) if name.endswith(_ATTAINMENT) else value


def _label(axis: Any, which: Any, name: str, direction: str, values: list[float]) -> None:
    misses = name.endswith(_ATTAINMENT)
    said = _NAMES.get(name, f"{name.removesuffix(_ATTAINMENT)} SLO misses, %" if misses else name)
    better = "lower" if misses else direction
    which.set_label_text(f"{said} ({better} is better)")
    finite = np.array([value for value in values if np.isfinite(value)])
    if finite.size and finite.min() > 0 and finite.max() > _LOG_RATIO * finite.min():
        (axis.set_xscale if which.axis_name == "x" else axis.set_yscale)("log")
        log_ticks(which, finite.tolist())
