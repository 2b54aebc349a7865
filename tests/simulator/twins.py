"""One description of a cluster and its load, built twice: as the kernel's arrays and as the oracle's objects."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from serving_gym.envs.simulator.kernel import state
from serving_gym.envs.simulator.kernel.aborts import abort
from serving_gym.envs.simulator.kernel.blocks import flush_cache
from serving_gym.envs.simulator.kernel.migration import ask_to_leave, join, keep, requeue
from serving_gym.envs.simulator.kernel.state import CLASS_DTYPE, KIND_DTYPE, Tables, Traffic, World, rows_of
from serving_gym.envs.simulator.kernel.world import (
    advance,
    decoding_progress,
    dispatch_pool,
    fail_running,
    lacks_extents,
    pool_running,
    pool_waiting,
    send,
)
from serving_gym.envs.simulator.prefix_tree import make_chains
from serving_gym.envs.simulator.scheduling import QUEUE_ORDERS
from serving_gym.envs.workload.schema import Workload
from tests.simulator import oracle
from tests.simulator.oracle import Kind, Settings

ENGINE_COUNTERS = (
    "used_blocks",
    "steps",
    "generated_tokens",
    "pending_prefill_tokens",
    "prefill_context",
    "decode_context",
    "preemptions",
    "prefilled_tokens",
    "cached_tokens",
    "busy_ps",
    "num_running",
    "num_waiting",
    "host_used",
    "num_prefilling",
    "step_end_ps",
)
FATES = ("finished", "refused", "failed", "aborted", "refused")  # by the kernel's outcomes
SCHEDULERS = {
    ("v1", "recompute"): state.V1,
    ("v0", "recompute"): state.V0,
    ("v0", "swap"): state.V0_SWAP,
}
STATUS_OF = {  # (serves, steps_allowed)
    (True, True): state.ACTIVE,
    (False, True): state.DRAINING,
    (False, False): state.PAUSED,
}


@dataclass(frozen=True)
class Row:
    """A request of the load."""

    arrival_ps: int
    prompt: int
    output: int
    max_output: int
    level: int = 0
    class_id: int = 0
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Slot:
    """An engine of the cluster."""

    kind: int
    capacity_blocks: int
    width: int = 1


@dataclass(frozen=True)
class Case:
    """A cluster and its load."""

    kinds: tuple[Kind, ...]
    slots: tuple[Slot, ...]
    rows: tuple[Row, ...]
    settings: Settings = field(default_factory=Settings)
    slos_ps: tuple[tuple[int, int], ...] = ((1000, 50),)  # TTFT and TPOT of each class

    def answer(self, index: int) -> int:
        """Tokens that a request generates in the end: its output, cut where the limit is reached."""
        row = self.rows[index]
        return min(row.output, self.settings.max_request_tokens - row.prompt)


def build_tables(case: Case) -> Tables:
    """The kernel's tables; kinds with shorter tables are padded with their last entry."""

    def rows(values: list[list[int]]) -> np.ndarray:
        longest = max(len(row) for row in values)
        return np.array([row + [row[-1]] * (longest - len(row)) for row in values], np.int64)

    def column(name: str, dtype: type = np.int64) -> np.ndarray:
        return np.array([getattr(kind, name) for kind in case.kinds], dtype)

    return Tables(
        decode_ps=rows([kind.decode_ps for kind in case.kinds]),
        mixed_ps=rows([kind.mixed_ps for kind in case.kinds]),
        kinds=rows_of(
            KIND_DTYPE,
            sequence_ps=column("sequence_ps"),
            kv_ps=column("kv_ps"),
            attn_fs=column("attn_fs"),
            stages=1,
            block_size=column("block_size"),
            block_rank=np.unique(column("block_size"), return_inverse=True)[1].astype(np.int64),
            max_num_seqs=column("max_num_seqs"),
            max_batched_tokens=column("max_batched_tokens"),
            transfer_ps=np.zeros(len(case.kinds), np.int64),
            transfer_fixed_ps=np.zeros(len(case.kinds), np.int64),
            load_ps=column("load_ps"),
            async_scheduling=int(case.settings.async_scheduling),
            scheduler=SCHEDULERS[case.settings.scheduler, case.settings.preemption],
            swap_blocks=case.settings.swap_blocks,
            speed=column("speed", np.float64),
        ),
        classes=rows_of(
            CLASS_DTYPE,
            ttft_slo_ps=np.array([ttft for ttft, _ in case.slos_ps], np.int64),
            tpot_slo_ps=np.array([tpot for _, tpot in case.slos_ps], np.int64),
        ),
    )


