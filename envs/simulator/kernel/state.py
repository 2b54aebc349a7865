"""The kernel's state: flat record arrays, one clock in integer picoseconds.

A *world* is one cluster. Everything that changes lives in `World`, a named tuple of arrays whose sizes follow the
number of engine slots and of requests in flight (not of requests in the trace), so that a copy of them is a copy of the
world. What never changes during an episode lives in `Traffic` (the arrivals) and `Tables` (latency, limits) and is
shared by forks. Times are picoseconds since the episode began: sums of integers are exact, so stepping through
iterations and skipping over them give the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE, TOTALS

PS_PER_S = 1_000_000_000_000
NEVER = np.iinfo(np.int64).max
_LOG_MARGIN = 160  # arrivals that a fresh log has room for
NUM_LEVELS = 8  # distinct priority values an engine's queue can hold apart

# Engine status. ACTIVE and SPECULATIVE take new requests; DRAINING finishes what it has; PAUSED keeps its KV and
# stands still; INACTIVE is a group that is not part of the layout; DOWN has failed or is starting.
INACTIVE, ACTIVE, DRAINING, SPECULATIVE, PAUSED, DOWN = range(6)

# Request phase. In TRANSIT its KV is on the way from a prefill engine to a decode engine; or it migrates and is in no
# batch while the last of its KV is copied; or it is on its way to an engine in another region and has none yet.
# RETURNING it has left the engine, and the end of its answer is on the way to its client.
FREE, WAITING, PREFILL, DECODE, TRANSIT, RETURNING = range(6)

# What an engine does of a request: all of it, or its prompt and first token, or what comes after.
MIXED, PREFILLS, DECODES = range(3)

# Outcome of a request in the log.
FINISHED, REFUSED, FAILED, ABORTED, TOO_LONG, TIMED_OUT = range(6)

# Queue order of an engine. The first two are vLLM's `--scheduling-policy`; the others SageServe's (section 6.5), which
# calls PRIORITY "priority first".
FCFS, PRIORITY, EDF, DPA = range(4)

# Scheduler of an engine: vLLM's V1, or the one before it, which preempts by recompute or by swapping to the host.
V1, V0, V0_SWAP = range(3)

# Node of an extent that holds nothing anyone could hit; -2 - slot is a request's own.
ANONYMOUS = -1

# Built-in routers.
ROUND_ROBIN, LEAST_REQUESTS, JSQ_TOKENS, AFFINITY, HOLD, WEIGHTED = range(6)
ROUTER_NAMES = ("round_robin", "least_requests", "jsq", "affinity", "hold", "weighted")

# Why `advance` returned.
REACHED, NOTIFIED, TRIGGERED, NEED_SLOTS, NEED_LOG, NEED_EXTENTS = range(6)

ENGINE_DTYPE = np.dtype(
    [
        ("step_end_ps", np.int64),  # end of the iteration in flight, -1 when none is
        ("run_left", np.int64),  # further iterations of the run, all like the one in flight
        ("tick", np.int64),  # iterations scheduled so far; a decoding request gains one token a tick
        ("next_finish_tick", np.int64),  # earliest tick at which a decoding request ends
        ("begin_ps", np.int64),  # when it tries to begin an iteration if it stands idle, or NEVER
        ("decode_context", np.int64),  # sum of computed tokens over decoding requests
        ("prefill_context", np.int64),  # sum of computed tokens over partly prefilled requests
        (
            "pending_prefill_tokens",
            np.int64,
        ),  # tokens still to be prefilled: waiting and partly prefilled requests
        ("used_blocks", np.int64),
        (
            "capacity_blocks",
            np.int64,
        ),  # what this engine's requests may use; less when paused requests share the pool
        ("total_blocks", np.int64),  # capacity_blocks when nothing else is resident
        ("busy_ps", np.int64),
        ("prefill_ps", np.int64),  # of these, in iterations with prefill
        ("steps", np.int64),
        ("preemptions", np.int64),
        ("generated_tokens", np.int64),
        ("prefilled_tokens", np.int64),
        ("cached_tokens", np.int64),  # prompt tokens found in the prefix cache
        ("link_free_ps", np.int64),  # when its link has sent the KV of all requests in transit
        ("first_transit", np.int32),  # requests in transit, in the order in which they arrive
        ("last_transit", np.int32),
        ("role", np.int32),
        ("status", np.int32),
        ("kind", np.int32),  # row of Tables
        ("width", np.int32),  # GPUs
        ("first_gpu", np.int32),
        ("num_running", np.int32),
        ("num_prefilling", np.int32),
        ("num_sharing", np.int32),  # prefix caching: decoding requests whose next full blocks others may hit
        ("num_waiting", np.int32),
        (
            "num_leaving",
            np.int32,
        ),  # decoding requests that leave the batch with the iteration in flight (migration.py)
        ("num_kept", np.int32),  # places in the batch kept for requests that have left it, or are to join it
        ("hold", np.int32),  # 1: schedule nothing after the iteration in flight
        (
            "notify",
            np.int32,
        ),  # 1: stop the clock when this engine has nothing left to do (or holds); 2: when it runs nothing any more
        ("steady", np.int32),  # 1: the iteration in flight is pure decode and begins a run of such
        ("step_decodes", np.int32),  # decoding requests that get a token from the iteration in flight
        (
            "walked",
            np.int32,
        ),  # 1: only decoding requests with a chunk get a token from the iteration in flight
        ("changes", np.int32),  # counts what is more than another iteration of a run
        ("prefills", np.int32),  # 1: the iteration in flight has prefill
        (
            "free_first",
            np.int32,
        ),  # prefix caching: the free blocks as a list of extents, next to be taken ...
        ("free_last", np.int32),  # ... and last
        ("ahead", np.int32),  # 1: the iteration is put together as if the one before it still ran
        ("late", np.int32),  # 1: so was the last one, and what was decoded in it is not cached yet
        ("host_blocks", np.int64),  # KV blocks that its tier in host memory can hold; 0: it has none
        ("host_used", np.int64),  # by that tier, or by requests that are swapped out
        ("host_free_ps", np.int64),  # when its link to the host has loaded all that was asked of it
        ("loaded_blocks", np.int64),  # from the host, so far
        ("host_first", np.int32),  # nodes on the host by last use, the latest first; -1: none ...
        ("host_last", np.int32),  # ... and the one that was used longest ago
        ("num_parting", np.int32),  # requests that are over and wait for that to give back their blocks ...
        ("first_parting", np.int32),  # ... the first of them
        (
            "num_returning",
            np.int32,
        ),  # requests that have left it, with the end of their answers on the way ...
        ("first_returning", np.int32),  # ... as a list; -1: none
    ],
    align=True,
)

REQUEST_DTYPE = np.dtype(
    [
        # What a router looks at of every request in flight, side by side:
        # When its client has its first token: later than now while that is on the way, -1 before.
        ("first_token_ps", np.int64),
        # Decoding: computed tokens = engine tick + offset. Waiting in an engine: the number of iterations from which on
        # one may be put together with it. Parting: how many that go on stand before it in the running list.
        ("offset", np.int64),
        ("phase", np.int32),
        ("engine", np.int32),  # -1 until it is sent to one
        ("prompt", np.int32),
        ("predicted", np.int32),  # output length that a router was told to expect
        ("generated", np.int32),  # up to date unless decoding
        ("chunk", np.int32),  # tokens scheduled in the iteration in flight
        ("index", np.int32),  # row of the workload
        ("class_id", np.int32),
        ("arrival_ps", np.int64),
        ("first_scheduled_ps", np.int64),  # -1 until then
        ("deadline_ps", np.int64),  # of the first token: arrival and the class's TTFT promise
        ("arrives_ps", np.int64),  # in transit: when its KV is there
        ("lag_ps", np.int64),  # from a token's end in the engine to its client
        ("output", np.int32),  # true length; no policy sees it
        ("max_output", np.int32),  # what its client declared
        ("computed", np.int32),  # up to date unless decoding
        ("level", np.int32),  # priority level, 0 is served first
        ("endpoint", np.int32),  # row of World.endpoints
        ("preemptions", np.int32),
        ("cached", np.int32),  # prompt tokens found in the prefix cache when first admitted
        ("holds", np.int32),  # prefix caching: first entry of its list of held extents, -1 if none
        ("held_blocks", np.int32),  # blocks that list covers; what it has beyond is its own and implicit
        ("sharing", np.int32),  # prefix caching: 1 while it decodes blocks that its chain names
        ("own_extents", np.int32),  # its own blocks that it has left in caches, of any engine; -1 if none
        # Decoding, prefix caching under asynchronous scheduling, 1: it stood still in the last iteration, so that all
        # its tokens are known; 2: the last iteration computed the rest of its prompt, all of which is known.
        ("settled", np.int32),
        ("loaded", np.int32),  # blocks of its beginning that the host's tier has loaded for it, or is loading
        # 1: in transit, and it is from the host that its KV comes; or waiting, swapped out with `loaded` blocks there
        ("loads", np.int32),
        ("next", np.int32),
        ("prev", np.int32),
        (
            "target",
            np.int32,
        ),  # engine, plus 1, that it is to leave the batch for or is on its way to; 0: none
    ],
    align=True,
)

LOG_DTYPE = np.dtype(
    [
        ("arrival_ps", np.int64),
        ("first_scheduled_ps", np.int64),
        ("first_token_ps", np.int64),
        ("finish_ps", np.int64),
        ("index", np.int32),
        ("generated", np.int32),
        ("preemptions", np.int32),
        ("cached", np.int32),
        ("class_id", np.int32),
        ("endpoint", np.int32),
        ("engine", np.int32),
        ("outcome", np.int32),
    ],
    align=True,
)

# A run of KV blocks of an engine with one content and one number of users. The physical block does not matter, so an
# extent has none. Positions count blocks from the beginning of the prompt.
EXTENT_DTYPE = np.dtype(
    [
        ("node", np.int32),  # whose content: a node of the prefix tree, ANONYMOUS, or a request's own
        ("start", np.int32),  # first position
        ("end", np.int32),  # behind the last position
        ("engine", np.int32),  # in whose cache
        ("refs", np.int32),  # running requests that use it; 0: it stands in the engine's list of free blocks
        ("next", np.int32),  # towards the end of that list, where blocks are freed; also links unused records
        ("prev", np.int32),
        (
            "sibling",
            np.int32,
        ),  # the node's next extent in this engine, in the order in which they were cached
        ("before", np.int32),  # what was split off its beginning, for those that hold both
    ],
    align=True,
)

# An entry of the list of extents that a running request holds, last blocks first.
HOLD_DTYPE = np.dtype(
    [
        ("extent", np.int32),  # this one and what was split off its beginning ...
        ("start", np.int32),  # ... back to this position
        ("next", np.int32),
    ],
    align=True,
)

# What sessions need, a row a request; none where no request waits for another. In the order of the workload, except
# for the first two columns, which are in order of arrival.
TURN_DTYPE = np.dtype(
    [
        ("came_ps", np.int64),  # when the k-th request arrived; of the next one, when it is to, or NEVER
        ("came_row", np.int32),  # the row of the workload that it is
        ("unmet", np.int32),  # answers that this row still waits for
        ("delay_ps", np.int64),  # from the last of those answers to its arrival; -1: it waits for none
        ("first_child", np.int32),  # World.children: the rows that wait for this one ...
        ("last_child", np.int32),  # ... and behind the last of them
    ],
    align=True,
)

# An entry of a heap of alarms, the earliest first, of equal ones the one with the lower row.
ALARM_DTYPE = np.dtype(
    [
        ("due_ps", np.int64),
        ("row", np.int32),  # row of the workload
        ("slot", np.int32),  # of a time limit: where its request stood when it arrived
        ("limit", np.int32),  # which one: UNTIL_FIRST_TOKEN or UNTIL_END
    ],
    align=True,
)
ARRIVALS, LIMITS = range(
    2
)  # rows of World.alarms: of requests that wait for nothing any more, and of time limits
UNTIL_FIRST_TOKEN, UNTIL_END = range(2)  # a client's patience, a server's time limit
FIRST_TOKEN, LAST_TOKEN = range(2)  # `limit` of an entry of World.returns

# What an engine has of a node on the host: positions [begin, end), and its place in the list by last use.
HOST_DTYPE = np.dtype(
    [("begin", np.int32), ("end", np.int32), ("next", np.int32), ("prev", np.int32)], align=True
)

# A row of a request's path through the prefix tree.
CHAIN_DTYPE = np.dtype([("node", np.int32), ("end", np.int32)], align=True)  # behind its last position there

CLUSTER_DTYPE = np.dtype(
    [
        ("now_ps", np.int64),
        ("next_arrival", np.int64),  # row of Traffic
        ("first_index", np.int64),  # of Traffic's first row, where arrivals are streamed piece by piece
        ("log_length", np.int64),
        ("latency_cost", np.float64),  # as of the end of the last `advance`
        ("free_head", np.int32),  # free list of request slots
        ("num_in_flight", np.int32),
        ("num_pooled", np.int32),
        ("pooled_tokens", np.int64),
        ("router", np.int32),
        ("order", np.int32),
        ("chunked_prefill", np.int32),
        ("reserve_full_prompt", np.int32),  # vLLM's scheduler_reserve_full_isl
        ("long_prefill_threshold", np.int32),  # 0: none
        ("prefix_caching", np.int32),
        ("first_extent", np.int32),  # unused extent records ...
        ("num_free_extents", np.int32),
        ("first_hold", np.int32),  # ... and entries of lists of held ones
        ("num_free_holds", np.int32),
        ("num_sharing", np.int32),  # of all engines
        ("longest_chain", np.int32),  # rows
        ("expired_ps", np.int64),  # DPA: requests this long after their deadline come first
        ("urgent_ps", np.int64),  # DPA: requests with no more than this left come before the others
        ("stop_on_trigger", np.int32),
        (
            "triggered",
            np.int32,
        ),  # 1: a request has arrived that asks for a decision; idle engines are to begin first
        ("num_clients", np.int32),  # closed loop: requests kept in flight; 0 when arrivals are given
        ("next_root", np.int64),  # sessions: the next row that waits for no answer
        ("num_calls", np.int64),  # alarms in the heap of ARRIVALS ...
        ("num_limits", np.int64),  # ... and of LIMITS
        ("num_returns", np.int64),  # tokens on the way to their clients: entries of the heap World.returns
        ("front_factor", np.float64),  # on the delay of the front end
        (
            "time_limit_ps",
            np.int64,
        ),  # after which the server ends a request, counted from its arrival; or NEVER
    ],
    align=True,
)

# Engines that may serve the same requests: those of one model in one region, neighbours in `World.engines`.
ENDPOINT_DTYPE = np.dtype(
    [
        ("first", np.int32),  # engine that takes new requests
        ("last", np.int32),  # behind the last of them
        ("first_decode", np.int32),  # engine of role DECODES
        ("last_decode", np.int32),  # behind the last of them
        ("turn", np.int32),  # round robin's next engine, counted from the first
        (
            "max_request_tokens",
            np.int64,
        ),  # answers are cut here; a prompt that leaves no room for one is refused
        ("max_prompt_tokens", np.int64),  # a longer prompt is refused, where engines only prefill; else 0
    ],
    align=True,
)

# One row an engine kind.
KIND_DTYPE = np.dtype(
    [
        ("sequence_ps", np.int64),  # per decoding request beside prefill; decode_ps has it already
        ("kv_ps", np.int64),  # per token of decode context
        ("attn_fs", np.int64),  # per (query, key) pair of prefill attention
        ("stages", np.int64),  # pipeline stages; a prompt's chunk goes through them whole
        ("block_size", np.int64),  # tokens a block
        ("block_rank", np.int64),  # its place among the distinct block sizes, ascending
        ("max_num_seqs", np.int64),
        ("max_batched_tokens", np.int64),
        ("transfer_ps", np.int64),  # per token of KV sent to another engine
        ("transfer_fixed_ps", np.int64),  # until the first byte is there
        ("load_ps", np.int64),  # per block loaded from the host, or swapped either way
        ("async_scheduling", np.int64),  # 1: an iteration is put together while the one before it runs
        ("scheduler", np.int64),
        ("swap_blocks", np.int64),  # V0_SWAP: blocks of host memory for requests that are swapped out
        ("speed", np.float64),  # relative token throughput, used by routers
    ],
    align=True,
)

# What lies between an engine and its clients (`calibration.engines.Frontend`). One row an engine kind.
FRONT_DTYPE = np.dtype(
    [
        ("fixed_ps", np.int64),
        ("token_ps", np.int64),  # per token of the prompt
        ("request_ps", np.int64),  # per request that decodes in the same iteration
        ("iterations", np.float64),  # decode iterations begun before an arrival is seen, where it has to wait
    ],
    align=True,
)

# One row a request class.
CLASS_DTYPE = np.dtype([("ttft_slo_ps", np.int64), ("tpot_slo_ps", np.int64)], align=True)

# Columns of World.stats, a row a request class. Running totals since the episode began.
STAT_NAMES = (
    *TOTALS,  # what a cluster shows
    "wait_weight",  # sum of weights of requests without a first token ...
    "wait_weighted_start",  # ... and of weight x arrival time: together the running integral of waiting cost
    "wait_closed",
    "wait_square_weight",  # the same of the squares: sum of squared weights ...
    "wait_square_start",  # ... of squared weight x arrival time ...
    "wait_square_start_square",  # ... and of squared weight x squared arrival time
    "wait_square_closed",
    "decode_weight",
    "decode_weighted_start",
    "decode_closed",
    "aborted",  # of the failed, those whose clients hung up
)
(
    S_ARRIVED,
    S_ARRIVED_TOKENS,
    S_REFUSED,
    S_FAILED,
    S_FIRST,
    S_TTFT_MET,
    S_TTFT_SUM,
    S_FINISHED,
    S_TPOT_MET,
    S_TPOT_SUM,
    S_GOOD,
    S_GENERATED,
    S_WAIT_W,
    S_WAIT_WS,
    S_WAIT_CLOSED,
    S_SQUARE_W,
    S_SQUARE_WS,
    S_SQUARE_WSS,
    S_SQUARE_CLOSED,
    S_DECODE_W,
    S_DECODE_WS,
    S_DECODE_CLOSED,
    S_ABORTED,
) = range(len(STAT_NAMES))


class World(NamedTuple):
    """All mutable arrays of a cluster. E engine slots, R request slots, S running requests, B block size, C classes."""

    cluster: NDArray[np.void]  # (1,) CLUSTER_DTYPE
    engines: NDArray[np.void]  # (E,) ENGINE_DTYPE
    # (E,) end of the last iteration of the run in flight (runs.py), NEVER where there is none; with disaggregated
    # prefill (2E,), and the second half is when the next KV in transit arrives
    due_ps: NDArray[np.int64]
    load: NDArray[np.float64]  # (E,) what routers minimise (routers.py), infinite where nothing may be sent
    endpoints: NDArray[np.void]  # (P,) ENDPOINT_DTYPE
    shares: NDArray[
        np.float64
    ]  # (P, E) of an endpoint's requests that are to go to an engine, relative (WEIGHTED)
    credit: NDArray[np.float64]  # (P, E) requests that an engine is owed of them
    shown: NDArray[np.void]  # (E,) ENGINE_STATE_DTYPE, as of the end of the last `advance`
    requests: NDArray[np.void]  # (R,) REQUEST_DTYPE
    queues: NDArray[
        np.int32
    ]  # (E + 1, NUM_LEVELS, 3) head, tail and finger (queues.py) of each list; row E holds those not yet sent to one
    running: NDArray[np.int32]  # (E, S) request slots in vLLM's order
    finish_tick: NDArray[np.int64]  # (E, S) tick at which running[e, i] ends; NEVER while it prefills
    residues: NDArray[np.int32]  # (E, B) decoding requests by offset modulo the engine's block size
    stats: NDArray[np.float64]  # (C, len(STAT_NAMES))
    log: NDArray[np.void]  # (M,) LOG_DTYPE, append only
    extents: NDArray[np.void]  # (X,) EXTENT_DTYPE
    holds: NDArray[np.void]  # (X,) HOLD_DTYPE
    node_extents: NDArray[np.int32]  # (E, nodes) first extent of each node of the prefix tree, -1 if none
    tracked: NDArray[
        np.uint64
    ]  # a bit a slot: there is a request that stands in no line of a gateway (queues.py)
    chain_start: NDArray[np.int32]  # (block sizes, N + 1) first row of each request's chain; never changes
    chains: NDArray[np.void]  # (rows,) CHAIN_DTYPE; never changes
    turns: NDArray[np.void]  # (N,) TURN_DTYPE, or none: no request waits for another
    children: NDArray[np.int32]  # rows that wait for others; never changes
    host: NDArray[np.void]  # (E, nodes) HOST_DTYPE; no nodes where nothing is kept on the host
    alarms: NDArray[
        np.void
    ]  # (2, M) ALARM_DTYPE, two heaps; M = 0 where nothing waits and nobody is impatient
    # (2R,) ALARM_DTYPE, a heap of first and last tokens on the way to their clients; none: they are there at once
    returns: NDArray[np.void]


class Traffic(NamedTuple):
    """The arrivals of an episode, N rows sorted by time.

    In a closed loop, times are NEVER until a client sends. In a session, times of those that wait say nothing.
    """

    arrival_ps: NDArray[np.int64]
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    max_output: NDArray[np.int32]
    level: NDArray[np.int32]
    class_id: NDArray[np.int32]
    endpoint: NDArray[np.int32]  # row of World.endpoints
    trigger: NDArray[np.int8]  # 1: a decision may be asked for when this request arrives
    # (N,) how long a client waits for the first token, or NEVER; none: all wait as long as it takes
    patience_ps: NDArray[np.int64] = np.zeros(0, np.int64)


class Tables(NamedTuple):
    """What engine kinds cost and allow. K kinds, C classes."""

    decode_ps: NDArray[np.int64]  # (K, S + 1) pure decode iteration by batch size
    mixed_ps: NDArray[np.int64]  # (K, T + 1) iteration with prefill, by scheduled tokens
    kinds: NDArray[np.void]  # (K,) KIND_DTYPE
    classes: NDArray[np.void]  # (C,) CLASS_DTYPE
    fronts: NDArray[np.void] = np.zeros(
        0, FRONT_DTYPE
    )  # (K,) FRONT_DTYPE, or none: clients see engines at once


def rows_of(dtype: np.dtype, **columns: ArrayLike) -> NDArray[np.void]:
    """Records from their columns, all of which must be given; those of one value are for all."""
    if set(columns) != set(dtype.names or ()):
        raise ValueError(f"columns must be {', '.join(dtype.names or ())}, got {', '.join(columns)}")
    rows = np.zeros(np.broadcast_shapes(*(np.shape(column) for column in columns.values())), dtype)
    for name, column in columns.items():
        rows[name] = column
    return rows


@dataclass(frozen=True)
class Chains:
    """Every request's path through the tree of shared prefixes, for each block size of the cluster.

    Only nodes that two requests or more go through are in it. Positions count blocks; a node lies at the same positions
    in every request that goes through it.

    Args:
        start: (block sizes, N + 1), row `start[b, i]` of `rows` is the first of request i.
        rows: (rows,) CHAIN_DTYPE.
        num_nodes: Nodes of the trees.
    """

    start: NDArray[np.int32]
    rows: NDArray[np.void]
    num_nodes: int

    @property
    def longest(self) -> int:
        """Most rows of one request."""
        return int(np.diff(self.start, axis=1).max(initial=0))


def no_chains(num_requests: int, num_block_sizes: int = 1) -> Chains:
    """Chains of requests that share nothing."""
    return Chains(np.zeros((num_block_sizes, num_requests + 1), np.int32), np.zeros(0, CHAIN_DTYPE), 0)


class Sessions(NamedTuple):
    """Who waits for whom, and the rows that wait, as `World.turns` and `World.children`."""

    turns: NDArray[np.void]
    children: NDArray[np.int32]


def no_sessions() -> Sessions:
    """Of requests that do not wait for others."""
    return Sessions(np.zeros(0, TURN_DTYPE), np.zeros(0, np.int32))


def new_world(
    num_engines: int,
    max_running: int,
    max_block_size: int,
    num_classes: int,
    request_slots: int = 64,
    chains: Chains | None = None,
    num_endpoints: int = 1,
    disaggregated: bool = False,
    sessions: Sessions | None = None,
    num_limits: int = 0,
    host_tier: bool = False,
    front_end: bool = False,
) -> World:
    """An empty world; engines are INACTIVE and endpoints empty until the caller fills them in.

    With `chains` it caches prefixes. A single endpoint has all engines. `disaggregated` says that some only prefill.
    `num_limits`: time limits that may run at once. `host_tier`: engines keep KV in host memory too. `front_end`: tokens
    take time from an engine to its clients.
    """
    cached = chains or no_chains(0)
    turns = sessions or no_sessions()
    world = World(
        cluster=np.zeros(1, CLUSTER_DTYPE),
        engines=np.zeros(num_engines, ENGINE_DTYPE),
        due_ps=np.full(num_engines * (2 if disaggregated or host_tier else 1), NEVER, np.int64),
        load=np.full(num_engines, np.inf),
        endpoints=np.zeros(num_endpoints, ENDPOINT_DTYPE),
        shares=np.zeros((num_endpoints, num_engines)),
        credit=np.zeros((num_endpoints, num_engines)),
        shown=np.zeros(num_engines, ENGINE_STATE_DTYPE),
        requests=np.zeros(request_slots, REQUEST_DTYPE),
        queues=np.full((num_engines + 1, NUM_LEVELS, 3), -1, np.int32),
        running=np.full((num_engines, max_running), -1, np.int32),
        finish_tick=np.full((num_engines, max_running), NEVER, np.int64),
        residues=np.zeros((num_engines, max_block_size), np.int32),
        stats=np.zeros((num_classes, len(STAT_NAMES))),
        log=np.zeros(request_slots, LOG_DTYPE),
        extents=np.zeros(0, EXTENT_DTYPE),
        holds=np.zeros(0, HOLD_DTYPE),
        node_extents=np.full((num_engines, cached.num_nodes), -1, np.int32),
        tracked=np.zeros(_words(request_slots), np.uint64),
        chain_start=cached.start,
        chains=cached.rows,
        turns=turns.turns.copy(),
        children=turns.children,
        host=np.zeros((num_engines, cached.num_nodes if host_tier else 0), HOST_DTYPE),
        alarms=np.zeros((2, max(len(turns.turns), num_limits)), ALARM_DTYPE),
        returns=np.zeros(2 * request_slots if front_end else 0, ALARM_DTYPE),
    )
    world.cluster["time_limit_ps"] = NEVER
    world.cluster["front_factor"] = 1.0
    if num_endpoints == 1:
        world.endpoints["last"] = num_engines
    world.engines["first_transit"] = world.engines["last_transit"] = -1
    world.engines["free_first"] = world.engines["free_last"] = -1
    world.engines["first_returning"] = -1
    world.engines["host_first"] = world.engines["host_last"] = -1
    world.cluster["first_extent"] = world.cluster["first_hold"] = -1
    if chains is not None:
        world.cluster["prefix_caching"] = 1
        world.cluster["longest_chain"] = chains.longest
    world.engines["step_end_ps"] = -1
    world.engines["next_finish_tick"] = world.engines["begin_ps"] = NEVER
    world.cluster["free_head"] = -1
    _link_free(world, 0)
    return with_more_extents(world, 4 * num_engines) if chains is not None else world


def _words(slots: int) -> int:
    """Words that have a bit for each of so many slots."""
    return -(-slots // 64)


def _link_free(world: World, start: int) -> None:
    """Puts request slots from `start` on in front of the free list."""
    size = len(world.requests)
    world.requests["next"][start:] = np.arange(start + 1, size + 1)
    world.requests["next"][size - 1] = world.cluster["free_head"][0]
    world.cluster["free_head"] = start


def with_more_slots(world: World) -> World:
    """The same world with twice the room for requests in flight."""
    old = len(world.requests)
    tracked = np.zeros(_words(2 * old), np.uint64)
    tracked[: len(world.tracked)] = world.tracked
    grown = world._replace(
        requests=np.concatenate([world.requests, np.zeros(old, REQUEST_DTYPE)]),
        tracked=tracked,
        returns=np.concatenate([world.returns, np.zeros(len(world.returns), ALARM_DTYPE)]),
    )
    _link_free(grown, old)
    return grown


def with_more_log(world: World) -> World:
    """The same world with twice the room in the log, and room for every request in flight."""
    extra = max(len(world.log), int(world.cluster["num_in_flight"][0]) + _LOG_MARGIN)
    return world._replace(log=np.concatenate([world.log, np.zeros(extra, LOG_DTYPE)]))


def with_more_alarms(world: World, extra: int) -> World:
    """The same world with room for `extra` more time limits beside those that run."""
    if extra == 0:
        return world
    kept = world.alarms[:, : int(world.cluster["num_limits"][0])]
    return world._replace(alarms=np.concatenate([kept, np.zeros((2, extra), ALARM_DTYPE)], axis=1))


def with_more_extents(world: World, least: int = 64) -> World:
    """The same world with twice the room for extents and for entries of lists of held ones, and `least` more."""
    old = len(world.extents)
    extra = old + least
    extents = np.concatenate([world.extents, np.zeros(extra, EXTENT_DTYPE)])
    holds = np.concatenate([world.holds, np.zeros(extra, HOLD_DTYPE)])
    cluster = world.cluster
    for records, first, count in (
        (extents, "first_extent", "num_free_extents"),
        (holds, "first_hold", "num_free_holds"),
    ):
        records["next"][old:] = np.arange(old + 1, old + extra + 1)
        records["next"][-1] = cluster[first][0]
        cluster[first] = old
        cluster[count] += extra
    return world._replace(extents=extents, holds=holds)


def fork(world: World) -> World:
    """A copy that shares nothing mutable. Its log starts empty: the parent's entries are the parent's to tell."""
    copy = World(
        _copied_records(world.cluster, CLUSTER_DTYPE, _WHOLE_CLUSTER),
        _copied_records(world.engines, ENGINE_DTYPE, _WHOLE_ENGINE),
        world.due_ps.copy(),
        world.load.copy(),
        world.endpoints.copy(),
        world.shares.copy(),
        world.credit.copy(),
        copy_of_shown(world),
        _copied_records(world.requests, REQUEST_DTYPE, _WHOLE_REQUEST),
        world.queues.copy(),
        world.running.copy(),
        world.finish_tick.copy(),
        world.residues.copy(),
        world.stats.copy(),
        np.empty(world.cluster["num_in_flight"][0] + _LOG_MARGIN, LOG_DTYPE),
        _copied_if_any(world.extents, EXTENT_DTYPE, _WHOLE_EXTENT),
        _copied_if_any(world.holds, HOLD_DTYPE, _WHOLE_HOLD),
        world.node_extents.copy() if world.node_extents.size else world.node_extents,
        world.tracked.copy(),
        world.chain_start,
        world.chains,
        _copied_if_any(world.turns, TURN_DTYPE, _WHOLE_TURN),
        world.children,
        _copied_if_any(world.host, HOST_DTYPE, _WHOLE_HOST),
        _copied_if_any(world.alarms, ALARM_DTYPE, _WHOLE_ALARM),
        _copied_if_any(world.returns, ALARM_DTYPE, _WHOLE_ALARM),
    )
    copy.cluster["log_length"] = 0
    return copy


def copy_of_shown(world: World) -> NDArray[np.void]:
    """What engines showed at the end of the last `advance`, (E,) ENGINE_STATE_DTYPE."""
    return _copied_records(world.shown, ENGINE_STATE_DTYPE, _WHOLE_SHOWN)


def _copied_records(records: NDArray[np.void], dtype: np.dtype, whole: np.dtype) -> NDArray[np.void]:
    """A copy, record by record; numpy's own goes field by field and takes ten times as long."""
    return records.view(whole).copy().view(dtype)


def _copied_if_any(records: NDArray[np.void], dtype: np.dtype, whole: np.dtype) -> NDArray[np.void]:
    """A copy of what only some worlds have records of."""
    return _copied_records(records, dtype, whole) if records.size else records


# The same records without their fields.
_WHOLE_CLUSTER = np.dtype((np.void, CLUSTER_DTYPE.itemsize))
_WHOLE_ENGINE = np.dtype((np.void, ENGINE_DTYPE.itemsize))
_WHOLE_REQUEST = np.dtype((np.void, REQUEST_DTYPE.itemsize))
_WHOLE_SHOWN = np.dtype((np.void, ENGINE_STATE_DTYPE.itemsize))
_WHOLE_EXTENT = np.dtype((np.void, EXTENT_DTYPE.itemsize))
_WHOLE_HOLD = np.dtype((np.void, HOLD_DTYPE.itemsize))
_WHOLE_HOST = np.dtype((np.void, HOST_DTYPE.itemsize))
_WHOLE_TURN = np.dtype((np.void, TURN_DTYPE.itemsize))
_WHOLE_ALARM = np.dtype((np.void, ALARM_DTYPE.itemsize))
