"""What happened over an episode, in bins of a time axis that is fixed from its beginning, and how it is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.drawing.canvas import (
    BLACK,
    FAINT,
    GREY,
    SMALL,
    VERMILION,
    Area,
    Canvas,
)

FloatArray = NDArray[np.float64]

BINS = 180  # divisible by 3, so that the time axis can be lengthened by half
_NICE = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_STEPS = (1.0, 2.0, 5.0, 10.0)  # of the time axis
_UNITS = (
    (86_400.0, "days", 2 * 86_400.0),
    (3600.0, "h", 2 * 3600.0),
    (60.0, "min", 15 * 60.0),
    (1.0, "s", 0.0),
)


def nice(value: float) -> float:
    """The smallest round number that is at least a value: a multiple of a power of ten by one or two digits."""
    return _round_up(value, _NICE)


def _round_up(value: float, factors: Sequence[float]) -> float:
    if not value > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in factors if factor * power >= value * (1 - 1e-9))


class Timeline:
    """Columns of amounts in bins of equal length from time 0.

    An amount of an interval is spread evenly over it. Time beyond the horizon lengthens it by half, so that an episode
    that lasts longer than foreseen stays whole.

    Args:
        horizon_s: Length of the time axis, seconds.
    """

    def __init__(self, horizon_s: float) -> None:
        self.horizon_s = max(horizon_s, 1e-3)
        self._columns: dict[str, FloatArray] = {}

    @property
    def bin_s(self) -> float:
        """Length of a bin, seconds."""
        return self.horizon_s / BINS

    def add(self, amounts: dict[str, float], from_s: float, to_s: float) -> None:
        """Spreads amounts over an interval, and its length over the column `seconds`."""
        while to_s > self.horizon_s:
            self._lengthen()
        shares = self._shares(from_s, to_s)
        for name, amount in (amounts | {"seconds": to_s - from_s}).items():
            self.column(name)[:] += amount * shares

    def _shares(self, from_s: float, to_s: float) -> FloatArray:
        """(BINS,), parts of an interval in each bin, which add up to 1."""
        shares = np.zeros(BINS)
        if to_s <= from_s:
            shares[min(int(from_s / self.bin_s), BINS - 1)] = 1.0
            return shares
        first = min(int(from_s / self.bin_s), BINS - 1)
        last = min(int(to_s / self.bin_s), BINS - 1)
        edges = np.arange(first, last + 2) * self.bin_s
        edges[0], edges[-1] = from_s, to_s
        shares[first : last + 1] = np.diff(edges) / (to_s - from_s)
        return shares

    def _lengthen(self) -> None:
        """Makes two bins of three."""
        for name, column in self._columns.items():
            left, middle, right = column.reshape(-1, 3).T
            merged = np.zeros(BINS)
            merged[: 2 * BINS // 3] = np.stack((left + middle / 2, middle / 2 + right), axis=1).ravel()
            self._columns[name] = merged
        self.horizon_s *= 1.5

    def column(self, name: str) -> FloatArray:
        """(BINS,), what a column holds."""
        return self._columns.setdefault(name, np.zeros(BINS))

    def per(self, name: str, other: str) -> FloatArray:
        """(BINS,), one column over another; NaN where that is 0."""
        divisor = self.column(other)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(divisor > 0, self.column(name) / divisor, np.nan)


@dataclass(frozen=True)
class Curve:
    """One quantity of a plot.

    Attributes:
        name: Its name in the legend; empty: it is not named.
        values: (BINS,); NaN: nothing is known.
        colour: Its colour.
        filled: Whether the area below it is filled.
    """

    name: str
    values: FloatArray
    colour: str
    filled: bool = False


@dataclass(frozen=True)
class Plot:
    """A plot over time with a fixed scale.

    Attributes:
        title: What it shows, with its unit, and where better lies if somewhere.
        curves: Quantities.
        low: Lower end of the scale.
        high: Upper end; values beyond it are drawn at the edge.
        log: Whether the scale is logarithmic.
        limit: A value that is not to be exceeded; None: there is none.
    """

    title: str
    curves: tuple[Curve, ...]
    low: float
    high: float
    log: bool = False
    limit: float | None = None

    def place(self, values: FloatArray | float) -> FloatArray:
        """Heights of values in the plot, from 0 to 1."""
        shown = np.asarray(values, np.float64)
        if self.log:
            with np.errstate(divide="ignore"):
                shown = np.log(shown / self.low) / math.log(self.high / self.low)
        else:
            shown = (shown - self.low) / (self.high - self.low)
        return np.clip(shown, 0.0, 1.0)

    def ticks(self) -> list[float]:
        """Values that are written at the scale."""
        if self.log:
            decades = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
            return [10.0**power for power in decades]
        return [self.low, (self.low + self.high) / 2, self.high]


def format_number(value: float) -> str:
    """A number with at most three digits and a prefix: 0.1, 25, 1.5k."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"


