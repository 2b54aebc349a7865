"""What goes on in a fleet, as records: a phase, a due time, and a process that can be begun in any phase."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import simpy

from serving_gym.envs.simulator.fleet.places import Places
from serving_gym.envs.simulator.kernel.state import NEVER
from serving_gym.envs.simulator.plane import Process


class Phase(IntEnum):
    """Where an operation stands."""

    PENDING = 0  # a timer: a fault that is to come
    DRAIN = 1  # waiting for running requests to end
    FETCH = 2  # a timer that other transfers move: weights on their way
    BOOT = 3  # a timer: the engine starts
    HALT = 4  # waiting for the iteration in flight to end
    COPY = 5  # a timer: KV blocks are copied
    SLOW = 6  # a timer: iterations take longer
    ASK = 7  # a timer: a stage of a migration is set up
    LEAVE = 8  # a timer: the iteration in flight ends, and with it a request leaves the batch
    DONE = 9


@dataclass
class Operation:
    """Something under way at a place.

    Args:
        place: Where.
        started_ps: When it began.
        due_ps: When its timer ends, NEVER where it waits for something else.
        phase: Where it stands.
    """

    place: int
    started_ps: int
    due_ps: int = NEVER
    phase: Phase = Phase.PENDING

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.phase == Phase.DONE

    def finish(self) -> None:
        """Nothing is left to do; a process that waits ends when it is woken."""
        self.phase, self.due_ps = Phase.DONE, NEVER

    def process(self, plane: Steps) -> Process:
        """Carries it out from whatever phase it is in."""
        raise NotImplementedError


class Steps(Protocol):
    """What operations need of the control plane: waiting, and the steps that they are made of.

    Attributes:
        simulator: The fleet.
        boot_ps: What an engine takes to start when its weights have come.
        stage_ps: What a stage of a migration takes to set up.
        migrations_done: Requests that have been moved.
        migrations_aborted: Moves that were broken off.
    """

    simulator: Places
    boot_ps: int
    stage_ps: int
    migrations_done: int
    migrations_aborted: int

    def timer(self, operation: Operation) -> simpy.Event:
        """Event that happens when an operation is due."""
        ...

    def next_notice(self) -> simpy.Event:
        """Event that happens when the kernel next stops for an engine."""
        ...

    def next_sharing(self) -> simpy.Event:
        """Event that happens when the links are next shared anew."""
        ...

    def begin_transfer(self, place: int, source: int, size_bytes: int, cargo: int = ...) -> None:
        """Begins a transfer to a place."""
        ...

    def end_transfer(self, place: int, cargo: int = ...) -> None:
        """Ends a transfer to a place, complete or not, if there is one."""
        ...

    def serve(self, place: int) -> None:
        """Brings a replica into service."""
        ...

    def retire(self, place: int) -> None:
        """Leaves a place empty."""
        ...

    def empty(self, place: int) -> bool:
        """Whether a replica has nothing left to run or send."""
        ...

    def still(self, place: int) -> bool:
        """Whether no iteration is in flight."""
        ...

    def hush(self, place: int) -> None:
        """Lets a replica that stands still do so without telling."""
        ...

    def resume(self, place: int, kv_blocks: int) -> None:
        """Lets a replica go on with another pool."""
        ...

    def deliver(self, place: int, slot: int) -> None:
        """A request arrives from another region."""
        ...

    def crash(self, place: int) -> None:
        """Loses what a replica runs and starts it again."""
        ...

    def set_speed(self, place: int) -> None:
        """Gives a place the speed that the worst of its slow-downs leaves."""
        ...


@dataclass
class Starting(Operation):
    """A replica that starts from cold: its weights come, then the engine starts."""

    phase: Phase = Phase.FETCH

    def process(self, plane: Steps) -> Process:
        """Carries it out from whatever phase it is in."""
        while self.phase == Phase.FETCH:
            yield plane.timer(self) | plane.next_sharing()
            if plane.simulator.now_ps >= self.due_ps:
                self.phase, self.due_ps = Phase.BOOT, self.due_ps + plane.boot_ps
                plane.end_transfer(self.place)
        if self.phase == Phase.BOOT:
            yield plane.timer(self)
        if self.phase == Phase.BOOT:
            self.finish()
            plane.serve(self.place)


@dataclass
class Stopping(Operation):
    """A replica that is taken out of service when what it runs has ended."""

    phase: Phase = Phase.DRAIN

    def process(self, plane: Steps) -> Process:
        """Carries it out from whatever phase it is in."""
        while self.phase == Phase.DRAIN and not plane.empty(self.place):
            yield plane.next_notice()
        if self.phase == Phase.DRAIN:
            self.finish()
            plane.retire(self.place)


@dataclass
class Resizing(Operation):
    """A replica that gets a KV pool of `kv_blocks`: it stands still while what it has is copied."""

    phase: Phase = Phase.HALT
    kv_blocks: int = 0
    copy_ps: int = 0

    def process(self, plane: Steps) -> Process:
        """Carries it out from whatever phase it is in."""
        while self.phase == Phase.HALT and not plane.still(self.place):
            yield plane.next_notice()
        if self.phase == Phase.HALT:
            self.phase, self.due_ps = Phase.COPY, plane.simulator.now_ps + self.copy_ps
            plane.hush(self.place)
        if self.phase == Phase.COPY:
            yield plane.timer(self)
        if self.phase == Phase.COPY:
            self.finish()
            plane.resume(self.place, self.kv_blocks)


@dataclass
class Forwarding(Operation):
    """A request on its way to a replica in another region.

    Args:
        slot: Where the kernel has it.
    """

    slot: int = -1

    def process(self, plane: Steps) -> Process:
        """Carries it out from whatever phase it is in."""
        yield plane.timer(self)
        if not self.done:
            self.finish()
            plane.deliver(self.place, self.slot)


@dataclass
class Crashing(Operation):
    """A crash that is to come."""

    def process(self, plane: Steps) -> Process:
        """Carries it out from whatever phase it is in."""
        yield plane.timer(self)
        self.finish()
        plane.crash(self.place)


@dataclass
class Slowing(Operation):
    """Iterations of a place that will take, or take, `factor` times as long until `until_ps`."""

    factor: float = 1.0
    until_ps: int = NEVER

    def process(self, plane: Steps) -> Process:
        """Carries it out from whatever phase it is in."""
        if self.phase == Phase.PENDING:
            yield plane.timer(self)
            self.phase, self.due_ps = Phase.SLOW, self.until_ps
            plane.set_speed(self.place)
        yield plane.timer(self)
        self.finish()
        plane.set_speed(self.place)
