"""The clock of a control plane: operations as records, and the SimPy processes that execute them.

Each operation is a small record: a kind, a phase and a due time. Its process is written so that it can begin in any
phase, because a fork of the world copies the records and starts processes of its own only if it runs that far; SimPy's
generators cannot be copied. SimPy owns the clock here: the kernel advances to the next due time, or stops early when an
watched engine has become idle, and then the processes continue.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, Self

import simpy

from serving_gym.envs.simulator.body import Body
from serving_gym.envs.simulator.kernel.state import NEVER

Process = Generator[simpy.Event, None, None]


class Plane:
    """Operations in progress on a simulated cluster.

    An operation is a dataclass with `due_ps`, when its timer ends (NEVER where it waits for something else), and
    `done`.

    Args:
        body: The cluster.
    """

    def __init__(self, body: Body) -> None:
        self._body = body
        self.operations: list[Any] = []
        self._env: simpy.Environment | None = None
        self._notice: simpy.Event | None = None

    def process_of(self, operation: Any) -> Process:
        """The process that executes an operation from its present phase."""
        raise NotImplementedError

    def _fork_plane(self, body: Body) -> Self:
        """A copy for another simulator: the records, and no processes until they are needed."""
        copy = type(self).__new__(type(self))
        copy._body = body
        copy.operations = [replace(operation) for operation in self.operations]
        copy._env = copy._notice = None
        return copy

    def __getstate__(self) -> dict[str, Any]:
        """As a fork: processes cannot be pickled and are begun anew from the records when they are needed."""
        return {**self.__dict__, "_env": None, "_notice": None}

    def next_due_ps(self) -> int:
        """Time of the next timer, or NEVER."""
        return min((operation.due_ps for operation in self.operations), default=NEVER)

    def catch_up(self, notified: bool) -> bool:
        """Runs every process step that is due now; `notified`: whether the kernel stopped for an engine.

        Returns whether an operation is in progress, so that engines may have changed.
        """
        if not self.operations:
            return False
        self._body.make_room()
        env = self.environment
        now = self._body.now_ps
        if now > env.now:
            env.run(until=now)
        if notified and self._notice is not None:
            notice, self._notice = self._notice, None
            notice.succeed()
        while env.peek() <= now:
            env.step()
        self.operations = [operation for operation in self.operations if not operation.done]
        if not self.operations:
            self.forget_processes()
        return True

    def forget_processes(self) -> None:
        """Drops all processes; those of remaining operations restart when needed."""
        self._env = self._notice = None

    @property
    def environment(self) -> simpy.Environment:
        """SimPy's clock, with a process for each operation."""
        if self._env is None:
            self._env = simpy.Environment(initial_time=self._body.now_ps)
            for operation in self.operations:
                self._env.process(self.process_of(operation))
        return self._env

    def begin(self, operation: Any) -> None:
        """Starts an operation."""
        env = self.environment
        if self._body.now_ps > env.now:
            env.run(until=self._body.now_ps)
        self.operations.append(operation)
        env.process(self.process_of(operation))

    def until(self, due_ps: int) -> simpy.Event:
        """Event that happens at `due_ps`."""
        env = self.environment
        return env.timeout(max(0, due_ps - int(env.now)))

    def next_notice(self) -> simpy.Event:
        """Event that happens when the kernel next stops for an engine."""
        if self._notice is None:
            self._notice = self.environment.event()
        return self._notice