def draw_plots(canvas: Canvas, area: Area, plots: Sequence[Plot], timeline: Timeline, now_s: float) -> None:
    """Plots below each other over one time axis, with a line at the present."""
    left, axis = 34.0, 22.0
    each = (area.height - axis) / len(plots)
    for i, plot in enumerate(plots):
        inner = Area(area.x + left, area.y + i * each + 15, area.width - left - 8, each - 20)
        _draw_plot(canvas, inner, plot, timeline, now_s)
    frame = Area(area.x + left, area.y, area.width - left - 8, area.height - axis - 5)
    _draw_time_axis(canvas, frame, timeline.horizon_s)


def _draw_plot(canvas: Canvas, area: Area, plot: Plot, timeline: Timeline, now_s: float) -> None:
    limit = None if plot.limit is None else float(plot.place(plot.limit))
    if limit is not None:  # above it is where one does not want to be
        canvas.rect(area._replace(height=(1 - limit) * area.height), FAINT)
    for curve in plot.curves:
        heights = plot.place(curve.values)
        if curve.filled:
            canvas.columns(area, heights, np.zeros(len(heights)), curve.colour)
        else:
            thick = 2.5 / area.height
            canvas.columns(area, heights + thick / 2, heights - thick / 2, curve.colour)
    if limit is not None:
        y = area.bottom - limit * area.height
        canvas.dashed(area.x, y, area.width, BLACK)
    canvas.line([(area.x, area.y), (area.x, area.bottom), (area.right, area.bottom)], GREY)
    for tick in plot.ticks():
        y = area.bottom - float(plot.place(tick)) * area.height
        canvas.line([(area.x - 3, y), (area.x, y)], GREY)
        canvas.text(area.x - 5, y, format_number(tick), SMALL, GREY, "rm")
    x = area.x + min(now_s / timeline.horizon_s, 1.0) * area.width
    canvas.line([(x, area.y), (x, area.bottom)], VERMILION)
    _write_title(canvas, area, plot)


def _write_title(canvas: Canvas, area: Area, plot: Plot) -> None:
    x = area.x + canvas.text(area.x, area.y - 13, plot.title, SMALL) + 12
    for curve in plot.curves:
        if curve.name:
            canvas.rect(Area(x, area.y - 11, 8, 8), curve.colour)
            x += 11 + canvas.text(x + 11, area.y - 13, curve.name, SMALL, room=area.right - x) + 9


def _draw_time_axis(canvas: Canvas, area: Area, horizon_s: float) -> None:
    unit_s, unit, _ = next(entry for entry in _UNITS if horizon_s >= entry[2])
    step = _round_up(horizon_s / unit_s / 7, _STEPS)
    if unit == "h" and step > 2:
        step = next((hours for hours in (3, 4, 6, 12, 24) if hours >= step), step)
    last = 0.0
    for i in range(int(horizon_s / unit_s / step + 1e-9) + 1):
        x = area.x + i * step * unit_s / horizon_s * area.width
        canvas.line([(x, area.bottom), (x, area.bottom + 3)], GREY)
        label = f"{i * step:g}" if i else f"0 {unit}"
        canvas.text(x, area.bottom + 5, label, SMALL, GREY, "ma")
        last = x
    if area.right - last > 60:
        canvas.text(area.right, area.bottom + 5, f"time, {unit}", SMALL, GREY, "ra")
