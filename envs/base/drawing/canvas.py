"""A canvas in logical units on a Pillow image, with the colours and the type sizes of all pictures."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

# Okabe and Ito's colours, which colour-blind readers tell apart (jfly.uni-koeln.de/color).
BLACK, WHITE = "#000000", "#ffffff"
ORANGE, SKY, GREEN, YELLOW = "#e69f00", "#56b4e9", "#009e73", "#f0e442"
BLUE, VERMILION, PURPLE = "#0072b2", "#d55e00", "#cc79a7"
GREY, PALE, FAINT = "#767676", "#d0d0d0", "#f2f2f2"

RUNNING, WAITING, KV, ACTION = BLUE, ORANGE, GREEN, VERMILION
WAITING_TEXT = "#8f6300"  # orange, dark enough to be read on white
SMALL, NORMAL, LARGE = 8.5, 10.0, 12.0  # type sizes, logical units


class Area(NamedTuple):
    """A rectangle in logical units; y grows downwards."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Bottom edge."""
        return self.y + self.height

    def inset(self, by: float) -> Area:
        """The area without a margin."""
        return Area(self.x + by, self.y + by, max(self.width - 2 * by, 0), max(self.height - 2 * by, 0))

    def grid(self, columns: int, rows: int, gap: float = 0.0) -> list[Area]:
        """Equal cells, row by row."""
        width = (self.width - gap * (columns - 1)) / columns
        height = (self.height - gap * (rows - 1)) / rows
        return [
            Area(self.x + column * (width + gap), self.y + row * (height + gap), width, height)
            for row in range(rows)
            for column in range(columns)
        ]


@lru_cache(maxsize=64)
def _font(size: float, bold: bool) -> FreeTypeFont:
    import matplotlib as mpl
    from PIL import ImageFont

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(mpl.get_data_path()) / "fonts/ttf" / name), size)


@lru_cache(maxsize=8192)
def _length(text: str, size: float, bold: bool) -> float:
    """Width of a text, pixels."""
    return _font(size, bold).getlength(text)


class Canvas:
    """A white image on which one draws in logical units.

    Args:
        width: Logical units.
        height: Logical units.
        scale: Pixels of a logical unit.
    """

    def __init__(self, width: float, height: float, scale: float) -> None:
        from PIL import Image, ImageDraw

        self.scale = scale
        self._image = Image.new("RGB", (round(width * scale), round(height * scale)), WHITE)
        self._draw = ImageDraw.Draw(self._image)
        self._line = max(1, round(scale))

    def pixels(self) -> NDArray[np.uint8]:
        """(height, width, 3), the image."""
        return np.array(self._image)

    def _box(self, area: Area) -> tuple[int, int, int, int]:
        s = self.scale
        left, top = round(area.x * s), round(area.y * s)
        return (
            left,
            top,
            max(left, round(area.right * s) - 1),
            max(top, round(area.bottom * s) - 1),
        )

    def rect(
        self, area: Area, fill: str | None = None, outline: str | None = None, width: float = 1.0
    ) -> None:
        """A rectangle; `width` is that of its outline."""
        if area.width > 0 and area.height > 0:
            lines = max(1, round(width * self.scale))
            self._draw.rectangle(self._box(area), fill, outline, lines if outline else 0)

    def hatched(self, area: Area, colour: str = PALE, step: float = 6.0) -> None:
        """A rectangle filled with diagonal lines."""
        left, top, right, bottom = self._box(area)
        width, height = right - left, bottom - top
        pitch = max(3, round(step * self.scale))
        for offset in range(pitch, width + height, pitch):
            start = (left + min(offset, width), top + max(0, offset - width))
            end = (left + max(0, offset - height), top + min(offset, height))
            self._draw.line((start, end), colour, self._line)

    def line(self, points: list[tuple[float, float]], colour: str, width: float = 1.0) -> None:
        """A line through points."""
        scaled = [(round(x * self.scale), round(y * self.scale)) for x, y in points]
        self._draw.line(scaled, colour, max(1, round(width * self.scale)))

    def dashed(self, x: float, y: float, length: float, colour: str, dash: float = 4.0) -> None:
        """A horizontal dashed line."""
        for at in np.arange(0.0, length, 2 * dash).tolist():
            self.line([(x + at, y), (x + min(at + dash, length), y)], colour)

    def arrow(self, points: list[tuple[float, float]], colour: str, width: float = 1.0) -> None:
        """A line through points that ends in an arrow head; its last piece points down or to the right."""
        (x0, y0), (x, y) = points[-2:]
        head = 2.5 + width
        if abs(y - y0) > abs(x - x0):
            tip = [(x - head, y - 1.6 * head), (x + head, y - 1.6 * head), (x, y)]
            stop = (x, y - 1.4 * head)
        else:
            tip = [(x - 1.6 * head, y - head), (x - 1.6 * head, y + head), (x, y)]
            stop = (x - 1.4 * head, y)
        self.line([*points[:-1], stop], colour, width)
        self._draw.polygon([(round(a * self.scale), round(b * self.scale)) for a, b in tip], colour)

    def columns(
        self, area: Area, tops: NDArray[np.floating], bottoms: NDArray[np.floating], colour: str
    ) -> None:
        """Filled columns of equal width side by side; NaN leaves one out.

        Args:
            area: Where.
            tops: (N,), upper ends, 0 at the bottom of the area and 1 at its top.
            bottoms: (N,), lower ends.
            colour: Fill.
        """
        edges = np.linspace(area.x, area.right, len(tops) + 1) * self.scale
        lefts = np.round(edges).astype(int).tolist()
        ends = np.round((area.bottom - np.array([tops, bottoms]) * area.height) * self.scale)
        for i in np.flatnonzero(~np.isnan(tops)).tolist():
            upper, lower = int(ends[0, i]), max(int(ends[1, i]) - 1, int(ends[0, i]) + self._line - 1)
            self._draw.rectangle((lefts[i], upper, max(lefts[i + 1] - 1, lefts[i]), lower), colour)

    def text_width(self, text: str, size: float = NORMAL, bold: bool = False) -> float:
        """Width of a text, logical units."""
        return _length(text, size * self.scale, bold) / self.scale

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = NORMAL,
        colour: str = BLACK,
        anchor: str = "la",
        bold: bool = False,
        room: float | None = None,
    ) -> float:
        """Writes a text, cut with an ellipsis where it would be wider than `room`; returns its width.

        Args:
            x: Anchor.
            y: Anchor.
            text: One line.
            size: Type size.
            colour: Colour.
            anchor: Pillow's: l, m or r, and a (ascender), m or s (base line).
            bold: Whether it is bold.
            room: Most width; None: any.
        """
        if room is not None and self.text_width(text, size, bold) > room:
            while text and self.text_width(text + "…", size, bold) > room:
                text = text[:-1]
            text = text.rstrip() + "…" if text else ""
        if not text:
            return 0.0
        font = _font(size * self.scale, bold)
        self._draw.text((x * self.scale, y * self.scale), text, colour, font, anchor)
        return self.text_width(text, size, bold)
