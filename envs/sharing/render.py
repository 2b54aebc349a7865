"""Pictures of nodes that are shared: instances, requests and memory of each, now and over time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.render import Panel, draw_panels, level
from serving_gym.envs.interface.sharing import InstanceStatus, SharingSetting
from serving_gym.envs.sharing.state import SharingState


@dataclass(frozen=True, eq=False)
class Frame:
    """What the picture shows of one decision; arrays are (N,)."""

    now_s: float
    instances: NDArray[np.int32]
    running: NDArray[np.int64]
    waiting: NDArray[np.int64]
    held: NDArray[np.float64]  # memory, ratio
    state: SharingState


def make_frame(state: SharingState, num_nodes: int) -> Frame:
    """Reads a frame off a state."""
    there = state.instances["status"] != InstanceStatus.EMPTY
    node = state.instances["node"][there]
    sums = [
        np.bincount(node, weights=state.instances[name][there], minlength=num_nodes).astype(np.int64)
        for name in ("num_running", "num_waiting")
    ]
    held = state.nodes["held_bytes"] / state.nodes["memory_bytes"]
    return Frame(state.now_s, state.nodes["num_instances"].copy(), sums[0], sums[1], held, state)


class Renderer:
    """Remembers an episode's decisions and draws them.

    Args:
        setting: Nodes and models.
        history: Most frames kept.
    """

    def __init__(self, setting: SharingSetting, history: int = 600) -> None:
        self.setting = setting
        self.frames: deque[Frame] = deque(maxlen=history)

    def begin(self, state: SharingState) -> None:
        """Forgets the last episode and adds the first frame."""
        self.frames.clear()
        self.record(state)

    def record(self, state: SharingState) -> None:
        """Adds a frame."""
        self.frames.append(make_frame(state, self.setting.num_nodes))

    def text(self) -> str:
        """The nodes now, and the instances on each."""
        frame = self.frames[-1]
        state, setting = frame.state, self.setting
        lines = [f"t={frame.now_s:8.1f} s  {state.event.name.lower()}  held {state.num_held}"]
        for n in range(setting.num_nodes):
            kind = setting.kinds[setting.node_kinds[n]]
            lines.append(f"  {kind} {n}  memory {frame.held[n]:4.0%} {level(float(frame.held[n]))}")
            for i in range(n * setting.slots_per_node, (n + 1) * setting.slots_per_node):
                row = state.instances[i]
                if row["status"] == InstanceStatus.EMPTY:
                    continue
                status = InstanceStatus(int(row["status"])).name.lower()
                mark = "*" if state.nodes["at_work"][n] == i else " "
                lines.append(
                    f"   {mark}{setting.models[row['model']].name:<20} {status:<9} running {row['num_running']:3d}  "
                    f"waiting {row['num_waiting']:3d}  KV {row['kv_bytes'] / 1e9:5.1f} GB"
                )
        return "\n".join(lines)

    def image(self) -> NDArray[np.uint8]:
        """(height, width, 3), instances, requests and memory of each node over the decisions kept."""
        frames = self.frames
        panels = (
            Panel("instances", np.array([frame.instances for frame in frames]), "viridis"),
            Panel("running requests", np.array([frame.running for frame in frames]), "magma"),
            Panel("waiting requests", np.array([frame.waiting for frame in frames]), "magma"),
            Panel("memory held", np.array([frame.held for frame in frames]), "cividis", 1.0),
        )
        return draw_panels([frame.now_s for frame in frames], panels, "node")
