"""Pictures of a fleet behind a router: requests and KV of each place, now and over time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.render import Panel, draw_panels, level
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.routing.state import RoutingState


@dataclass(frozen=True, eq=False)
class Frame:
    """What the picture shows of one decision."""

    now_s: float
    in_flight: NDArray[np.int64]  # (P,)
    waiting: NDArray[np.int32]  # (P,) gauge
    kv: NDArray[np.float64]  # (P,) gauge, ratio
    status: NDArray[np.int32]  # (P,) EngineStatus
    held: int


class Renderer:
    """Remembers an episode's decisions and draws them.

    Args:
        engines: The places.
        history: Most frames kept.
    """

    def __init__(self, engines: NominalEngines, history: int = 600) -> None:
        self.engines = engines
        self.frames: deque[Frame] = deque(maxlen=history)

    def begin(self, state: RoutingState) -> None:
        """Forgets the last episode and adds the first frame."""
        self.frames.clear()
        self.record(state)

    def record(self, state: RoutingState) -> None:
        """Adds a frame."""
        rows = state.engines
        self.frames.append(
            Frame(
                state.now_s,
                np.bincount(state.in_flight["place"], minlength=len(rows)),
                rows["num_waiting"].copy(),
                rows["kv_used_blocks"] / np.maximum(rows["kv_capacity_blocks"], 1),
                rows["status"].copy(),
                state.num_held,
            )
        )

    def text(self) -> str:
        """The fleet now, one line a place."""
        frame = self.frames[-1]
        lines = [f"t={frame.now_s:8.1f} s  held {frame.held}"]
        for place in range(len(frame.kv)):
            status = EngineStatus(int(frame.status[place])).name.lower()
            lines.append(
                f"  {place:3d} {self.engines.models[place]} on {self.engines.num_gpus[place]} x "
                f"{self.engines.gpus[place]}  {status:<9} in flight {frame.in_flight[place]:4d}  "
                f"waiting {frame.waiting[place]:4d}  KV {frame.kv[place]:4.0%} {level(frame.kv[place])}"
            )
        return "\n".join(lines)

    def image(self) -> NDArray[np.uint8]:
        """(height, width, 3), requests and KV of each place over the decisions kept."""
        frames = self.frames
        panels = (
            Panel("requests in flight", np.array([frame.in_flight for frame in frames]), "magma"),
            Panel("waiting, gauge", np.array([frame.waiting for frame in frames]), "magma"),
            Panel("KV in use, gauge", np.array([frame.kv for frame in frames]), "cividis", 1.0),
        )
        return draw_panels([frame.now_s for frame in frames], panels, "place")
