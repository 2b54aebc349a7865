"""The control plane of a fleet: what commands and faults do to its replicas."""

from __future__ import annotations

from math import isinf
from typing import TypeVar

import simpy

from serving_gym.envs.interface.fleet import Crash, FleetFault, Underway
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.simulator.fleet.build import model_of
from serving_gym.envs.simulator.fleet.links import STORAGE, WEIGHTS, Links
from serving_gym.envs.simulator.fleet.meter import Meter
from serving_gym.envs.simulator.fleet.migrating import Migrating
from serving_gym.envs.simulator.fleet.operations import (
    Crashing,
    Forwarding,
    Operation,
    Phase,
    Resizing,
    Slowing,
    Starting,
    Stopping,
)
from serving_gym.envs.simulator.fleet.places import Places
from serving_gym.envs.simulator.kernel.forwarding import send_away, take_in
from serving_gym.envs.simulator.kernel.state import NEVER, PS_PER_S
from serving_gym.envs.simulator.kernel.world import (
    fail_running,
    flush_cache,
    may_take,
    pool_running,
    pool_waiting,
)
from serving_gym.envs.simulator.plane import Plane, Process
from serving_gym.envs.simulator.scheduling import to_ps

Kind = TypeVar("Kind", bound=Operation)


class FleetPlane(Plane):
    """The operations of a fleet and the steps they are made of.

    Args:
        simulator: The fleet.
    """

    def __init__(self, simulator: Places) -> None:
        super().__init__(simulator)
        self.simulator = simulator
        self.meter = Meter(len(simulator.fleet.places))
        self.links = Links(round(simulator.spec.link_bytes_per_s), round(simulator.spec.storage_bytes_per_s))
        self.boot_ps = to_ps(simulator.spec.start_fixed_s)
        self.stage_ps = to_ps(simulator.spec.migration_stage_s)
        self.migrations_done = self.migrations_aborted = 0
        self._sharing: simpy.Event | None = None

    def fork(self, simulator: Places) -> FleetPlane:
        """A copy for another simulator."""
        copy = self._fork_plane(simulator)
        copy.simulator, copy._sharing = simulator, None
        copy.boot_ps, copy.stage_ps = self.boot_ps, self.stage_ps
        copy.migrations_done, copy.migrations_aborted = self.migrations_done, self.migrations_aborted
        copy.meter, copy.links = self.meter.fork(), self.links.fork()
        return copy

    def __getstate__(self) -> dict[str, object]:
        """As a fork."""
        return {**super().__getstate__(), "_sharing": None}

    def forget_processes(self) -> None:
        """Drops all processes; those of operations that are left begin anew when they are needed."""
        super().forget_processes()
        self._sharing = None

    def process_of(self, operation: Operation) -> Process:
        """The process that carries an operation out from whatever phase it is in."""
        return operation.process(self)

    def start(self, faults: tuple[FleetFault, ...]) -> None:
        """Puts the first replicas into service and schedules the faults that are to come."""
        for place in self.simulator.fleet.running:
            self.meter.open(place, 0)
            self._enlist(place)
        for fault in faults:
            due_ps = to_ps(fault.time_s)
            if isinstance(fault, Crash):
                self.begin(Crashing(fault.place, 0, due_ps))
            else:
                until_ps = NEVER if isinf(fault.duration_s) else due_ps + to_ps(fault.duration_s)
                self.begin(Slowing(fault.place, 0, due_ps, factor=fault.factor, until_ps=until_ps))
        self.catch_up(notified=False)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def underway(self) -> tuple[Underway, ...]:
        """Operations that are not done, without faults, which show in what engines do, and requests on their way."""
        return tuple(
            Underway(
                type(operation).__name__.lower(),
                operation.place,
                operation.started_ps / PS_PER_S,
                self._expected_s(operation),
                operation.request if isinstance(operation, Migrating) else None,
            )
            for operation in self.operations
            if isinstance(operation, (Starting, Stopping, Resizing, Migrating)) and not operation.done
        )

    def _expected_s(self, operation: Operation) -> float | None:
        if operation.due_ps == NEVER:
            return None
        after_ps = self.boot_ps if operation.phase == Phase.FETCH else 0
        return (operation.due_ps + after_ps) / PS_PER_S

    def operation_at(self, kind: type[Kind], place: int) -> Kind | None:
        """The operation of a kind at a place that is not done."""
        for operation in self.operations:
            if isinstance(operation, kind) and operation.place == place and not operation.done:
                return operation
        return None

    def status(self, place: int) -> int:
        """EngineStatus of a place."""
        return int(self.simulator.world.engines["status"][place])

    def empty(self, place: int) -> bool:
        """Whether a replica has nothing left to run or send."""
        engine = self.simulator.world.engines[place]
        at_work = engine["num_running"] + engine["num_waiting"] + engine["num_kept"]
        busy = at_work > 0 or engine["first_transit"] >= 0
        return bool(not busy and engine["step_end_ps"] < 0)

    def still(self, place: int) -> bool:
        """Whether no iteration is in flight."""
        return bool(self.simulator.world.engines["step_end_ps"][place] < 0)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def timer(self, operation: Operation) -> simpy.Event:
        """Event that happens when an operation is due.

        Timers that end together ring in the order in which they were set; so does a fork, whose processes begin in the
        order of `operations`.
        """
        self.operations = [other for other in self.operations if other is not operation] + [operation]
        return self.until(operation.due_ps)

    def next_sharing(self) -> simpy.Event:
        """Event that happens when the links are next shared anew."""
        if self._sharing is None:
            self._sharing = self.environment.event()
        return self._sharing

    # -- starting ------------------------------------------------------------------------------------------------------

    def begin_start(self, place: int) -> None:
        """Begins to bring a replica up."""
        self._set(place, EngineStatus.DOWN)
        size_bytes = round(model_of(self.simulator.fleet.places[place].replica).weight_bytes)
        self.links.begin(self.simulator.now_ps, place, self._source_for(place), size_bytes)
        self.begin(Starting(place, self.simulator.now_ps))
        self._share()

    def begin_transfer(self, place: int, source: int, size_bytes: int, cargo: int = WEIGHTS) -> None:
        """Begins a transfer to a place."""
        self.links.begin(self.simulator.now_ps, place, source, size_bytes, cargo)
        self._share()

    def end_transfer(self, place: int, cargo: int = WEIGHTS) -> None:
        """Ends a transfer to a place, complete or not, if there is one."""
        self.links.end(self.simulator.now_ps, place, cargo)
        self._share()

    def serve(self, place: int) -> None:
        """Brings a replica into service."""
        self._enlist(place)
        self.simulator.dispatch()

    def _enlist(self, place: int) -> None:
        self.simulator.make_room()
        flush_cache(self.simulator.world, place)
        self._set(place, EngineStatus.ACTIVE)

    def _source_for(self, place: int) -> int:
        """Where a place's weights come from: the replica of its endpoint in service that sends least, or storage."""
        fleet = self.simulator.fleet
        if self.simulator.spec.weight_source == "storage":
            return STORAGE
        endpoint = fleet.endpoint_of(place)
        peers = range(fleet.first_place[endpoint], fleet.first_place[endpoint + 1])
        serving = [peer for peer in peers if self.status(peer) == EngineStatus.ACTIVE]
        return min(serving, key=lambda peer: len(self.links.targets_of(peer)), default=STORAGE)

    def _replace_source(self, place: int) -> None:
        """Lets transfers from a replica that is gone go on from elsewhere."""
        for target in self.links.targets_of(place):
            self.links.move(self.simulator.now_ps, target, self._source_for(target))
        self._share()

    def _share(self) -> None:
        """Tells who waits for a transfer when it is now due."""
        for operation in self.operations:
            if isinstance(operation, Starting) and operation.phase == Phase.FETCH:
                operation.due_ps = self.links.due_ps(operation.place)
            elif isinstance(operation, Migrating) and operation.phase == Phase.COPY:
                operation.due_ps = self.links.due_ps(operation.place, operation.request)
        if self._sharing is not None:
            sharing, self._sharing = self._sharing, None
            sharing.succeed()

    # -- stopping ------------------------------------------------------------------------------------------------------

    def begin_stop(self, place: int, drain: bool) -> None:
        """Begins to take a replica out of service; what is on its way to it goes on where it is."""
        self._cancel_resize(place)
        self._break_off_migrations(place, outgoing=not drain)
        self._call_back(place)
        self.simulator.make_room()
        pool_waiting(self.simulator.world, place)
        if not drain:
            pool_running(self.simulator.world, self.simulator.tables, place)
        self._set(place, EngineStatus.DRAINING, notify=1)
        self.simulator.dispatch()
        self.begin(Stopping(place, self.simulator.now_ps))
        self.catch_up(notified=False)

    def retire(self, place: int) -> None:
        """Leaves a place empty."""
        self._set(place, EngineStatus.INACTIVE)
        self.meter.close(place, self.simulator.now_ps)
        self._replace_source(place)

    # -- faults --------------------------------------------------------------------------------------------------------

    def crash(self, place: int) -> None:
        """Loses what a replica runs and starts it again; one that was to go is gone."""
        if self.status(place) == EngineStatus.INACTIVE:
            return
        self._cancel_resize(place)
        self._break_off_migrations(place)
        self._call_back(place)
        self.simulator.make_room()
        pool_waiting(self.simulator.world, place)
        fail_running(self.simulator.world, self.simulator.tables, place)
        if self._cancel(Stopping, place):
            self.retire(place)
        else:
            if self._cancel(Starting, place):
                self.end_transfer(place)
            self._set(place, EngineStatus.DOWN)
            self._replace_source(place)
            self.begin_start(place)
        self.simulator.dispatch()

    def set_speed(self, place: int) -> None:
        """Gives a place the speed that the worst of its slow-downs leaves; the iteration in flight keeps its time."""
        factors = [
            operation.factor
            for operation in self.operations
            if isinstance(operation, Slowing) and operation.place == place and operation.phase == Phase.SLOW
        ]
        kind = self.simulator.kind_of(place, max(factors, default=1.0))
        self.simulator.world.engines["kind"][place] = kind
        self.simulator.dispatch()

    def _cancel(self, kind: type[Operation], place: int) -> bool:
        """Breaks an operation off; returns whether there was one."""
        operation = self.operation_at(kind, place)
        if operation is not None:
            operation.finish()
        return operation is not None

    # -- requests to other regions -------------------------------------------------------------------------------------

    def begin_forward(self, slot: int, place: int, delay_ps: int) -> None:
        """Lets a pooled request begin its way to a place, where it arrives after `delay_ps`."""
        now_ps = self.simulator.now_ps
        send_away(self.simulator.world, slot, place)
        self.begin(Forwarding(place, now_ps, now_ps + delay_ps, slot=slot))

    def deliver(self, place: int, slot: int) -> None:
        """A request arrives; if the place cannot take it any more, it waits for a decision again."""
        simulator = self.simulator
        request = simulator.world.requests[slot]
        most = int(request["prompt"]) + int(request["max_output"])
        if may_take(simulator.world, simulator.tables, place, most):
            take_in(simulator.world, simulator.tables, slot, place)
        else:
            self._return_to_pool(slot)
            simulator.dispatch()

    def _call_back(self, place: int) -> None:
        """Lets requests that are on their way to a place wait for a decision again."""
        for operation in self.operations:
            if isinstance(operation, Forwarding) and operation.place == place and not operation.done:
                operation.finish()
                self._return_to_pool(operation.slot)

    def _return_to_pool(self, slot: int) -> None:
        world = self.simulator.world
        take_in(world, self.simulator.tables, slot, len(world.engines))

    # -- migrations ----------------------------------------------------------------------------------------------------

    def migration_of(self, request: int) -> Migrating | None:
        """The migration of a request that is under way."""
        for operation in self.operations:
            if isinstance(operation, Migrating) and operation.request == request and not operation.done:
                return operation
        return None

    def _break_off_migrations(self, place: int, outgoing: bool = True) -> None:
        """Breaks off migrations to a place, and with `outgoing` those from it."""
        for operation in self.operations:
            concerned = isinstance(operation, Migrating) and not operation.done
            if concerned and (operation.place == place or (outgoing and operation.source == place)):
                operation.break_off(self)

    # -- KV pools ------------------------------------------------------------------------------------------------------

    def begin_resize(self, place: int, kv_blocks: int, copy_ps: int) -> None:
        """Begins to give a replica another pool; what is smaller from then on can be relied on at once.

        Requests do not migrate from and to it meanwhile.
        """
        self._break_off_migrations(place)
        engine = self.simulator.world.engines[place]
        if kv_blocks < engine["total_blocks"]:
            self.simulator.make_room()
            pool_waiting(self.simulator.world, place)
            self._allow(place, kv_blocks)
        self._set(place, EngineStatus.ACTIVE, hold=1, notify=1)
        self.simulator.dispatch()
        resizing = Resizing(place, self.simulator.now_ps, kv_blocks=kv_blocks, copy_ps=copy_ps)
        self.begin(resizing)
        self.catch_up(notified=False)

    def hush(self, place: int) -> None:
        """Lets a replica that stands still do so without telling."""
        self.simulator.world.engines["notify"][place] = 0

    def resume(self, place: int, kv_blocks: int) -> None:
        """Lets a replica go on with another pool."""
        self.simulator.world.engines["total_blocks"][place] = kv_blocks
        self._allow(place, kv_blocks)
        self._set(place, EngineStatus.ACTIVE)
        self.simulator.dispatch()

    def _cancel_resize(self, place: int) -> None:
        if self._cancel(Resizing, place):
            self._allow(place, int(self.simulator.world.engines["total_blocks"][place]))

    def _allow(self, place: int, kv_blocks: int) -> None:
        """Sets how many blocks a replica may use, and with them how long a request may be."""
        world = self.simulator.world
        self.simulator.make_room()
        world.engines["capacity_blocks"][place] = kv_blocks
        flush_cache(world, place)
        self.simulator.set_request_limits(self.simulator.fleet.endpoint_of(place))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _set(self, place: int, status: EngineStatus, hold: int = 0, notify: int = 0) -> None:
        engine = self.simulator.world.engines[place]
        engine["status"], engine["hold"], engine["notify"] = status, hold, notify
