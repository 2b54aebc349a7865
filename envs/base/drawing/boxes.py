"""Engines, queues and lanes: what pictures of all environments are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from serving_gym.envs.base.drawing.canvas import (
    ACTION,
    BLACK,
    FAINT,
    GREY,
    KV,
    NORMAL,
    PALE,
    RUNNING,
    SMALL,
    WAITING,
    WAITING_TEXT,
    WHITE,
    Area,
    Canvas,
)

LANE = 12.0  # height of the lane above a row of boxes, in which arrows run
_PITCHES = (13.0, 11.0, 9.0, 8.0, 7.0, 6.0, 5.0)  # of squares of requests
_FULL_CELLS = 128  # squares that a box should have room for before one stands for several requests
_UNITS = (1, 2, 5, 10)
_BAR, _TITLE = 11.0, 12.0
_HIGH, _LOW = 48.0, 18.0  # heights of boxes with two lines of text, and with one


@dataclass(frozen=True)
class Engine:
    """An engine as it is drawn.

    Attributes:
        title: Its name, short.
        running: Requests in its batch.
        waiting: Requests in its queue.
        kv: Share of its KV blocks in use; NaN: unknown.
        note: What it does other than serve, such as "draining".
        serves: Whether it takes requests; else it is grey.
        marked: Whether the last decision was about it.
    """

    title: str
    running: int = 0
    waiting: int = 0
    kv: float = 0.0
    note: str = ""
    serves: bool = True
    marked: bool = False


@dataclass(frozen=True)
class Grain:
    """Squares of requests.

    Attributes:
        unit: Requests that a square stands for.
        pitch: Distance of two squares, logical units.
    """

    unit: int = 1
    pitch: float = _PITCHES[-1]

    def cells(self, area: Area) -> int:
        """Squares that an area has room for."""
        return self.columns(area) * max(int((area.height + 1) // self.pitch), 0)

    def columns(self, area: Area) -> int:
        """Squares of a row."""
        return max(int((area.width + 1) // self.pitch), 1)


def grain_of(area: Area, max_num_seqs: int) -> Grain | None:
    """Squares for boxes of a size, the same through an episode; None: the boxes are too small for squares.

    Args:
        area: The smallest box.
        max_num_seqs: Most requests of a batch.
    """
    wanted, squares = min(max_num_seqs, _FULL_CELLS), _squares(area)
    grains = [Grain(1, pitch) for pitch in _PITCHES] + [Grain(unit) for unit in _UNITS[1:]]
    return next((grain for grain in grains if grain.cells(squares) * grain.unit >= wanted), None)


def _squares(area: Area) -> Area:
    """Where an engine's squares are."""
    bar = _BAR if area.height >= _HIGH else 5.0
    top = area.y + 3 + 2 * _TITLE if area.height >= _HIGH else area.y + _TITLE
    return Area(area.x + 4, top, area.width - 8, max(area.bottom - bar - 4 - top, 0.0))


def draw_engine(canvas: Canvas, area: Area, engine: Engine, grain: Grain | None) -> None:
    """An engine: its title, a square for each `grain.unit` requests it runs and has waiting, and its KV in use.

    In small boxes there are numbers in place of squares, and in very small ones the KV alone.
    """
    canvas.rect(area, WHITE if engine.serves else FAINT)
    if not engine.serves:
        canvas.hatched(area.inset(1))
    bar = _BAR if area.height >= _HIGH else 5.0 if area.height >= _LOW else area.height - 4
    if engine.serves or area.height >= _LOW:
        strip = Area(area.x + 2, area.bottom - bar - 2, area.width - 4, bar)
        draw_kv(canvas, strip, engine.kv, area.height >= _HIGH)
    if area.height >= _HIGH:
        _write_two_lines(canvas, area, engine)
    elif area.height >= _LOW and area.width >= _LOW:
        _write_one_line(canvas, area, engine)
    if grain:
        _draw_squares(canvas, _squares(area), engine, grain)
    canvas.rect(area, None, ACTION if engine.marked else GREY, 2.5 if engine.marked else 1.0)


