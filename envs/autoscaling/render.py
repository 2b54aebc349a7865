"""Pictures of a fleet that is scaled: instances, utilisation, queues and traffic of each endpoint."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.autoscaling.state import AutoscalingState, InstanceStatus
from serving_gym.envs.base.render import BaseRenderer, Panel, level

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_RATE_OVER_S = 300.0


@dataclass(frozen=True, eq=False)
class Frame:
    """What the picture shows of one moment; arrays are (endpoints,)."""

    now_s: float
    running: NDArray[np.float64]  # instances
    coming: NDArray[np.float64]  # instances that start
    usage: NDArray[np.float64]  # effective memory utilisation, ratio
    waiting: NDArray[np.float64]  # requests, those at the gateway included
    queued: NDArray[np.float64]  # non-interactive ones in the queue manager
    tokens_per_s: NDArray[np.float64]  # interactive prompt tokens
    state: AutoscalingState


def make_frame(state: AutoscalingState) -> Frame:
    """Reads a frame off a state."""
    rows = []
    for own in state.endpoints:
        usage = own.utilization()
        past = own.history.last(_RATE_OVER_S)
        rows.append(
            (
                len(own.running),
                len(own.starting),
                usage if np.isfinite(usage) else 0.0,
                int(own.instances["num_waiting"].sum()) + own.num_held,
                own.niw_queued,
                float(past["input_tokens"].sum()) / max(len(past) * own.history.bin_s, 1e-9),
            )
        )
    running, coming, usage, waiting, queued, tokens_per_s = np.array(rows, np.float64).T
    return Frame(state.now_s, running, coming, usage, waiting, queued, tokens_per_s, state)


class Renderer(BaseRenderer[Frame]):
    """Draws a fleet."""

    history = 2100
    rows = "endpoint"

    def frame(self, state: AutoscalingState) -> Frame:
        """What is kept of a state."""
        return make_frame(state)

    def text(self) -> str:
        """The fleet now, one line an endpoint."""
        frame = self.frames[-1]
        state = frame.state
        day, hour = divmod(state.clock_s / 3600.0, 24)
        vacant = ", ".join(f"{region} {int(count.sum())}" for region, count in state.vacant.items())
        lines = [f"{_DAYS[int(day) % 7]} {int(hour):02d}:{int(hour % 1 * 60):02d}  vacant machines: {vacant}"]
        for row, own in enumerate(state.endpoints):
            draining = len(own.with_status(InstanceStatus.DRAINING))
            lines.append(
                f"  {own.endpoint.model:<16} {own.endpoint.region:<10} running {len(own.running):2d} "
                f"starting {len(own.starting):2d} draining {draining:2d} spot {int(own.spot.sum()):2d}  "
                f"KV {frame.usage[row]:4.0%} {level(frame.usage[row])}  waiting {int(frame.waiting[row]):5d} "
                f"queued {own.niw_queued:6d}  {frame.tokens_per_s[row]:8.0f} tokens/s"
            )
        return "\n".join(lines)

    def panels(self) -> tuple[Panel, ...]:
        """Instances, utilisation, queues and traffic of each endpoint."""
        return (
            Panel("running instances", self._over_time("running"), "viridis"),
            Panel("starting instances", self._over_time("coming"), "viridis"),
            Panel("KV in use", self._over_time("usage"), "cividis", 1.0),
            Panel("waiting requests", self._over_time("waiting"), "magma"),
            Panel("queued requests that are not interactive", self._over_time("queued"), "magma"),
            Panel("prompt tokens/s", self._over_time("tokens_per_s"), "magma"),
        )
