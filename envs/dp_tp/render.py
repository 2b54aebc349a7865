"""Pictures of a DP/TP node: layout, load and KV of each base engine, now and over time."""

from __future__ import annotations

import io
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.backend import ClusterSpec, ClusterState, EngineStatus
from envs.layout import format_layout

_BAR = " ▁▂▃▄▅▆▇█"
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


class Renderer:
    """Remembers an episode's frames and draws them.

    Args:
        spec: The node.
        history: Most frames kept.
    """

    def __init__(self, spec: ClusterSpec, history: int = 600) -> None:
        self.spec = spec
        self.frames: deque[Frame] = deque(maxlen=history)

    def reset(self) -> None:
        """Forgets the last episode."""
        self.frames.clear()

    def record(self, state: ClusterState) -> None:
        """Adds a frame."""
        self.frames.append(make_frame(state, self.spec))

    def text(self) -> str:
        """The node now, one line a group."""
        frame = self.frames[-1]
        arrow = "" if frame.layout == frame.target else f" -> {format_layout(frame.target)}"
        lines = [
            f"t={frame.now_s:8.1f} s  layout {format_layout(frame.layout)}{arrow}  pooled {frame.pooled}"
        ]
        first = 0
        for length in frame.layout:
            level = _BAR[min(len(_BAR) - 1, int(np.ceil(frame.kv[first] * (len(_BAR) - 1))))]
            bar = "#" * length
            lines.append(
                f"  [{bar:<{self.spec.num_base}}] engines {first}-{first + length - 1} {frame.status[first]:<11} "
                f"running {frame.running[first] * length:4.0f}  waiting {frame.waiting[first] * length:4.0f}  "
                f"KV {frame.kv[first]:4.0%} {level}"
            )
            first += length
        return "\n".join(lines)

    def image(self) -> NDArray[np.uint8]:
        """(height, width, 3), layout, requests and KV of each base engine over time."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 6), dpi=80, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        times = [frame.now_s for frame in self.frames]
        panels = (
            (
                "layout: engines merged",
                np.log2([frame.width for frame in self.frames]),
                "viridis",
                np.log2(self.spec.num_base),
            ),
            (
                "running requests per engine",
                np.array([frame.running for frame in self.frames]),
                "magma",
                None,
            ),
            (
                "waiting requests per engine",
                np.array([frame.waiting for frame in self.frames]),
                "magma",
                None,
            ),
            ("KV in use", np.array([frame.kv for frame in self.frames]), "cividis", 1.0),
        )
        axes = figure.subplots(len(panels), 1, sharex=True)
        for axis, (title, values, colours, top) in zip(axes, panels, strict=True):
            highest = top if top else max(1.0, float(values.max()))
            extent = (times[0], max(times[-1], times[0] + 1e-3), self.spec.num_base - 0.5, -0.5)
            shown = axis.imshow(
                values.T,
                aspect="auto",
                extent=extent,
                cmap=colours,
                vmin=0,
                vmax=highest,
                interpolation="nearest",
            )
            axis.set_title(title, fontsize=8, loc="left")
            axis.set_ylabel("base engine", fontsize=7)
            figure.colorbar(shown, ax=axis, pad=0.01)
        axes[-1].set_xlabel("time, s", fontsize=8)
        canvas.draw()  # type: ignore[no-untyped-call]
        buffer = io.BytesIO()
        figure.savefig(buffer, format="rgba", dpi=80)
        width, height = canvas.get_width_height()
        pixels = np.frombuffer(buffer.getvalue(), np.uint8).reshape(height, width, 4)
        return np.ascontiguousarray(pixels[..., :3])