def build_traffic(case: Case) -> Traffic:
    """The kernel's arrivals."""

    def column(name: str, dtype: type = np.int32) -> np.ndarray:
        return np.array([getattr(row, name) for row in case.rows], dtype)

    return Traffic(
        arrival_ps=column("arrival_ps", np.int64),
        prompt=column("prompt"),
        output=column("output"),
        max_output=column("max_output"),
        level=column("level"),
        class_id=column("class_id"),
        endpoint=np.zeros(len(case.rows), np.int32),
        trigger=np.zeros(len(case.rows), np.int8),
    )


def build_chains(case: Case) -> state.Chains:
    """The prefixes that the rows share."""
    ids = [row.hash_ids for row in case.rows]
    workload = Workload(
        arrival_s=np.zeros(len(case.rows)),
        input_tokens=np.array([row.prompt for row in case.rows]),
        output_tokens=np.array([row.output for row in case.rows]),
        hash_offsets=np.concatenate([[0], np.cumsum([len(row) for row in ids])]).astype(np.int64),
        hash_ids=np.array([name for row in ids for name in row], np.int64),
        hash_block_tokens=case.settings.hash_block_tokens,
    )
    return make_chains(workload, np.unique([kind.block_size for kind in case.kinds]))


def build_world(case: Case, request_slots: int = 2) -> World:
    """The kernel's world, small enough at first to have to grow."""
    world = state.new_world(
        num_engines=len(case.slots),
        max_running=max(kind.max_num_seqs for kind in case.kinds),
        max_block_size=max(kind.block_size for kind in case.kinds),
        num_classes=len(case.slos_ps),
        request_slots=request_slots,
        chains=build_chains(case) if case.settings.prefix_caching else None,
    )
    engines, cluster, settings = world.engines, world.cluster, case.settings
    engines["kind"] = [slot.kind for slot in case.slots]
    engines["width"] = [slot.width for slot in case.slots]
    engines["capacity_blocks"] = engines["total_blocks"] = [slot.capacity_blocks for slot in case.slots]
    engines["status"] = state.ACTIVE
    cluster["router"] = state.ROUTER_NAMES.index(settings.router)
    cluster["order"] = QUEUE_ORDERS[settings.order]
    cluster["expired_ps"], cluster["urgent_ps"] = settings.expired_ps, settings.urgent_ps
    cluster["chunked_prefill"] = settings.chunked_prefill
    cluster["reserve_full_prompt"] = settings.reserve_full_prompt
    cluster["long_prefill_threshold"] = settings.long_prefill_threshold
    world.endpoints["max_request_tokens"] = settings.max_request_tokens
    for e in range(len(case.slots)):
        flush_cache(world, np.int64(e))
    return world


def build_oracle(case: Case) -> oracle.Cluster:
    """The oracle's cluster."""
    settings = replace(case.settings)
    return oracle.Cluster(
        settings=settings,
        engines=[
            oracle.Engine(number, case.kinds[slot.kind], settings, slot.capacity_blocks, slot.width)
            for number, slot in enumerate(case.slots)
        ],
        arrivals=[
            oracle.Request(
                index,
                row.arrival_ps,
                row.prompt,
                row.output,
                row.max_output,
                row.level,
                row.hash_ids,
                deadline_ps=row.arrival_ps + case.slos_ps[row.class_id][0],
            )
            for index, row in enumerate(case.rows)
        ],
    )


