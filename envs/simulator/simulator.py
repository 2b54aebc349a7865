"""The simulated body of a cluster: a compiled data plane under a SimPy control plane, behind `Backend`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from envs.backend import (
    ENGINE_STATE_DTYPE,
    SLO,
    TOTALS,
    ClusterSpec,
    ClusterState,
    Command,
    Fault,
    Receipt,
    Redeploy,
    SetLayout,
    SwitchMode,
    Transition,
    WaitingRequest,
)
from envs.layout import Group, changed_regions, groups_of, layout_of
from envs.simulator.cluster import QUEUE_ORDERS, build_cluster, make_cluster, to_ps
from envs.simulator.control_plane import ControlPlane, Phase, Switch
from envs.simulator.kernel import state as kernel_state
from envs.simulator.kernel.observe import observe_engines
from envs.simulator.kernel.state import (
    NEED_EXTENTS,
    NEED_LOG,
    NEED_SLOTS,
    NEVER,
    NOTIFIED,
    NUM_LEVELS,
    PS_PER_S,
    ROUTER_NAMES,
    TRIGGERED,
    Traffic,
    World,
    new_world,
    with_more_extents,
    with_more_log,
    with_more_slots,
)
from envs.simulator.kernel.world import advance, dispatch_pool, lacks_extents, latency_cost
from envs.simulator.prefix_tree import make_chains
from envs.simulator.records import to_records

if TYPE_CHECKING:
    from calibration.profile import Profile
    from envs.metrics import RequestRecords
    from envs.workload.schema import Workload


def make_traffic(workload: Workload, trigger_classes: tuple[int, ...] = ()) -> Traffic:
    """A workload in the kernel's form.

    Args:
        workload: Requests sorted by arrival.
        trigger_classes: Classes whose arrival may ask for a decision.

    Raises:
        ValueError: the workload has more distinct priorities than an engine's queue keeps apart.
    """
    values, level = np.unique(workload.priority, return_inverse=True)
    if len(values) > NUM_LEVELS:
        raise ValueError(
            f"workload.priority has {len(values)} distinct values; at most {NUM_LEVELS} are kept apart"
        )
    arrival_ps = np.round(workload.arrival_s * PS_PER_S).astype(np.int64)
    if workload.num_clients:
        arrival_ps[:] = NEVER
    return Traffic(
        arrival_ps=arrival_ps,
        prompt=workload.input_tokens.astype(np.int32),
        output=workload.output_tokens.astype(np.int32),
        max_output=workload.max_output_tokens.astype(np.int32),
        level=level.astype(np.int32),
        class_id=workload.class_id.astype(np.int32),
        endpoint=np.zeros(len(workload), np.int32),
        trigger=np.isin(workload.class_id, trigger_classes).astype(np.int8),
    )


class Simulator:
    """A simulated cluster.

    Args:
        spec: The cluster.
        slos: Latency promise of each request class, in the order of the workload's classes.
        trigger_classes: Classes whose arrival stops `advance` so that a decision can be taken.
        profile: Latency of the engines; None: the committed profile of the spec's model and GPU.

    Raises:
        ValueError: the spec names something unknown, or the model does not fit its GPUs.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        slos: tuple[SLO, ...],
        trigger_classes: tuple[int, ...] = (),
        profile: Profile | None = None,
    ) -> None:
        self.spec = spec
        self.slos = slos
        self.trigger_classes = trigger_classes
        self.cluster = build_cluster(spec, slos) if profile is None else make_cluster(spec, slos, profile)
        self.refused_commands = 0
        self._inherited_logs: tuple[NDArray[np.void], ...] = ()

    # -- Backend -------------------------------------------------------------------------------------------------------

    def reset(self, workload: Workload, faults: tuple[Fault, ...] = ()) -> ClusterState:
        """Empties the cluster and prepares to serve `workload` from time zero."""
        if len(workload.classes) != len(self.slos):
            raise ValueError(
                f"workload has {len(workload.classes)} classes ({', '.join(workload.classes)}) "
                f"but {len(self.slos)} SLOs are declared"
            )
        self.workload = workload
        self.traffic = make_traffic(workload, self.trigger_classes)
        tables = self.cluster.tables
        self.world: World = new_world(
            num_engines=len(self.cluster.groups),
            max_running=self.spec.max_num_seqs,
            max_block_size=int(tables.block_size.max()),
            num_classes=len(self.slos),
            chains=make_chains(workload, np.unique(tables.block_size)) if self.spec.prefix_caching else None,
        )
        self._fill_world()
        self._inherited_logs = ()
        self.refused_commands = 0
        self.control = ControlPlane(self)
        self.set_request_limit(self.spec.weights)
        layout = self.spec.layout or (1,) * self.spec.num_base
        self.control.start(groups_of(tuple(layout)), faults)
        return self.observe()

    def _fill_world(self) -> None:
        engines, cluster = self.world.engines, self.world.cluster
        engines["width"] = [group.length * self.spec.base_width for group in self.cluster.groups]
        engines["first_gpu"] = [group.first * self.spec.base_width for group in self.cluster.groups]
        engines["kind"] = [self.cluster.kind(group, "tp") for group in self.cluster.groups]
        cluster["router"] = ROUTER_NAMES.index(self._router())
        cluster["order"] = QUEUE_ORDERS[self.spec.order]
        cluster["chunked_prefill"] = self.spec.chunked_prefill
        cluster["reserve_full_prompt"] = self.spec.reserve_full_prompt
        cluster["long_prefill_threshold"] = self.spec.long_prefill_token_threshold
        cluster["expired_ps"] = to_ps(self.spec.dpa_expired_s)
        cluster["urgent_ps"] = to_ps(self.spec.dpa_urgent_s)
        cluster["stop_on_trigger"] = len(self.trigger_classes) > 0
        cluster["num_clients"] = self.workload.num_clients

    def _router(self) -> str:
        """Affinity sets urgent requests apart from others; where all are alike it is jsq."""
        alike = len(self.workload) == 0 or int(self.traffic.level.max()) == 0
        return "jsq" if self.spec.router == "affinity" and alike else self.spec.router

    def observe(self) -> ClusterState:
        """What the cluster shows now."""
        world = self.world
        cluster = world.cluster[0]
        return ClusterState(
            now_s=float(cluster["now_ps"]) / PS_PER_S,
            engines=self._engine_rows(),
            layout=layout_of(self.control.layout),
            target_layout=layout_of(self.target_groups),
            transitions=tuple(self._transitions()),
            num_pooled=int(cluster["num_pooled"]),
            pooled_tokens=int(cluster["pooled_tokens"]),
            totals=world.stats[:, : len(TOTALS)].copy(),
            waiting=self._arrived_now(),
        )

    def apply(self, command: Command) -> Receipt:
        """Begins to carry out a command, or refuses it with a reason."""
        receipt = self._switch_to(command) if isinstance(command, SetLayout) else self._redeploy(command)
        if not receipt.accepted:
            self.refused_commands += 1
        return receipt

    def advance(self, until_s: float) -> bool:
        """Lets time pass to `until_s`. Returns True if it stopped early because a request asks for a decision."""
        return self.advance_ps(to_ps(until_s))

    def results(self) -> RequestRecords:
        """What happened to every request that has arrived."""
        log = np.concatenate([*self._inherited_logs, self._own_log()])
        return to_records(self.workload, self.traffic, self.world, log)

    # -- the simulator's own -------------------------------------------------------------------------------------------

    @property
    def now_ps(self) -> int:
        """The clock, picoseconds."""
        return int(self.world.cluster["now_ps"][0])

    @property
    def now_s(self) -> float:
        """The clock, seconds."""
        return self.now_ps / PS_PER_S

    @property
    def untouched(self) -> bool:
        """Whether no time has passed and nothing has arrived."""
        return self.now_ps == 0 and int(self.world.cluster["next_arrival"][0]) == 0

    @property
    def can_switch_live(self) -> bool:
        """Whether engines hold whole weights, so that groups can be merged and split without a restart."""
        return self.control.weights == "whole"

    @property
    def idle(self) -> bool:
        """Whether every request of the workload has arrived and left."""
        cluster = self.world.cluster[0]
        return bool(cluster["num_in_flight"] == 0 and cluster["next_arrival"] >= len(self.traffic.arrival_ps))

    @property
    def latency_cost(self) -> float:
        """Sum over requests of TTFT/SLO + TPOT/SLO accrued so far, requests still in the system included."""
        return float(latency_cost(self.world))

    @property
    def target_groups(self) -> tuple[Group, ...]:
        """Groups of the node when every reconfiguration is done."""
        busy = self.control.busy_regions()
        if not busy:
            return self.control.layout
        groups = set(self.control.layout)
        for operation in busy:
            groups = {group for group in groups if not operation.region.contains(group)} | set(
                operation.target
            )
        return tuple(sorted(groups))

    def advance_ps(self, until_ps: int) -> bool:
        """`advance` in picoseconds."""
        while True:
            target = min(until_ps, self.control.next_due_ps())
            reason = advance(self.world, self.traffic, self.cluster.tables, target)
            if reason == NEED_SLOTS:
                self.world = with_more_slots(self.world)
                continue
            if reason == NEED_LOG:
                self.world = with_more_log(self.world)
                continue
            if reason == NEED_EXTENTS:
                self.world = with_more_extents(self.world)
                continue
            self.control.catch_up(reason == NOTIFIED)
            if reason == TRIGGERED:
                return True
            if self.now_ps >= until_ps and self.control.next_due_ps() > until_ps and reason != NOTIFIED:
                return False

    def run_to_completion(self, limit_s: float | None = None) -> None:
        """Serves the whole workload, or as much of it as `limit_s` allows."""
        limit_ps = NEVER - 1 if limit_s is None else to_ps(limit_s)
        step_ps = to_ps(60.0)
        if len(self.workload) and not self.workload.num_clients:
            self.advance_ps(min(int(self.traffic.arrival_ps[-1]), limit_ps))
        while not self.idle and self.now_ps < limit_ps:
            self.advance_ps(min(self.now_ps + step_ps, limit_ps))

    def fork(self) -> Simulator:
        """A copy that continues to the same numbers and shares nothing that changes."""
        copy = Simulator.__new__(Simulator)
        copy.spec, copy.slos, copy.trigger_classes = self.spec, self.slos, self.trigger_classes
        copy.cluster, copy.workload, copy.traffic = self.cluster, self.workload, self.traffic
        if self.workload.num_clients:  # arrivals follow from what the fork does
            copy.traffic = self.traffic._replace(arrival_ps=self.traffic.arrival_ps.copy())
        copy.refused_commands = self.refused_commands
        copy._inherited_logs = (*self._inherited_logs, self._own_log())
        copy.world = kernel_state.fork(self.world)
        copy.control = self.control.fork(copy)
        return copy

    def make_room(self) -> None:
        """Prefix caching: makes room for every request in flight to be moved."""
        while lacks_extents(self.world, int(self.world.cluster["num_in_flight"][0])):
            self.world = with_more_extents(self.world)

    def dispatch(self) -> None:
        """Offers pooled requests to the router again."""
        self.make_room()
        dispatch_pool(self.world, self.traffic, self.cluster.tables)

    def set_request_limit(self, weights: str) -> None:
        """Refuses on arrival what no engine of the node could ever hold."""
        most = self.cluster.max_request_tokens(weights)
        if not self.spec.chunked_prefill:
            most = min(most, self.spec.max_num_batched_tokens)  # vLLM wants a budget of max_model_len then
        self.world.endpoints["max_request_tokens"] = most

    def _own_log(self) -> NDArray[np.void]:
        """This world's log entries; append only, so a view stays true."""
        return self.world.log[: int(self.world.cluster["log_length"][0])]

    def _switch_to(self, command: SetLayout) -> Receipt:
        impossible = self._impossible(command)
        if impossible:
            return Receipt(False, impossible)
        target = groups_of(command.layout)
        busy = self.control.busy_regions()
        regions = changed_regions(self.target_groups, target)
        if regions and not self.can_switch_live:
            return Receipt(False, "engines hold sharded weights; only a cold restart changes their layout")
        if self.untouched:
            self.control.deploy(target)
            return Receipt(True)
        for operation in busy:
            if any(region.overlaps(operation.region) for region in regions):
                return Receipt(False, f"base engines {list(operation.region.members)} are being reconfigured")
        if not regions and command.mode == SwitchMode.HARD:
            for operation in busy:
                if isinstance(operation, Switch) and operation.phase == Phase.DRAIN:
                    self.control.escalate(operation)
        for region in regions:
            inside = tuple(group for group in target if region.contains(group))
            self.control.begin_switch(region, inside, command.mode)
        self.control.catch_up(notified=False)
        return Receipt(True)

    def _impossible(self, command: Command) -> str:
        """Why the node can never have a layout, or nothing."""
        if sum(command.layout) != self.spec.num_base:
            return f"layout {command.layout} does not add up to {self.spec.num_base} base engines"
        longest = self.cluster.groups[-1].length
        if max(command.layout) > longest:
            return f"layout {command.layout} has a group of more than {longest} base engines"
        return ""

    def _redeploy(self, command: Redeploy) -> Receipt:
        impossible = self._impossible(command)
        if impossible:
            return Receipt(False, impossible)
        self.control.redeploy(command)
        return Receipt(True)

    def _engine_rows(self) -> NDArray[np.void]:
        rows = np.zeros(len(self.world.engines), ENGINE_STATE_DTYPE)
        observe_engines(self.world, self.cluster.tables, rows)
        return rows

    def _transitions(self) -> list[Transition]:
        return [
            Transition(
                region=operation.region,
                target=operation.target,
                mode=operation.mode if isinstance(operation, Switch) else None,
                started_s=operation.started_ps / PS_PER_S,
                due_s=None if operation.due_ps == NEVER else operation.due_ps / PS_PER_S,
            )
            for operation in self.control.busy_regions()
        ]

    def _arrived_now(self) -> tuple[WaitingRequest, ...]:
        """The requests whose arrival asked for this decision."""
        if not self.trigger_classes:
            return ()
        rows = []
        i = int(self.world.cluster["next_arrival"][0]) - 1
        while i >= 0 and self.traffic.arrival_ps[i] == self.now_ps:
            if self.traffic.trigger[i]:
                rows.append(i)
            i -= 1
        return tuple(self._waiting_request(row) for row in reversed(rows))

    def _waiting_request(self, row: int) -> WaitingRequest:
        workload = self.workload
        return WaitingRequest(
            index=row,
            arrival_s=float(workload.arrival_s[row]),
            input_tokens=int(workload.input_tokens[row]),
            max_output_tokens=int(workload.max_output_tokens[row]),
            priority=int(workload.priority[row]),
            class_id=int(workload.class_id[row]),
        )
