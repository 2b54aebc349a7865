"""Colours, marks and words that all figures share."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MultipleLocator, NullFormatter

from serving_gym.runners.configuration.schema import FIGURES
from serving_gym.runners.reporting.output import write_atomically

PNG, PDF = FIGURES
# Okabe and Ito's colours, which colour-blind readers tell apart, and a grey; yellow is too light for lines, and black
# is the agent's.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#767676")
MARKS = ("s", "D", "^", "v", "P", "X", "*")
_LONGEST_NAME = 30
_SHORT_SCALE = 100.0  # largest over smallest value, below which a logarithmic scale has ticks between decades
_TIME_UNITS = (
    (2 * 86_400.0, 86_400.0, "days"),
    (2 * 3600.0, 3600.0, "h"),
    (900.0, 60.0, "min"),
    (0.0, 1.0, "s"),
)
_STEPS = {
    "days": (1, 2, 5, 10),
    "h": (0.5, 1, 2, 3, 4, 6, 12, 24),
    "min": (1, 2, 5, 10, 15, 20, 30),
    "s": (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200),
}
BIN_LENGTHS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)


@dataclass(frozen=True)
class Look:
    """How a policy is drawn.

    Attributes:
        colour: Its colour.
        mark: Its mark, so that colour is not all that tells it from others.
    """

    colour: str
    mark: str


AGENT_LOOK = Look("#000000", "o")


def looks_of(names: Iterable[str], agent: str | None = None) -> dict[str, Look]:
    """Colour and mark of each policy: by its name, so that a policy looks the same in all figures.

    Where two names fall on one colour, the second in alphabetical order takes the next that is free; beyond seven
    policies colours come again with other marks.

    Args:
        names: The policies of a figure.
        agent: The one that is drawn in black; None: none.
    """
    free: list[int] = []
    looks = {} if agent is None else {agent: AGENT_LOOK}
    for turn, name in enumerate(sorted(set(names) - set(looks))):
        if not free:
            free = list(range(len(COLOURS)))
        wished = zlib.crc32(name.encode()) % len(COLOURS)
        index = next(each for each in [*range(wished, len(COLOURS)), *range(wished)] if each in free)
        free.remove(index)
        looks[name] = Look(COLOURS[index], MARKS[(index + turn // len(COLOURS)) % len(MARKS)])
    return looks


def short(name: str) -> str:
    """A policy's name, cut at its beginning where it is a long path."""
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"


def time_axis(axis: Axes, duration_s: float) -> None:
    """Labels a time axis in seconds with seconds, minutes, hours or days, as its length needs."""
    unit_s, unit = next((unit_s, unit) for least, unit_s, unit in _TIME_UNITS if duration_s >= least)
    steps = _STEPS[unit]
    step = next((each for each in steps if duration_s / unit_s / each <= 10), steps[-1]) * unit_s
    axis.set_xlim(0.0, duration_s)
    axis.xaxis.set_major_locator(MultipleLocator(step))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit_s:g}"))
    axis.set_xlabel(f"time, {unit}", fontsize=9)


def bin_length_s(duration_s: float, most: int = 120) -> float:
    """Length of the bins of a run: round, and so that there are at most as many."""
    for length in BIN_LENGTHS_S:
        if duration_s / length <= most:
            return float(length)
    return math.ceil(duration_s / most / BIN_LENGTHS_S[-1]) * BIN_LENGTHS_S[-1]


def log_ticks(axis: Any, values: Iterable[float]) -> None:
    """Ticks of a logarithmic axis (`axes.xaxis` or `axes.yaxis`) as plain numbers, more of them where it is short.

    Args:
        axis: The axis.
        values: Values that are drawn.
    """
    known = [value for value in values if value > 0 and math.isfinite(value)]
    short_one = bool(known) and max(known) < _SHORT_SCALE * min(known)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short_one else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def clean(axis: Any) -> None:
    """Takes away the frame at the top and the right, and adds a light grid."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)


def save(figure: Figure, path: Path, figures: str = PNG) -> None:
    """Writes a PNG, and with `figures=pdf` the same as a PDF with real text beside it."""
    with mpl.rc_context({"savefig.dpi": 130, "pdf.fonttype": 42}):
        write_atomically(path, lambda partial: figure.savefig(partial, format=PNG))
        if figures == PDF:
            vector = path.with_suffix(".pdf")
            write_atomically(vector, lambda partial: figure.savefig(partial, format=PDF))