class Kernel:
    """The kernel with the oracle's manners: names instead of numbers, arrays that grow by themselves."""

    def __init__(self, case: Case, request_slots: int = 2) -> None:
        self.case = case
        self.tables, self.traffic = build_tables(case), build_traffic(case)
        self.world = build_world(case, request_slots)
        self.inherited: list[dict[str, int | str]] = []  # the log before a fork

    @property
    def now(self) -> int:
        return int(self.world.cluster["now_ps"][0])

    @property
    def arrived(self) -> int:
        return int(self.world.cluster["next_arrival"][0])

    def advance(self, until: int) -> bool:
        """Runs to `until` or to the first notice. Returns whether there was one."""
        while True:
            reason = advance(self.world, self.traffic, self.tables, until)
            if reason == state.NEED_SLOTS:
                self.world = state.with_more_slots(self.world)
            elif reason == state.NEED_LOG:
                self.world = state.with_more_log(self.world)
            elif reason == state.NEED_EXTENTS:
                self.world = state.with_more_extents(self.world)
            else:
                return reason == state.NOTIFIED

    def fork(self) -> Kernel:
        """A copy that shares nothing that changes."""
        copy = Kernel.__new__(Kernel)
        copy.case, copy.tables, copy.traffic = self.case, self.tables, self.traffic
        copy.inherited = self.log()
        copy.world = state.fork(self.world)
        return copy

    def log(self) -> list[dict[str, int | str]]:
        """Requests that have left, in the order in which they did."""
        entries = self.world.log[: self.world.cluster["log_length"][0]]
        return self.inherited + [
            {
                "index": int(entry["index"]),
                "first_scheduled_ps": int(entry["first_scheduled_ps"]),
                "first_token_ps": int(entry["first_token_ps"]),
                "finish_ps": int(entry["finish_ps"]),
                "generated": int(entry["generated"]),
                "preemptions": int(entry["preemptions"]),
                "engine": int(entry["engine"]),
                "fate": FATES[entry["outcome"]],
            }
            for entry in entries
        ]

    def in_flight(self) -> list[dict[str, int | str]]:
        """Requests that have arrived and not left."""
        return [
            {
                "index": int(request["index"]),
                "first_scheduled_ps": int(request["first_scheduled_ps"]),
                "first_token_ps": int(request["first_token_ps"]),
                "finish_ps": -1,
                "generated": int(decoding_progress(self.world, np.int64(slot))),
                "preemptions": int(request["preemptions"]),
                "engine": int(request["engine"]),
                "fate": "in flight",
            }
            for slot, request in enumerate(self.world.requests)
            if request["phase"] != state.FREE
        ]

    def requests(self) -> dict[int, dict[str, int | str]]:
        """Every request that has arrived, by row of the load."""
        return {int(request["index"]): request for request in self.log() + self.in_flight()}

    def queue(self, row: int) -> list[int]:
        """Rows of the load waiting in an engine's queue, or in the pool (row E), in the order of service."""
        found = []
        for level in range(state.NUM_LEVELS):
            slot = self.world.queues[row, level, 0]
            while slot >= 0:
                found.append(int(self.world.requests["index"][slot]))
                slot = self.world.requests["next"][slot]
        return found

    def engine(self, number: int) -> dict[str, object]:
        """What an engine shows."""
        engine = self.world.engines[number]
        shown: dict[str, object] = {name: int(engine[name]) for name in ENGINE_COUNTERS}
        slots = self.world.running[number, : engine["num_running"]]
        shown["running"] = self.world.requests["index"][slots].tolist()
        shown["waiting"] = self.queue(number)
        return shown

    # What the control plane does.

    def dispatch(self) -> None:
        dispatch_pool(self.world, self.tables)
        self.advance(self.now)  # idle engines begin

    def pool_waiting(self, number: int) -> None:
        pool_waiting(self.world, np.int64(number))

    def pool_running(self, number: int) -> None:
        pool_running(self.world, self.tables, np.int64(number))

    def fail_running(self, number: int) -> None:
        fail_running(self.world, self.tables, np.int64(number))

    def set(
        self,
        number: int,
        serves: bool,
        steps_allowed: bool,
        held: bool,
        notify: bool,
        capacity_blocks: int,
    ) -> None:
        engine = self.world.engines[number]
        engine["status"] = STATUS_OF[serves, steps_allowed]
        engine["hold"], engine["notify"], engine["capacity_blocks"] = held, notify, capacity_blocks

    def abort(self, index: int) -> None:
        """The client of row `index`, which is in flight, hangs up."""
        abort(self.world, self.tables, self.slot(index))

    def slot(self, index: int) -> np.int64:
        """Where row `index`, which is in flight, stands."""
        alive = self.world.requests["phase"] != state.FREE
        (slot,) = np.flatnonzero(alive & (self.world.requests["index"] == index))
        return np.int64(slot)

    def leave(self, index: int) -> None:
        """Takes a decoding request out of its batch when the iteration in flight ends."""
        request = self.world.requests[self.slot(index)]
        ask_to_leave(self.world, self.tables, self.slot(index), np.int64(request["engine"]))
        self.advance(self.now)

    def keep(self, number: int, blocks: int, places: int) -> None:
        """Keeps blocks and places in an engine's batch, or lets go of them."""
        self.make_room()
        keep(self.world, self.tables, np.int64(number), np.int64(blocks), np.int64(places))

    def join(self, index: int, number: int) -> None:
        """Puts a request that has left a batch into an engine's."""
        self.make_room()
        join(self.world, self.tables, self.slot(index), np.int64(number))
        self.advance(self.now)

    def requeue(self, index: int, number: int) -> None:
        """Moves a waiting request to another engine's queue."""
        self.make_room()
        requeue(self.world, self.tables, self.slot(index), np.int64(number))
        self.advance(self.now)

    def make_room(self) -> None:
        """Prefix caching: makes room for every request in flight to be moved."""
        while lacks_extents(self.world, np.int64(self.world.cluster["num_in_flight"][0])):
            self.world = state.with_more_extents(self.world)

    def send_first(self, number: int) -> None:
        """Sends the first pooled request to an engine."""
        heads = [slot for slot in self.world.queues[-1, :, 0] if slot >= 0]
        send(self.world, self.tables, np.int64(heads[0]), np.int64(number))
        self.advance(self.now)