def _write_two_lines(canvas: Canvas, area: Area, engine: Engine) -> None:
    room = area.width - 8
    title = canvas.text(area.x + 4, area.y + 3, engine.title, NORMAL, bold=True, room=room)
    if engine.note:
        canvas.text(area.right - 4, area.y + 4, engine.note, SMALL, ACTION, "ra", room=room - title - 4)
    _write_counts(canvas, area.x + 4, area.y + 4 + _TITLE, engine, room)


def _write_one_line(canvas: Canvas, area: Area, engine: Engine) -> None:
    counts = f"{engine.running}+{engine.waiting}"
    room = area.width - 6
    width = canvas.text_width(counts, SMALL)
    if width <= room:
        canvas.text(area.right - 3 - width, area.y + 1, str(engine.running), SMALL, RUNNING)
        canvas.text(area.right - 3, area.y + 1, f"+{engine.waiting}", SMALL, WAITING_TEXT, "ra")
        room -= width + 4
    canvas.text(area.x + 3, area.y + 1, engine.title, SMALL, bold=True, room=room)


def _write_counts(canvas: Canvas, x: float, y: float, engine: Engine, room: float) -> None:
    """Numbers of running and waiting requests, with their names where there is room."""
    long = (f"{engine.running} running", f"  {engine.waiting} waiting")
    short = (f"{engine.running}", f" + {engine.waiting}")
    parts = long if sum(canvas.text_width(part, SMALL) for part in long) <= room else short
    width = canvas.text(x, y, parts[0], SMALL, RUNNING, room=room)
    canvas.text(x + width, y, parts[1], SMALL, WAITING_TEXT, room=room - width)


