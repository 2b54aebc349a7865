"""Pictures of a DP/TP node: its engines with their requests and KV, and the layout that is to be."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_gym.envs.base.drawing.boxes import (
    Engine,
    divide,
    draw_engine,
    draw_gateway,
    draw_lanes,
    draw_legend,
    grain_of,
)
from serving_gym.envs.base.drawing.canvas import ACTION, BLACK, GREEN, GREY, PALE, SMALL, Area, Canvas
from serving_gym.envs.base.drawing.timeline import Curve, Plot
from serving_gym.envs.base.render import BaseRenderer, level
from serving_gym.envs.dp_tp.action import decode_action
from serving_gym.envs.interface.commands import SetLayout
from serving_gym.envs.interface.layout import Group, format_layout, groups_of
from serving_gym.envs.interface.state import ClusterState, EngineStatus

_SERVING = (EngineStatus.ACTIVE, EngineStatus.DRAINING, EngineStatus.SPECULATIVE, EngineStatus.DOWN)
_TAKES = (EngineStatus.ACTIVE, EngineStatus.SPECULATIVE)
_STRIP = 26.0  # height of the target layout below the engines


def group_rows(state: ClusterState, base_width: int) -> dict[Group, np.void]:
    """Rows of the engines that serve or are being drained, by their base engines.

    Args:
        state: The node.
        base_width: GPUs of a base engine.
    """
    rows = state.engines[np.isin(state.engines["status"], _SERVING)]
    return {
        Group(int(row["first_gpu"]) // base_width, int(row["width"]) // base_width): row
        for row in np.sort(rows, order="first_gpu")
    }


def kv_in_use(row: np.void) -> float:
    """Share of an engine's KV blocks in use."""
    return float(row["kv_used_blocks"]) / max(1, int(row["kv_capacity_blocks"]))


class Renderer(BaseRenderer[ClusterState]):
    """Draws a node."""

    def _rows(self) -> dict[Group, np.void]:
        return group_rows(self.state, self.episode.config.cluster.base_width)

    def title(self) -> str:
        """The node and its model."""
        spec = self.episode.config.cluster
        return f"DP/TP: {spec.num_gpus} × {spec.gpu}, {spec.model}"

    def describe(self, before: ClusterState, action: Any) -> str:
        """The layout that was chosen, and how to get there."""
        command = (
            decode_action(action, self.episode.num_base) if isinstance(action, int | np.integer) else action
        )
        if command is None or command.layout == before.target_layout:
            return f"stay with {format_layout(before.target_layout)}"
        how = command.mode.name.lower() if isinstance(command, SetLayout) else "restart"
        return f"switch {format_layout(before.target_layout)} → {format_layout(command.layout)} ({how})"

    def text(self) -> str:
        """The node now, one line a group."""
        state, rows = self.state, self._rows()
        arrow = "" if state.layout == state.target_layout else f" -> {format_layout(state.target_layout)}"
        lines = [
            f"t={state.now_s:8.1f} s  layout {format_layout(state.layout)}{arrow}  pooled {state.num_pooled}"
        ]
        for group, row in rows.items():
            bar, kv = "#" * group.length, kv_in_use(row)
            status = EngineStatus(int(row["status"])).name.lower()
            lines.append(
                f"  [{bar:<{self.episode.num_base}}] engines {group.first}-{group.first + group.length - 1} "
                f"{status:<11} running {int(row['num_running']):4d}  waiting {int(row['num_waiting']):4d}  "
                f"KV {kv:4.0%} {level(kv)}"
            )
        return "\n".join(lines)

    def gauges(self, state: ClusterState) -> dict[str, float]:
        """Engines of the layout."""
        return {"engines": float(len(state.layout))}

    def own_plots(self) -> tuple[Plot, ...]:
        """Engines of the layout: one if all GPUs are merged."""
        timeline = self.timeline
        engines = Curve("", timeline.per("engines", "seconds"), GREEN)
        return (Plot("engines: few are fast, many take more", (engines,), 0.0, float(self.episode.num_base)),)

    def draw(self, canvas: Canvas, area: Area) -> None:
        """Engines as wide as their GPUs, and below them the layout that is to be."""
        spec, field = self.episode.config.cluster, divide(area)
        height = field.boxes.height - _STRIP
        cells = field.boxes._replace(height=height).grid(self.episode.num_base, 1, 4)
        grain = grain_of(cells[0], spec.max_num_seqs)
        gateway = field.gateway._replace(height=height)
        draw_gateway(canvas, gateway, "requests", self.state.num_pooled, grain, [self.arrival_line()])
        moving = [transition.region for transition in self.state.transitions]
        boxes = []
        for group, row in self._rows().items():
            box, status = _span(cells, group), EngineStatus(int(row["status"]))
            last = (group.first + group.length) * spec.base_width - 1
            tp = f"TP {group.length * spec.base_width}"
            gpus = f" · GPU {group.first * spec.base_width}–{last}" if box.width > 150 else ""
            engine = Engine(
                f"{tp}{gpus}",
                int(row["num_running"]),
                int(row["num_waiting"]),
                kv_in_use(row),
                "" if status is EngineStatus.ACTIVE else status.name.lower(),
                status in _TAKES,
                any(group.overlaps(region) for region in moving),
            )
            draw_engine(canvas, box, engine, grain)
            boxes.append((box, status in _TAKES, False))
        draw_lanes(canvas, gateway, [boxes], [field.boxes.y - 7])
        self._draw_target(canvas, Area(cells[0].x, cells[0].bottom + 6, 0, 16), cells)
        draw_legend(canvas, field.legend, grain)

    def _draw_target(self, canvas: Canvas, strip: Area, cells: list[Area]) -> None:
        """The layout after all that is under way; engines that are not there yet are marked."""
        there = set(groups_of(self.state.layout))
        for group in groups_of(self.state.target_layout):
            box = _span(cells, group)._replace(y=strip.y, height=strip.height)
            new = group not in there
            canvas.rect(box, None, ACTION if new else PALE, 2.0 if new else 1.0)
            width = group.length * self.episode.config.cluster.base_width
            middle = (box.x + box.width / 2, box.y + box.height / 2)
            canvas.text(*middle, f"TP {width}", SMALL, ACTION if new else GREY, "mm")
        canvas.text(cells[0].x - 16, strip.y + strip.height / 2, "target layout", SMALL, BLACK, "rm")


def _span(cells: list[Area], group: Group) -> Area:
    """Area of a group's cells."""
    first, last = cells[group.first], cells[group.first + group.length - 1]
    return first._replace(width=last.right - first.x)
