"""What the sections of a report share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.figure import Figure

from serving_gym.runners.html import figures
from serving_gym.runners.html.folder import RunFolder
from serving_gym.runners.reporting.output import write_atomically


class Sections:
    """Sections on a run.

    Args:
        run: The run directory.
        pdf: Whether to write each figure as PDF too, into `figures/`.
    """

    def __init__(self, run: RunFolder, pdf: bool = False) -> None:
        self.run, self.pdf = run, pdf

    def drawn(self, name: str, draw: Callable[[], Figure], wanted: bool = True) -> str:
        """A figure as SVG; empty where it is not wanted.

        Args:
            name: Its name, distinct in the page.
            draw: Draws it.
            wanted: Whether there is anything to draw.
        """
        if not wanted:
            return ""
        drawing = draw()
        if self.pdf:
            path = self.run.path / "figures" / f"{name}.pdf"
            write_atomically(path, lambda partial: drawing.savefig(partial, format="pdf"))
        return figures.svg(drawing, name)


def number(value: float | None) -> float:
    """A figure of a JSON file, in which null is infinite."""
    return float("inf") if value is None else float(value)


def shown(value: float | None) -> str:
    """A figure of a JSON file in four digits."""
    return "inf" if value is None else f"{value:.4g}"


def percent(gain: Mapping[str, Any], centre: str = "iqm") -> str:
    """A gain and its 95 % interval in percent.

    Args:
        gain: As in `comparison.json`.
        centre: Its key.
    """
    values = [number(value) * 100.0 for value in (gain[centre], *gain["ci95"])]
    return f"{values[0]:+.1f} % [{values[1]:+.1f}, {values[2]:+.1f}]"