def _draw_squares(canvas: Canvas, area: Area, engine: Engine, grain: Grain) -> None:
    cells = grain.cells(area)
    running, waiting = -(-engine.running // grain.unit), -(-engine.waiting // grain.unit)
    if waiting and running + waiting > cells:  # the queue stays visible behind a large batch
        running = min(running, max(cells - waiting, cells // 2))
    draw_requests(canvas, area, [RUNNING] * running + [WAITING] * waiting, grain.pitch)


def draw_requests(canvas: Canvas, area: Area, colours: Sequence[str], pitch: float) -> None:
    """A square of each colour, row by row; where there is no room for all, a plus is the last."""
    grain = Grain(1, pitch)
    columns, cells, side = grain.columns(area), grain.cells(area), pitch - max(1.0, pitch / 5)
    more = len(colours) > cells
    for i, colour in enumerate(colours[: cells - more] if cells else ()):
        row, column = divmod(i, columns)
        canvas.rect(Area(area.x + column * pitch, area.y + row * pitch, side, side), colour)
    if more and cells:
        row, column = divmod(cells - 1, columns)
        x, y, thick = area.x + column * pitch, area.y + row * pitch, side / 3
        canvas.rect(Area(x, y + thick, side, thick), colours[-1])
        canvas.rect(Area(x + thick, y, thick, side), colours[-1])


def draw_kv(canvas: Canvas, area: Area, share: float, written: bool) -> None:
    """A bar of the KV blocks in use, from none to all, with the share written into it or not."""
    canvas.rect(area, WHITE)
    if not np.isnan(share):
        canvas.rect(area._replace(width=area.width * min(max(share, 0.0), 1.0)), KV)
        if written:
            text = f"KV {share:.0%}"
            inside = share > 0.5 and area.width > 40
            x = area.x + 3 if inside else area.right - 3
            colour, anchor = (WHITE, "lm") if inside else (BLACK, "rm")
            canvas.text(x, area.y + area.height / 2, text, SMALL, colour, anchor, room=area.width - 4)
    canvas.rect(area, None, PALE)


def draw_gateway(
    canvas: Canvas,
    area: Area,
    title: str,
    held: int,
    grain: Grain | None,
    lines: Sequence[tuple[str, str]] = (),
) -> None:
    """Where requests come in: those that no engine has yet, and lines of text with their colours below them."""
    canvas.rect(area, FAINT, GREY)
    canvas.text(area.x + 5, area.y + 3, title, NORMAL, bold=True, room=area.width - 8)
    below = area.bottom - 13.0 * len(lines) - 4
    for i, (text, colour) in enumerate(lines):
        canvas.text(area.x + 5, below + 13.0 * i, text, SMALL, colour, room=area.width - 8)
    canvas.text(area.x + 5, area.y + 16, f"{held} held", SMALL, WAITING_TEXT, room=area.width - 8)
    squares = Area(area.x + 5, area.y + 32, area.width - 10, max(below - area.y - 36, 0.0))
    own = grain or Grain()
    draw_requests(canvas, squares, [WAITING] * -(-held // own.unit), own.pitch)


def draw_lanes(
    canvas: Canvas,
    gateway: Area,
    rows: Sequence[Sequence[tuple[Area, bool, bool]]],
    y_of_rows: Sequence[float],
) -> None:
    """Arrows from the gateway to boxes, through a lane above each row of them.

    Args:
        canvas: The canvas.
        gateway: Where they begin.
        rows: For each row, the boxes, whether each takes requests, and whether the last decision sent one there.
        y_of_rows: (rows,), height of each lane.
    """
    bus = gateway.right + 8
    start = (gateway.right, gateway.y + 24)
    for row, y in zip(rows, y_of_rows, strict=True):
        for area, takes, _ in row:
            if takes:
                x = area.x + area.width / 2
                canvas.arrow([start, (bus, start[1]), (bus, y), (x, y), (x, area.y)], PALE, 1.0)
    for row, y in zip(rows, y_of_rows, strict=True):
        for area, _, chosen in row:
            if chosen:
                x = area.x + area.width / 2
                canvas.arrow([start, (bus, start[1]), (bus, y), (x, y), (x, area.y)], ACTION, 2.0)


def draw_legend(
    canvas: Canvas, area: Area, grain: Grain | None, entries: Sequence[tuple[str, str]] = (), note: str = ""
) -> None:
    """What the colours mean, on one line.

    Args:
        canvas: The canvas.
        area: The line.
        grain: Squares of requests; None: there are none.
        entries: Further colours and their names.
        note: What is written at the right end; empty: what a square stands for.
    """
    x, middle = area.x, area.y + area.height / 2
    squares = ((RUNNING, "running"), (WAITING, "waiting"))
    for colour, name in (*(squares if grain else ()), (KV, "KV in use"), *entries, (ACTION, "last decision")):
        canvas.rect(Area(x, middle - 4, 8, 8), colour)
        x += 11 + canvas.text(x + 11, middle, name, SMALL, anchor="lm") + 9
    if not note and grain:
        note = f"1 square = {grain.unit} request{'s' if grain.unit > 1 else ''}, + more"
    canvas.text(area.right, middle, note or "running + waiting", SMALL, GREY, "rm", room=area.right - x)


class Field(NamedTuple):
    """How the area of a cluster is divided.

    Attributes:
        gateway: Where requests come in, on the left.
        boxes: Engines, on the right; above them is a lane for arrows.
        legend: A line at the bottom.
    """

    gateway: Area
    boxes: Area
    legend: Area


def divide(area: Area, gateway_width: float = 104.0) -> Field:
    """Divides the area of a cluster."""
    height = area.height - 17
    gateway = Area(area.x, area.y + LANE, gateway_width, height - LANE)
    left = gateway.right + 16
    return Field(
        gateway,
        Area(left, area.y + LANE, area.right - left, height - LANE),
        Area(area.x, area.bottom - 13, area.width, 13),
    )
