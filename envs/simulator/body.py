"""Base class of simulated clusters: engines, arriving requests, and a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.randomise import NOMINAL
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import WaitingRequest
from serving_gym.envs.simulator.kernel import state as kernel_state
from serving_gym.envs.simulator.kernel.state import (
    NEED_EXTENTS,
    NEED_LOG,
    NEED_SLOTS,
    NEVER,
    NOTIFIED,
    PS_PER_S,
    ROUTER_NAMES,
    TRIGGERED,
    Tables,
    Traffic,
    World,
    copy_of_shown,
    new_world,
    with_more_alarms,
    with_more_extents,
    with_more_log,
    with_more_slots,
)
from serving_gym.envs.simulator.kernel.world import (
    advance,
    dispatch_pool,
    is_idle,
    lacks_extents,
    show_engines,
)
from serving_gym.envs.simulator.prefix_tree import make_chains
from serving_gym.envs.simulator.records import to_records
from serving_gym.envs.simulator.scheduling import QUEUE_ORDERS, Scheduling, to_ps
from serving_gym.envs.simulator.traffic import make_sessions, make_traffic, priorities_of

if TYPE_CHECKING:
    from serving_gym.envs.interface.metrics import RequestRecords
    from serving_gym.envs.workload.schema import Workload


class Clockwork(Protocol):
    """Interface of a control plane to the clock."""

    def next_due_ps(self) -> int:
        """Time of the next timer, or NEVER."""
        ...

    def catch_up(self, notified: bool) -> bool:
        """Runs every step that is due now; `notified`: whether the kernel stopped for an engine.

        Returns whether an operation is in progress, so that engines may have changed.
        """
        ...


class Body:
    """A simulated cluster without commands.

    Attributes:
        factors: What was drawn for the episode.

    Args:
        scheduling: Scheduling settings of its engines.
        tables: Latencies and limits of its kinds of engines.
        slos: SLO of each request class, in the order of the workload's classes.
        trigger_classes: Classes whose arrival stops `advance` so that a decision can be taken.
    """

    world: World
    traffic: Traffic
    workload: Workload

    def __init__(
        self,
        scheduling: Scheduling,
        tables: Tables,
        slos: tuple[SLO, ...],
        trigger_classes: tuple[int, ...] = (),
    ) -> None:
        self._scheduling = scheduling
        self.tables = tables
        self.slos = slos
        self.trigger_classes = trigger_classes
        self.factors = NOMINAL
        self.refused_commands = 0
        self._inherited_logs: tuple[NDArray[np.void], ...] = ()

    @property
    def clockwork(self) -> Clockwork:
        """The control plane."""
        raise NotImplementedError

    def begin(
        self,
        workload: Workload,
        num_engines: int,
        endpoint: NDArray[np.int32] | None = None,
        num_endpoints: int = 1,
        priorities: Sequence[int] = (),
        disaggregated: bool = False,
        host_tier: bool = False,
    ) -> None:
        """Empties the cluster and prepares it for a workload; `priorities`: those of later appended requests."""
        if len(workload.classes) != len(self.slos):
            raise ValueError(
                f"workload has {len(workload.classes)} classes ({', '.join(workload.classes)}) "
                f"but {len(self.slos)} SLOs are declared"
            )
        self.workload = workload
        self._priorities = priorities_of(workload, priorities)
        self.traffic = make_traffic(workload, self._priorities, self.trigger_classes, endpoint)
        caching = self._scheduling.prefix_caching
        self.world = new_world(
            num_engines=num_engines,
            max_running=int(self.tables.kinds["max_num_seqs"].max()),
            max_block_size=int(self.tables.kinds["block_size"].max()),
            num_classes=len(self.slos),
            chains=make_chains(workload, np.unique(self.tables.kinds["block_size"])) if caching else None,
            num_endpoints=num_endpoints,
            disaggregated=disaggregated,
            sessions=make_sessions(workload),
            num_limits=self._most_limits(len(workload)),
            host_tier=host_tier,
            front_end=len(self.tables.fronts) > 0,
        )
        self.world.cluster["time_limit_ps"] = self._time_limit_ps
        self.world.cluster["front_factor"] = self.factors.front_end
        self.stale = True  # whether engines have changed since the kernel last updated their rows
        self._tell_scheduling()
        self._inherited_logs = ()
        self.refused_commands = 0

    @property
    def _time_limit_ps(self) -> int:
        """After which the server ends a request, or NEVER."""
        limit_s = self._scheduling.request_timeout_s
        return NEVER if limit_s is None else to_ps(limit_s)

    def _most_limits(self, num_requests: int) -> int:
        """Time limits that so many requests of the present traffic may have."""
        each = int(len(self.traffic.patience_ps) > 0) + int(self._time_limit_ps < NEVER)
        return each * num_requests

    def _tell_scheduling(self) -> None:
        cluster, spec = self.world.cluster, self._scheduling
        cluster["router"] = ROUTER_NAMES.index(self._router())
        cluster["order"] = QUEUE_ORDERS[spec.order]
        cluster["chunked_prefill"] = spec.chunked_prefill is not False
        cluster["reserve_full_prompt"] = spec.reserve_full_prompt
        cluster["long_prefill_threshold"] = spec.long_prefill_token_threshold
        cluster["expired_ps"] = to_ps(spec.dpa_expired_s)
        cluster["urgent_ps"] = to_ps(spec.dpa_urgent_s)
        cluster["stop_on_trigger"] = len(self.trigger_classes) > 0
        cluster["num_clients"] = self.workload.num_clients

    def _router(self) -> str:
        """Affinity separates urgent requests from others; with one priority only it equals jsq."""
        router = self._scheduling.router
        alike = len(self.workload) == 0 or int(self.traffic.level.max()) == 0
        return "jsq" if router == "affinity" and alike else router

    # -- the clock -----------------------------------------------------------------------------------------------------

    @property
    def priorities(self) -> NDArray[np.int32]:
        """Distinct priorities of requests, ascending; a request's level is its priority's place among them."""
        return self._priorities

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
    def idle(self) -> bool:
        """Whether every request of the workload has arrived and left."""
        if self.workload.has_sessions:
            return bool(is_idle(self.world, self.traffic))
        cluster = self.world.cluster[0]
        return bool(cluster["num_in_flight"] == 0 and cluster["next_arrival"] >= len(self.traffic.arrival_ps))

    def advance(self, until_s: float) -> bool:
        """Advances time to `until_s`. Returns True if it stopped early because a request triggered a decision."""
        return self.advance_ps(to_ps(until_s))

    def advance_ps(self, until_ps: int) -> bool:
        """`advance` in picoseconds."""
        clockwork = self.clockwork
        while True:
            target = min(until_ps, clockwork.next_due_ps())
            reason = advance(self.world, self.traffic, self.tables, target)
            if self.grow(reason):
                continue
            self.stale = clockwork.catch_up(reason == NOTIFIED)
            if reason == TRIGGERED:
                return True
            if self.now_ps >= until_ps and clockwork.next_due_ps() > until_ps and reason != NOTIFIED:
                return False

    def grow(self, reason: int) -> bool:
        """Enlarges the buffer whose end the kernel reached; returns whether that was why it stopped."""
        growth = {NEED_SLOTS: with_more_slots, NEED_LOG: with_more_log, NEED_EXTENTS: with_more_extents}
        if reason not in growth:
            return False
        self.world = growth[reason](self.world)
        return True

    def run_to_completion(self, limit_s: float | None = None) -> None:
        """Serves the whole workload, or as much of it as `limit_s` allows."""
        limit_ps = NEVER - 1 if limit_s is None else to_ps(limit_s)
        step_ps = to_ps(1.0)
        if len(self.workload) and not self.workload.num_clients:
            self.advance_ps(max(self.now_ps, min(int(self.traffic.arrival_ps[-1]), limit_ps)))
        while not self.idle and self.now_ps < limit_ps:
            self.advance_ps(min(self.now_ps + step_ps, limit_ps))

    # -- requests ------------------------------------------------------------------------------------------------------

    def results(self) -> RequestRecords:
        """Records of every request that has arrived.

        Raises:
            ValueError: requests have been appended, so this workload is incomplete.
        """
        if self.world.cluster["first_index"][0] > 0:
            raise ValueError(
                "a trace that comes in pieces has no records of its own; book drain_log() piece by piece"
            )
        log = np.concatenate([*self._inherited_logs, self._own_log()])
        return to_records(self.workload, self.traffic, self.world, log)

    def append(self, workload: Workload, endpoint: NDArray[np.int32] | None = None) -> None:
        """Appends requests after all present ones have arrived; they replace `workload`.

        Args:
            workload: Requests that arrive after now, times counted since the episode began.
            endpoint: (N,) endpoint of each request; None: there is only one.

        Raises:
            ValueError: present requests have not all arrived, or the workload cannot be streamed.
        """
        cluster = self.world.cluster
        if cluster["next_arrival"][0] < len(self.traffic.arrival_ps):
            raise ValueError("requests can be appended only when all earlier ones have arrived")
        if self._scheduling.prefix_caching or workload.num_clients or workload.has_sessions:
            raise ValueError("a workload with prefix caching, sessions or a closed loop cannot be streamed")
        cluster["first_index"] += len(self.traffic.arrival_ps)
        cluster["next_arrival"] = 0
        self.workload = workload
        self.traffic = make_traffic(workload, self._priorities, self.trigger_classes, endpoint)
        self.world = with_more_alarms(self.world, self._most_limits(len(workload)))

    def drain_log(self) -> NDArray[np.void]:
        """Log entries of requests that have left since the last call, (M,) LOG_DTYPE; `results` no longer has them."""
        entries = np.concatenate([*self._inherited_logs, self._own_log()])
        self._inherited_logs = ()
        self.world.cluster["log_length"] = 0
        return entries

    @property
    def latency_cost(self) -> float:
        """Sum over requests of TTFT/SLO + TPOT/SLO accrued so far, requests still in the system included."""
        return float(self.world.cluster["latency_cost"][0])

    def make_room(self) -> None:
        """Prefix caching: reserves room to move every request in flight."""
        while lacks_extents(self.world, int(self.world.cluster["num_in_flight"][0])):
            self.world = with_more_extents(self.world)

    def dispatch(self) -> None:
        """Routes pooled requests again, and updates the engines."""
        if self.world.cluster["num_in_flight"][0] == 0:
            return
        self.make_room()
        dispatch_pool(self.world, self.tables)

    def shown(self) -> NDArray[np.void]:
        """Observable state of the engines, (E,) ENGINE_STATE_DTYPE."""
        if self.stale:
            show_engines(self.world, self.tables)
            self.stale = False
        return copy_of_shown(self.world)

    def arrived_now(self) -> tuple[WaitingRequest, ...]:
        """The requests whose arrival triggered this decision."""
        if not self.trigger_classes:
            return ()
        rows = []
        last = int(self.world.cluster["next_arrival"][0])
        first = last
        while first > 0 and self.arrivals(first - 1, first)[1][0] == self.now_ps:
            first -= 1
        rows = [int(row) for row in self.arrivals(first, last)[0] if self.traffic.trigger[row]]
        if not self.workload.has_sessions:
            return tuple(self.workload.waiting_request(row) for row in rows)
        return tuple(replace(self.workload.waiting_request(row), arrival_s=self.now_s) for row in rows)

    def arrived_rows(self) -> slice | NDArray[np.int64]:
        """Rows of the workload that have arrived, as an index."""
        count = int(self.world.cluster["next_arrival"][0])
        return self.arrivals(0, count)[0] if self.workload.has_sessions else slice(count)

    def arrivals(self, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of the workload of the requests that arrived as number `first` to `last` - 1, and when, picoseconds."""
        if self.workload.has_sessions:
            turns = self.world.turns[first:last]
            return turns["came_row"].astype(np.int64), turns["came_ps"].copy()
        return np.arange(first, last), self.traffic.arrival_ps[first:last]

    # -- forks ---------------------------------------------------------------------------------------------------------

    def _fork_body(self) -> Self:
        """A copy without a control plane."""
        copy = type(self).__new__(type(self))
        copy._scheduling, copy.tables = self._scheduling, self.tables
        copy.slos, copy.trigger_classes = self.slos, self.trigger_classes
        copy.factors = self.factors
        copy.workload, copy.traffic = self.workload, self.traffic
        copy._priorities = self._priorities
        if self.workload.num_clients:  # in a closed loop arrivals depend on the fork's actions
            copy.traffic = self.traffic._replace(arrival_ps=self.traffic.arrival_ps.copy())
        copy.refused_commands, copy.stale = self.refused_commands, self.stale
        copy._inherited_logs = (*self._inherited_logs, self._own_log())
        copy.world = kernel_state.fork(self.world)
        return copy

    def _own_log(self) -> NDArray[np.void]:
        """This cluster's log entries; append-only, so a view stays valid."""
        return self.world.log[: int(self.world.cluster["log_length"][0])]
