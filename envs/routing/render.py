"""Pictures of a fleet behind a router: requests and KV of each place, now and over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.render import BaseRenderer, Panel, level
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


class Renderer(BaseRenderer[Frame]):
    """Draws a fleet."""

    rows = "place"

    def frame(self, state: RoutingState) -> Frame:
        """What is kept of a state."""
        rows = state.engines
        return Frame(
            state.now_s,
            np.bincount(state.in_flight["place"], minlength=len(rows)),
            rows["num_waiting"].copy(),
            rows["kv_used_blocks"] / np.maximum(rows["kv_capacity_blocks"], 1),
            rows["status"].copy(),
            state.num_held,
        )

    def text(self) -> str:
        """The fleet now, one line a place."""
        frame, engines = self.frames[-1], self.episode.engines
        lines = [f"t={frame.now_s:8.1f} s  held {frame.held}"]
        for place in range(len(frame.kv)):
            status = EngineStatus(int(frame.status[place])).name.lower()
            lines.append(
                f"  {place:3d} {engines.models[place]} on {engines.num_gpus[place]} x "
                f"{engines.gpus[place]}  {status:<9} in flight {frame.in_flight[place]:4d}  "
                f"waiting {frame.waiting[place]:4d}  KV {frame.kv[place]:4.0%} {level(frame.kv[place])}"
            )
        return "\n".join(lines)

    def panels(self) -> tuple[Panel, ...]:
        """Requests and KV of each place."""
        return (
            Panel("requests in flight", self._over_time("in_flight"), "magma"),
            Panel("waiting, gauge", self._over_time("waiting"), "magma"),
            Panel("KV in use, gauge", self._over_time("kv"), "cividis", 1.0),
        )