def shown_by(engine: oracle.Engine) -> dict[str, object]:
    """What an engine of the oracle shows, in the kernel's names."""
    return {
        "used_blocks": engine.used_blocks,
        "steps": engine.steps,
        "generated_tokens": engine.generated_tokens,
        "pending_prefill_tokens": engine.pending_prefill_tokens,
        "prefill_context": engine.prefill_context,
        "decode_context": engine.decode_context,
        "preemptions": engine.preemptions,
        "prefilled_tokens": engine.prefilled_tokens,
        "cached_tokens": engine.hit_tokens,
        "busy_ps": engine.busy_ps,
        "num_running": len(engine.running),
        "num_waiting": len(engine.waiting) + len(engine.swapped),
        "host_used": engine.swapped_blocks,
        "num_prefilling": sum(not request.decoding for request in engine.running),
        "step_end_ps": -1 if engine.ends_ps is None else engine.ends_ps,
        "running": [request.index for request in engine.running],
        "waiting": [request.index for request in engine.waiting + engine.swapped],
    }


def fate_of(request: oracle.Request) -> dict[str, int | str]:
    """What became of a request of the oracle, in the kernel's names."""
    return {
        "index": request.index,
        "first_scheduled_ps": request.first_scheduled_ps,
        "first_token_ps": request.first_token_ps,
        "finish_ps": request.finish_ps,
        "generated": request.generated,
        "preemptions": request.preemptions,
        "engine": request.engine,
        "fate": request.fate,
    }


def assert_equal(kernel: Kernel, cluster: oracle.Cluster) -> None:
    """The kernel and the oracle show the same, engine by engine and request by request."""
    assert kernel.now == cluster.now
    assert kernel.arrived == cluster.arrived
    for engine in cluster.engines:
        assert kernel.engine(engine.number) == shown_by(engine), f"engine {engine.number} at {cluster.now}"
    assert kernel.queue(len(cluster.engines)) == [request.index for request in cluster.pool]
    assert int(kernel.world.cluster["num_pooled"][0]) == len(cluster.pool)
    assert int(kernel.world.cluster["pooled_tokens"][0]) == sum(request.tokens for request in cluster.pool)
    fates = {request.index: fate_of(request) for request in cluster.arrivals[: cluster.arrived]}
    assert kernel.requests() == fates
