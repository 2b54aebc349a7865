"""The control plane of a fleet: replicas that are started and stopped."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calibration.models import get_model
from envs.backend import EngineStatus
from envs.fleet import FleetCommand, FleetFault, Route, Start, Stop
from envs.simulator.kernel.state import NEVER, PS_PER_S, WAITING
from envs.simulator.kernel.world import flush_cache, may_take, pool_running, pool_waiting, send
from envs.simulator.plane import Plane, Process
from envs.simulator.scheduling import to_ps

if TYPE_CHECKING:
    from envs.simulator.fleet.simulator import FleetSimulator


class Phase(IntEnum):
    """Where an operation stands."""

    DRAIN = 0  # waiting for running requests to end
    LOAD = 1  # a timer: weights on their way, engine starting
    DONE = 2


@dataclass
class Starting:
    """A replica that starts from cold."""

    place: int
    started_ps: int
    due_ps: int
    phase: Phase = Phase.LOAD

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.phase == Phase.DONE


@dataclass
class Stopping:
    """A replica that is taken out of service when what it runs has ended."""

    place: int
    started_ps: int
    due_ps: int = NEVER
    phase: Phase = Phase.DRAIN

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.phase == Phase.DONE


@dataclass(frozen=True, slots=True)
class Underway:
    """What a policy sees of an operation."""

    kind: str  # starting or stopping
    place: int
    started_s: float
    due_s: float | None  # None: when what it waits for has ended


class FleetPlane(Plane):
    """Carries out commands and faults on a fleet's replicas.

    Args:
        simulator: The fleet.
    """

    def __init__(self, simulator: FleetSimulator) -> None:
        super().__init__(simulator)
        self.simulator = simulator
        places = len(simulator.fleet.places)
        self._kept_ps = np.zeros(places, np.int64)  # time for which replicas were kept that are gone
        self._since_ps = np.full(places, -1, np.int64)  # since when a replica is kept, -1 where there is none

    def fork(self, simulator: FleetSimulator) -> FleetPlane:
        """A copy for another simulator."""
        copy = self._fork_plane(simulator)
        copy.simulator = simulator
        copy._kept_ps, copy._since_ps = self._kept_ps.copy(), self._since_ps.copy()
        return copy

    def process_of(self, operation: Starting | Stopping) -> Process:
        """The process that carries an operation out from whatever phase it is in."""
        return self._start(operation) if isinstance(operation, Starting) else self._stop(operation)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def gpu_seconds(self) -> NDArray[np.float64]:
        """GPU-seconds that replicas have been kept, by place: from the command that starts one until it is gone."""
        kept = self._kept_ps + np.where(self._since_ps >= 0, self.simulator.now_ps - self._since_ps, 0)
        return np.asarray(kept / PS_PER_S * self.simulator.world.engines["width"], np.float64)

    def underway(self) -> tuple[Underway, ...]:
        """Operations that are not done."""
        return tuple(
            Underway(
                type(operation).__name__.lower(),
                operation.place,
                operation.started_ps / PS_PER_S,
                None if operation.due_ps == NEVER else operation.due_ps / PS_PER_S,
            )
            for operation in self.operations
            if isinstance(operation, (Starting, Stopping))
        )

    # -- commands ------------------------------------------------------------------------------------------------------

    def start(self, faults: tuple[FleetFault, ...]) -> None:
        """Puts the first replicas into service and schedules the faults that are to come."""
        for place in self.simulator.fleet.running:
            self._since_ps[place] = 0
            self._serve(place)

    def obey(self, command: FleetCommand) -> str:
        """Begins to carry out a command; returns why it cannot be, or nothing."""
        if isinstance(command, Route):
            return self._route(command)
        if not 0 <= command.place < len(self.simulator.fleet.places):
            return f"there is no place {command.place}; the fleet has {len(self.simulator.fleet.places)}"
        if isinstance(command, Start):
            return self._begin_start(command.place)
        if isinstance(command, Stop):
            return self._begin_stop(command)
        return f"{type(command).__name__} is not carried out yet"

    def _begin_start(self, place: int) -> str:
        if self._status(place) != EngineStatus.INACTIVE:
            return f"place {place} is not empty"
        now = self.simulator.now_ps
        self._set(place, EngineStatus.DOWN)
        self._since_ps[place] = now
        self.begin(Starting(place, now, now + self._start_ps(place)))
        return ""

    def _start_ps(self, place: int) -> int:
        spec, replica = self.simulator.spec, self.simulator.fleet.places[place].replica
        load_s = get_model(replica.model).weight_bytes / spec.storage_bytes_per_s
        return to_ps(spec.start_fixed_s + load_s)

    def _begin_stop(self, command: Stop) -> str:
        place = command.place
        if self._status(place) != EngineStatus.ACTIVE:
            return f"place {place} has no replica in service"
        self.simulator.make_room()
        pool_waiting(self.simulator.world, place)
        if not command.drain:
            pool_running(self.simulator.world, self.simulator.tables, place)
        self._set(place, EngineStatus.DRAINING, notify=1)
        self.simulator.dispatch()
        self.begin(Stopping(place, self.simulator.now_ps))
        self.catch_up(notified=False)
        return ""

    def _route(self, command: Route) -> str:
        world, place = self.simulator.world, command.place
        slots = np.flatnonzero(
            (world.requests["index"] == command.request) & (world.requests["phase"] == WAITING)
        )
        if not len(slots) or world.requests["engine"][slots[0]] >= 0:
            return f"request {command.request} is not waiting to be sent to an engine"
        request = world.requests[slots[0]]
        endpoint = world.endpoints[request["endpoint"]]
        if not endpoint["first"] <= place < endpoint["last"]:
            return f"place {place} does not serve the model of request {command.request} in its region"
        most = int(request["prompt"]) + int(request["max_output"])
        if not may_take(world, self.simulator.tables, place, most):
            return f"place {place} has no replica in service that could hold request {command.request}"
        self.simulator.make_room()
        send(world, self.simulator.tables, int(slots[0]), place)
        return ""

    # -- processes -----------------------------------------------------------------------------------------------------

    def _start(self, starting: Starting) -> Process:
        yield self.until(starting.due_ps)
        starting.phase, starting.due_ps = Phase.DONE, NEVER
        self._serve(starting.place)
        self.simulator.dispatch()

    def _stop(self, stopping: Stopping) -> Process:
        while not self._empty(stopping.place):
            yield self.next_notice()
        stopping.phase = Phase.DONE
        self._retire(stopping.place)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _status(self, place: int) -> int:
        return int(self.simulator.world.engines["status"][place])

    def _set(self, place: int, status: EngineStatus, hold: int = 0, notify: int = 0) -> None:
        engine = self.simulator.world.engines[place]
        engine["status"], engine["hold"], engine["notify"] = status, hold, notify

    def _empty(self, place: int) -> bool:
        engine = self.simulator.world.engines[place]
        busy = engine["num_running"] + engine["num_waiting"] > 0 or engine["first_transit"] >= 0
        return bool(not busy and engine["step_end_ps"] < 0)

    def _serve(self, place: int) -> None:
        flush_cache(self.simulator.world, place)
        self._set(place, EngineStatus.ACTIVE)

    def _retire(self, place: int) -> None:
        self._set(place, EngineStatus.INACTIVE)
        self._kept_ps[place] += self.simulator.now_ps - self._since_ps[place]
        self._since_ps[place] = -1
