"""Pictures of nodes that are shared: instances, requests and memory of each, now and over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.render import BaseRenderer, Panel, level
from serving_gym.envs.interface.sharing import InstanceStatus
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


class Renderer(BaseRenderer[Frame]):
    """Draws shared nodes."""

    rows = "node"

    def frame(self, state: SharingState) -> Frame:
        """What is kept of a state."""
        return make_frame(state, self.episode.setting.num_nodes)

    def text(self) -> str:
        """The nodes now, and the instances on each."""
        frame = self.frames[-1]
        state, setting = frame.state, self.episode.setting
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

    def panels(self) -> tuple[Panel, ...]:
        """Instances, requests and memory of each node."""
        return (
            Panel("instances", self._over_time("instances"), "viridis"),
            Panel("running requests", self._over_time("running"), "magma"),
            Panel("waiting requests", self._over_time("waiting"), "magma"),
            Panel("memory held", self._over_time("held"), "cividis", 1.0),
        )
