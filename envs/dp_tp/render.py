"""Pictures of a DP/TP node: layout, load and KV of each base engine, now and over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.render import BaseRenderer, Panel, level
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.layout import format_layout
from serving_gym.envs.interface.state import ClusterState, EngineStatus

_SERVING = (EngineStatus.ACTIVE, EngineStatus.DRAINING, EngineStatus.SPECULATIVE, EngineStatus.DOWN)


@dataclass(frozen=True)
class Frame:
    """What the picture shows of one moment."""

    now_s: float
    layout: tuple[int, ...]
    target: tuple[int, ...]
    width: NDArray[np.int64]  # (num_base,) length of the group a base engine belongs to
    running: NDArray[np.float64]  # (num_base,) requests of the group over its length
    waiting: NDArray[np.float64]  # (num_base,)
    kv: NDArray[np.float64]  # (num_base,) ratio
    status: tuple[str, ...]  # (num_base,)
    pooled: int


def make_frame(state: ClusterState, spec: ClusterSpec) -> Frame:
    """Reads a frame off a state."""
    num_base = spec.num_base
    width, status = np.ones(num_base, np.int64), ["inactive"] * num_base
    running, waiting, kv = np.zeros(num_base), np.zeros(num_base), np.zeros(num_base)
    for row in state.engines:
        if row["status"] not in _SERVING:
            continue
        length = int(row["width"]) // spec.base_width
        members = slice(
            int(row["first_gpu"]) // spec.base_width, int(row["first_gpu"]) // spec.base_width + length
        )
        width[members] = length
        running[members] = row["num_running"] / length
        waiting[members] = row["num_waiting"] / length
        kv[members] = row["kv_used_blocks"] / max(1, int(row["kv_capacity_blocks"]))
        status[members] = [EngineStatus(int(row["status"])).name.lower()] * length
    return Frame(
        state.now_s,
        state.layout,
        state.target_layout,
        width,
        running,
        waiting,
        kv,
        tuple(status),
        state.num_pooled,
    )


class Renderer(BaseRenderer[Frame]):
    """Draws a node."""

    rows = "base engine"

    def frame(self, state: ClusterState) -> Frame:
        """What is kept of a state."""
        return make_frame(state, self.episode.config.cluster)

    def text(self) -> str:
        """The node now, one line a group."""
        frame = self.frames[-1]
        arrow = "" if frame.layout == frame.target else f" -> {format_layout(frame.target)}"
        lines = [
            f"t={frame.now_s:8.1f} s  layout {format_layout(frame.layout)}{arrow}  pooled {frame.pooled}"
        ]
        first = 0
        for length in frame.layout:
            bar = "#" * length
            lines.append(
                f"  [{bar:<{self.episode.num_base}}] engines {first}-{first + length - 1} {frame.status[first]:<11} "
                f"running {frame.running[first] * length:4.0f}  waiting {frame.waiting[first] * length:4.0f}  "
                f"KV {frame.kv[first]:4.0%} {level(frame.kv[first])}"
            )
            first += length
        return "\n".join(lines)

    def panels(self) -> tuple[Panel, ...]:
        """Layout, requests and KV of each base engine."""
        return (
            Panel(
                "layout: engines merged",
                np.log2(self._over_time("width")),
                "viridis",
                np.log2(self.episode.num_base),
            ),
            Panel("running requests per engine", self._over_time("running"), "magma"),
            Panel("waiting requests per engine", self._over_time("waiting"), "magma"),
            Panel("KV in use", self._over_time("kv"), "cividis", 1.0),
        )
