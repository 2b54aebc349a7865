"""Reconfigurations and failures of a node whose engines can be merged and split.

A live switch (Flying Serving, section 5.2) of one region of the node:

    sequential   its engines drain; cut over when the last straggler is done
    soft         the same, but engines done early serve new requests in DP meanwhile; these are recomputed after
    hard         its engines stop after the iteration in flight; merging leaves their requests paused with KV resident,
                 splitting has the TP requests recomputed (their KV is sliced over the group, no member can go on alone)

Our choices where the text is open: requests of a dissolved TP group under hard preemption are recomputed; paused
requests whose base engines end up in narrower groups than the one they ran on are recomputed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from serving_gym.envs.interface.cluster import Fault
from serving_gym.envs.interface.commands import Redeploy, SwitchMode
from serving_gym.envs.interface.layout import Group, groups_of
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.simulator.kernel.state import NEVER, World
from serving_gym.envs.simulator.kernel.world import (
    fail_running,
    flush_cache,
    pool_running,
    pool_waiting,
)
from serving_gym.envs.simulator.node import Node
from serving_gym.envs.simulator.plane import Plane, Process
from serving_gym.envs.simulator.scheduling import to_ps


class Phase(IntEnum):
    """Phase of an operation."""

    DRAIN = 0  # waiting for running requests, or for the iteration in flight (hard)
    QUIESCE = 1  # stopping engines that served in DP meanwhile
    CUTOVER = 2  # a timer: communicators swapped, or engines starting from cold
    DONE = 3


@dataclass
class Switch:
    """A live switch of one region."""

    region: Group
    target: tuple[Group, ...]
    mode: SwitchMode
    started_ps: int
    phase: Phase = Phase.DRAIN
    due_ps: int = NEVER

    @property
    def done(self) -> bool:
        """Whether the operation is finished."""
        return self.phase == Phase.DONE


@dataclass
class Restart:
    """A cold start of engines, after a redeployment or a failure."""

    region: Group
    target: tuple[Group, ...]
    started_ps: int
    due_ps: int
    phase: Phase = Phase.CUTOVER

    @property
    def done(self) -> bool:
        """Whether the operation is finished."""
        return self.phase == Phase.DONE


@dataclass
class PendingFault:
    """A scheduled GPU failure."""

    fault: Fault
    due_ps: int
    phase: Phase = Phase.CUTOVER

    @property
    def done(self) -> bool:
        """Whether the operation is finished."""
        return self.phase == Phase.DONE


Operation = Switch | Restart | PendingFault


class ControlPlane(Plane):
    """Carries out operations on a simulator's engines."""

    def __init__(self, simulator: Node) -> None:
        super().__init__(simulator)
        self.simulator = simulator
        self.layout: tuple[Group, ...] = ()
        self.execution = "tp"
        self.weights = simulator.cluster.spec.weights

    def fork(self, simulator: Node) -> ControlPlane:
        """A copy for another simulator."""
        copy = self._fork_plane(simulator)
        copy.simulator = simulator
        copy.layout, copy.execution, copy.weights = self.layout, self.execution, self.weights
        return copy

    def process_of(self, operation: Operation) -> Process:
        """The process that executes an operation from its present phase."""
        if isinstance(operation, Switch):
            return self._switch(operation)
        if isinstance(operation, Restart):
            return self._restart(operation)
        return self._fail(operation)

    def start(self, layout: tuple[Group, ...], faults: tuple[Fault, ...]) -> None:
        """Puts the first layout into service and schedules the failures."""
        self.layout = layout
        self._bind(layout)
        for fault in faults:
            self.begin(PendingFault(fault, to_ps(fault.time_s)))

    # -- operations ----------------------------------------------------------------------------------------------------

    def busy_regions(self) -> list[Switch | Restart]:
        """Reconfigurations in flight."""
        return [operation for operation in self.operations if not isinstance(operation, PendingFault)]

    def begin_switch(self, region: Group, target: tuple[Group, ...], mode: SwitchMode) -> None:
        """Begins to turn `region` into the groups `target`."""
        for group in self._current(region):
            pool_waiting(self._world, self.simulator.cluster.slot(group))
            self._set(group, EngineStatus.DRAINING, notify=1)
        if mode == SwitchMode.HARD:
            self._hold(region)
        self.simulator.dispatch()
        self.begin(Switch(region, target, mode, self.simulator.now_ps))

    def escalate(self, switch: Switch) -> None:
        """Turns a switch that waits for stragglers into a hard one."""
        switch.mode = SwitchMode.HARD
        self._hold(switch.region)

    def deploy(self, target: tuple[Group, ...]) -> None:
        """Sets the first layout before any arrival; nothing runs, so there is no switch."""
        for group in self.simulator.cluster.groups:
            self._evacuate(group)
        self.layout = target
        self._bind(target)

    def redeploy(self, command: Redeploy) -> None:
        """Stops all engines and cold-starts `command.layout`; at once if nothing has arrived yet."""
        target = groups_of(command.layout)
        self.execution, self.weights = command.execution, command.weights
        self.simulator.set_request_limit(self.weights)
        if self.simulator.untouched:
            self.deploy(target)
            return
        for group in self.simulator.cluster.groups:
            self._evacuate(group)
        self.operations = [o for o in self.operations if isinstance(o, PendingFault)]
        self.forget_processes()
        self.layout = target
        node = Group(0, self.simulator.spec.num_base)
        for group in target:
            self._set(group, EngineStatus.DOWN)
        slowest = max(self._cold_start_ps(group) for group in target)
        pool = self.simulator.cluster.communicators_ps if self.weights == "whole" else 0
        now = self.simulator.now_ps
        self.begin(Restart(node, target, now, now + slowest + pool))

    # -- processes -----------------------------------------------------------------------------------------------------

    def _switch(self, switch: Switch) -> Process:
        while switch.phase == Phase.DRAIN:
            if self._drained(switch):
                switch.phase = Phase.QUIESCE
                self._hold(switch.region)
            else:
                yield self.next_notice()
        while switch.phase == Phase.QUIESCE:
            if self._held(switch.region):
                switch.phase = Phase.CUTOVER
                switch.due_ps = self.simulator.now_ps + self.simulator.cluster.switch_ps
                self._stand_down(switch)
            else:
                yield self.next_notice()
        if switch.phase == Phase.CUTOVER:
            yield self.until(switch.due_ps)
        if switch.phase == Phase.DONE:  # cancelled by a failure
            return
        self._replace_layout(switch.region, switch.target)
        self._bind(switch.target)
        switch.phase, switch.due_ps = Phase.DONE, NEVER

    def _restart(self, restart: Restart) -> Process:
        yield self.until(restart.due_ps)
        self._bind(restart.target)
        restart.phase, restart.due_ps = Phase.DONE, NEVER

    def _fail(self, pending: PendingFault) -> Process:
        yield self.until(pending.due_ps)
        pending.phase, pending.due_ps = Phase.DONE, NEVER
        base = pending.fault.gpu // self.simulator.cluster.spec.base_width
        serving = next(group for group in self.layout if base in group.members)
        overlapping = [operation for operation in self.busy_regions() if operation.region.overlaps(serving)]
        if any(isinstance(operation, Restart) for operation in overlapping):
            return
        for group in self.simulator.cluster.groups:
            if base in group.members:
                self._lose(group)
        for switch in overlapping:
            switch.phase, switch.due_ps = Phase.DONE, NEVER
        region = max(
            [serving, *(operation.region for operation in overlapping)], key=lambda group: group.length
        )
        groups = self._current(region)
        for group in groups:
            self._evacuate(group)
            self._set(group, EngineStatus.DOWN)
        now = self.simulator.now_ps
        due = now + max(self._cold_start_ps(group) for group in groups)
        self.begin(Restart(region, groups, now, due))

    # -- steps ---------------------------------------------------------------------------------------------------------

    @property
    def _world(self) -> World:
        return self.simulator.world

    def _engine(self, group: Group) -> np.void:
        """The kernel's record of a group, writable."""
        record: np.void = self._world.engines[self.simulator.cluster.slot(group)]
        return record

    def _set(self, group: Group, status: EngineStatus, hold: int = 0, notify: int = 0) -> None:
        engine = self._engine(group)
        engine["status"], engine["hold"], engine["notify"] = status, hold, notify

    def _current(self, region: Group) -> tuple[Group, ...]:
        """Groups of the present layout inside a region."""
        return tuple(group for group in self.layout if region.contains(group))

    def _hold(self, region: Group) -> None:
        """Pauses the engines of a region after the iteration in flight."""
        for group in self._current(region):
            engine = self._engine(group)
            engine["hold"], engine["notify"] = 1, 1

    def _idle(self, group: Group) -> bool:
        engine = self._engine(group)
        return bool(engine["num_running"] + engine["num_waiting"] == 0)

    def _drained(self, switch: Switch) -> bool:
        """Whether the stragglers of a region are done. Under SOFT, engines done early begin to serve speculatively."""
        if switch.mode == SwitchMode.HARD:
            return self._held(switch.region)
        draining = [
            g for g in self._current(switch.region) if self._engine(g)["status"] == EngineStatus.DRAINING
        ]
        done = [group for group in draining if self._idle(group)]
        for group in done:
            self._set(group, EngineStatus.DRAINING, notify=0)
        if len(done) == len(draining):
            return True
        if switch.mode == SwitchMode.SOFT and done:
            for group in done:
                self._set(group, EngineStatus.SPECULATIVE)
            self.simulator.dispatch()
        return False

    def _held(self, region: Group) -> bool:
        """Whether every engine of a region is paused."""
        groups = self._current(region)
        still = [group for group in groups if self._engine(group)["step_end_ps"] < 0]
        for group in still:
            self._engine(group)["notify"] = 0
        return len(still) == len(groups)

    def _stand_down(self, switch: Switch) -> None:
        """Takes a region's engines out of service, its requests paused in place or sent to be recomputed."""
        merging = switch.target == (switch.region,)
        for group in self._current(switch.region):
            slot = self.simulator.cluster.slot(group)
            speculative = self._engine(group)["status"] == EngineStatus.SPECULATIVE
            pool_waiting(self._world, slot)
            if not merging or speculative:
                pool_running(self._world, self.simulator.cluster.tables, slot)
            running = self._engine(group)["num_running"] > 0
            self._set(group, EngineStatus.PAUSED if running else EngineStatus.INACTIVE)

    def _evacuate(self, group: Group) -> None:
        """Sends all requests of an engine to the pool; their KV is lost."""
        self.simulator.make_room()
        slot = self.simulator.cluster.slot(group)
        pool_waiting(self._world, slot)
        pool_running(self._world, self.simulator.cluster.tables, slot)
        self._set(group, EngineStatus.INACTIVE)

    def _lose(self, group: Group) -> None:
        """A crash: streaming requests fail, waiting requests are routed again."""
        slot = self.simulator.cluster.slot(group)
        pool_waiting(self._world, slot)
        fail_running(self._world, self.simulator.cluster.tables, slot)
        if self._engine(group)["status"] == EngineStatus.PAUSED:
            self._set(group, EngineStatus.INACTIVE)

    def _cold_start_ps(self, group: Group) -> int:
        return self.simulator.cluster.cold_start_ps[group.length.bit_length() - 1]

    def _replace_layout(self, region: Group, target: tuple[Group, ...]) -> None:
        kept = [group for group in self.layout if not region.contains(group)]
        self.layout = tuple(sorted([*kept, *target]))

    def _bind(self, target: tuple[Group, ...]) -> None:
        """Brings groups into service; requests paused on them resume."""
        cluster = self.simulator.cluster
        for group in cluster.groups:
            covering = next((active for active in target if active.overlaps(group)), None)
            if covering is None:
                continue
            if group.length > covering.length:
                self._evacuate(group)
        capacity_before = self._world.engines["capacity_blocks"].copy()
        for group in target:
            engine = self._engine(group)
            engine["kind"] = self.simulator.kind_of(group, self.execution)
            engine["total_blocks"] = cluster.blocks(group, self.weights)
            self._set(group, EngineStatus.ACTIVE)
        self._share_blocks()
        changed = self._world.engines["capacity_blocks"] != capacity_before
        for group in cluster.groups:
            slot = cluster.slot(group)
            if changed[slot] or group in target:
                flush_cache(self._world, slot)
        self.simulator.dispatch()

    def _share_blocks(self) -> None:
        """Gives each engine its members' block pools without the blocks of paused requests of other groups."""
        groups, engines = self.simulator.cluster.groups, self._world.engines
        holders = [
            (group, int(used)) for group, used in zip(groups, engines["used_blocks"], strict=True) if used
        ]
        for slot, group in enumerate(groups):
            taken = [0] * group.length
            for other, used in holders:
                if other != group and other.overlaps(group):
                    for member in set(other.members) & set(group.members):
                        taken[member - group.first] += used
            engines["capacity_blocks"][slot] = engines["total_blocks"][slot] - max(taken)
