"""From a simulated fleet to what an autoscaler may know of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.envs.autoscaling.config import AutoscalingConfig
from serving_gym.envs.autoscaling.state import (
    INSTANCE_DTYPE,
    AutoscalingSpec,
    AutoscalingState,
    EndpointState,
    InstanceStatus,
)
from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE, Traffic
from serving_gym.envs.interface.state import IN_FLIGHT_DTYPE, EngineStatus
from serving_gym.envs.simulator.autoscaling.bins import PAST_COLUMNS
from serving_gym.envs.simulator.autoscaling.simulator import AutoscalingSimulator
from serving_gym.envs.simulator.kernel.router_view import in_flight_rows
from serving_gym.envs.simulator.kernel.state import PS_PER_S
from serving_gym.envs.workload.streams import RequestStream

STATUS = {
    EngineStatus.DOWN: InstanceStatus.STARTING,
    EngineStatus.ACTIVE: InstanceStatus.RUNNING,
    EngineStatus.DRAINING: InstanceStatus.DRAINING,
}


@dataclass
class StateReader:
    """Reads states off a fleet.

    Attributes:
        spec: What policies know before an episode.
        clock_s: Seconds since Monday, 0:00, when the episode began.
        num_recent: Short bins that are shown.
        coming_bin_s: Length of the bins of what is to come.
        coming: (P, T, columns of TRAFFIC_DTYPE), expected.
    """

    spec: AutoscalingSpec
    clock_s: float = 0.0
    num_recent: int = 1
    coming_bin_s: float = 60.0
    coming: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0, 0)))

    def begin(
        self, simulator: AutoscalingSimulator, stream: RequestStream, config: AutoscalingConfig
    ) -> None:
        """Prepares for an episode: lays out what is to come, for clairvoyant references."""
        self.clock_s = stream.clock_s
        self.num_recent = round(config.recent_s / config.recent_bin_s)
        self.coming_bin_s = config.history_bin_s
        count = int(-(-stream.duration_s // self.coming_bin_s))
        expected = stream.expected(self.coming_bin_s, count)
        table = simulator.endpoint_table(stream.models, stream.regions)
        self.coming = np.zeros((len(self.spec.endpoints), count, len(TRAFFIC_DTYPE.names or ())))
        for c, interactive in enumerate(self.spec.interactive):
            for m in range(expected.shape[1]):
                for r in range(expected.shape[2]):
                    self.coming[table[m, r], :, PAST_COLUMNS[interactive]] += expected[c, m, r].T

    def read(self, simulator: AutoscalingSimulator) -> AutoscalingState:
        """The state now."""
        in_flight = in_flight_of(simulator)
        table = self.instances(simulator, in_flight)
        held = simulator.held_by_gateway()
        endpoints = tuple(
            self._endpoint(simulator, number, table, int(held[number]))
            for number in range(len(self.spec.endpoints))
        )
        inventory = simulator.plane.inventory
        return AutoscalingState(
            now_s=simulator.now_s,
            clock_s=self.clock_s + simulator.now_s,
            endpoints=endpoints,
            vacant={
                region: inventory.vacant[number].copy()
                for number, region in enumerate(simulator.layout.regions)
            },
            in_flight=in_flight,
            coming=tuple(self._coming(simulator, number) for number in range(len(endpoints))),
        )

    def instances(self, simulator: AutoscalingSimulator, in_flight: NDArray[np.void]) -> NDArray[np.void]:
        """(E,) INSTANCE_DTYPE, a row each place; status -1 where it is empty."""
        engines, plane = simulator.shown(), simulator.plane
        rows = np.zeros(len(engines), INSTANCE_DTYPE)
        rows["place"] = np.arange(len(engines))
        rows["status"] = -1
        for engine_status, status in STATUS.items():
            rows["status"][engines["status"] == engine_status] = status
        assert simulator.gate is not None
        rows["pool"], rows["gpu"] = simulator.gate.pools, simulator.layout.kind_of
        rows["since_s"] = plane.since_ps / PS_PER_S
        rows["due_s"] = np.nan
        for place in np.flatnonzero(rows["status"] == InstanceStatus.STARTING).tolist():
            rows["due_s"][place] = plane.due_s(place)
        for name in ("num_running", "num_waiting", "kv_capacity_tokens"):
            rows[name] = engines[name]
        _count_interactive(in_flight, simulator.interactive, rows)
        rows["waiting_tokens"] = engines["pending_prefill_tokens"]
        blocks = np.maximum(engines["kv_capacity_blocks"], 1)
        rows["kv_used_tokens"] = engines["kv_used_blocks"] * (engines["kv_capacity_tokens"] // blocks)
        return rows

    def _endpoint(
        self, simulator: AutoscalingSimulator, number: int, table: NDArray[np.void], held: int
    ) -> EndpointState:
        assert simulator.gate is not None
        line = simulator.gate.lines[number]
        oldest_s = 0.0
        if line["count"]:
            arrived = simulator.world.requests["arrival_ps"][line["first"]]
            oldest_s = (simulator.now_ps - int(arrived)) / PS_PER_S
        mine = (simulator.layout.endpoint_of == number) & (table["status"] >= 0)
        books = simulator.books
        return EndpointState(
            endpoint=self.spec.endpoints[number],
            instances=table[mine],
            spot=simulator.plane.inventory.spot[number].copy(),
            num_held=held,
            niw_queued=int(line["count"]),
            niw_queued_tokens=int(line["tokens"]),
            niw_oldest_s=oldest_s,
            recent=books.recent.traffic(number, simulator.now_ps, self.num_recent),
            history=books.history.traffic(number, simulator.now_ps),
            weights_local=simulator.machines.weights_local(number),
            release_level=int(simulator.release_level[number]),
        )

    def _coming(self, simulator: AutoscalingSimulator, number: int) -> Traffic:
        first = int(simulator.now_s // self.coming_bin_s)
        rows = self.coming[number, first:].view(TRAFFIC_DTYPE).reshape(-1)
        return Traffic(self.coming_bin_s, self.coming_bin_s * self.coming.shape[1], rows)


@njit(cache=True)
def _count_interactive(
    in_flight: NDArray[np.void], interactive: NDArray[np.int8], rows: NDArray[np.void]
) -> None:
    """Counts the interactive requests in flight of each row, a place."""
    for i in range(len(in_flight)):
        rows[in_flight[i].place].num_interactive += interactive[in_flight[i].class_id]


def in_flight_of(simulator: AutoscalingSimulator) -> NDArray[np.void]:
    """(M,) IN_FLIGHT_DTYPE, requests that instances have or will get."""
    world = simulator.world
    rows = np.empty(int(world.cluster["num_in_flight"][0]), IN_FLIGHT_DTYPE)
    count = in_flight_rows(world, simulator.priorities, rows)
    return rows[:count]
