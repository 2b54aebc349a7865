"""Rendering of a cluster divided into replicas: the replica on each GPU, and its load."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.render import BaseRenderer, Panel, level
from serving_gym.envs.deployment.state import DeploymentState
from serving_gym.envs.interface.state import EngineStatus


@dataclass(frozen=True, eq=False)
class Frame:
    """What the picture shows of one moment; arrays are (GPUs,)."""

    now_s: float
    size: NDArray[np.float64]  # GPUs of the replica
    running: NDArray[np.float64]  # requests of the replica
    waiting: NDArray[np.float64]
    kv: NDArray[np.float64]  # ratio
    state: DeploymentState


def make_frame(state: DeploymentState) -> Frame:
    """Reads a frame off a state."""
    size, running, waiting, kv = np.zeros((4, state.deployment.cluster.num_gpus))
    for replica, engine in zip(state.deployment.replicas, state.engines, strict=True):
        gpus = list(replica.gpus)
        size[gpus] = replica.kind.num_gpus
        running[gpus], waiting[gpus] = engine["num_running"], engine["num_waiting"]
        kv[gpus] = engine["kv_used_blocks"] / max(1, int(engine["kv_capacity_blocks"]))
    return Frame(state.now_s, size, running, waiting, kv, state)


class Renderer(BaseRenderer[Frame]):
    """Draws a cluster that is cut into replicas."""

    rows = "GPU"

    def frame(self, state: DeploymentState) -> Frame:
        """What is kept of a state."""
        return make_frame(state)

    def text(self) -> str:
        """The cluster now, one line a replica."""
        state = self.frames[-1].state
        switch = "" if state.switch is None else "  draining" if state.switch.draining else "  switching"
        lines = [f"t={state.now_s:8.1f} s  {state.deployment}{switch}  pooled {state.num_pooled}"]
        for row, replica in enumerate(state.deployment.replicas):
            engine = state.engines[row]
            kv = engine["kv_used_blocks"] / max(1, int(engine["kv_capacity_blocks"]))
            status = EngineStatus(int(engine["status"])).name.lower()
            lines.append(
                f"  {replica.kind!s:<16} GPUs {','.join(map(str, replica.gpus)):<20} {status:<9} running "
                f"{engine['num_running']:4d}  waiting {engine['num_waiting']:4d}  KV {kv:4.0%} {level(kv)}"
            )
        return "\n".join(lines)

    def panels(self) -> tuple[Panel, ...]:
        """Size of the replica, requests and KV of each GPU."""
        return (
            Panel("GPUs of the replica", self._over_time("size"), "viridis"),
            Panel("running requests of the replica", self._over_time("running"), "magma"),
            Panel("waiting requests of the replica", self._over_time("waiting"), "magma"),
            Panel("KV in use", self._over_time("kv"), "cividis", 1.0),
        )
