"""The sharing observation: a row a place, be it an instance or a new one on a node, the request, and the cluster.

Counts, tokens and seconds are log1p(value / scale) with fixed scales, ratios are ratios; no running normalisation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.compiled import compiled, int64
from serving_gym.envs.simulator.sharing.arrays import (
    EMPTY,
    ITERATION,
    LOADING,
    NEVER,
    PLACEMENT,
    PS_PER_S,
    RESIZING,
    SharingTables,
    SharingWorld,
)
from serving_gym.envs.simulator.sharing.demand import log_of, write_demand
from serving_gym.envs.simulator.sharing.iterations import is_runnable, to_prefill
from serving_gym.envs.simulator.sharing.manager import (
    can_start,
    can_take,
    mean_output,
    replaced,
    required,
    unfinished_tokens,
)
from serving_gym.envs.simulator.sharing.memory import empty_slot, node_of

PLACE_FEATURES = (
    "can_take",  # whether the action is possible now
    "there",  # whether the slot has an instance; 1 for new ones
    "new",  # whether it is a new instance on a node
    "of_model",  # whether the instance is of the request's model
    "loading",
    "resizing",
    "ready_s",  # until an operation on it ends; for new ones, until it would serve
    "running",  # requests
    "waiting",  # requests
    "kv_usage",  # used over its pool, ratio
    "kv_demand",  # what its requests and the offered one require over its pool, ratio
    "idle_s",
    "headroom_s",  # least of its requests
    "overdue_s",  # by which that has passed
    "can_prefill",  # whether it has a request to prefill that fits
    "decode_s",  # its next decode iteration, with the offered request if it joins
    "own_prefill_s",  # of the offered request there
    "node_instances",
    "node_running",  # requests on the node
    "node_backlog_s",  # prefill work that waits on the node
    "node_cycle_s",  # a decode iteration of every instance of the node together, with the offered request
    "node_headroom_s",  # least on the node
    "node_free",  # memory that is not held, ratio
    "node_busy_s",  # until the iteration under way ends
    "node_used",  # whether the node has an instance
    "replaces",  # idle instances of other models that the action unloads for the request
    "asked_s",  # since the last request of its model; of the request's model for new ones, as what follows
    "known_s",  # since the first request of its model
    "gap_30s",  # mean time between requests of its model, as the last 30 s say
    "gap_3m",
    "gap_30m",
)
REQUEST_FEATURES = (
    "placing",  # whether a request is offered; else an iteration is given
    "input_tokens",
    "mean_output_tokens",  # of its model so far
    "generated_tokens",  # before it was evicted
    "waited_s",
    "slack",  # time to the deadline of its next token over its TTFT promise, ratio
    "overdue",  # time since then over its TTFT promise
    "instances",  # of its model
    "weights",  # of its model, GB over 10, ratio
    "token_bytes",  # of KV cache, MB, ratio
    "gap_30s",  # mean time between requests of its model, as the last 30 s say
    "gap_3m",
    "gap_30m",
)
CLUSTER_FEATURES = ("held", "in_system", "running", "instances")  # and the share of each kind's nodes in use

(
    _CAN_TAKE,
    _THERE,
    _NEW,
    _OF_MODEL,
    _LOADING,
    _RESIZING,
    _READY,
    _RUNNING,
    _WAITING,
    _USAGE,
    _DEMAND,
    _IDLE,
    _HEADROOM,
    _OVERDUE,
    _CAN_PREFILL,
    _DECODE,
    _OWN_PREFILL,
    _NODE_INSTANCES,
    _NODE_RUNNING,
    _NODE_BACKLOG,
    _NODE_CYCLE,
    _NODE_HEADROOM,
    _NODE_FREE,
    _NODE_BUSY,
    _NODE_USED,
    _REPLACES,
    _ASKED,
    _KNOWN,
    _GAP,
    _,
    _,
) = range(len(PLACE_FEATURES))
_REQUESTS, _TOKENS, _LATENCY_S, _ITERATION_S = range(4)  # scales, in the order of `SharingScales`
HIGHEST = 64.0  # of any feature: ratios are cut there, logarithms of 64-bit numbers do not reach it


@compiled
def _seconds(ps: int) -> float:
    return ps / PS_PER_S


@compiled
def _least_deadline(world: SharingWorld, i: int) -> int:
    """Of the requests of an instance; NEVER: it has none."""
    least = NEVER
    for head in (world.instances[i].running_head, world.instances[i].waiting_head):
        r = head
        while r >= 0:
            least = min(least, world.requests[r].deadline_ps)
            r = world.requests[r].next
    return least


@compiled
def _decode_s(world: SharingWorld, tables: SharingTables, i: int, joins: int, tokens: int) -> float:
    """A decode iteration of all requests of an instance, those that wait included, and of some that join."""
    instance = world.instances[i]
    kind, size = world.nodes[node_of(tables, i)].kind, tables.size[instance.model]
    batch = min(instance.num_running + instance.num_waiting + joins, int64(tables.parameters[0].max_running))
    if batch == 0:
        return 0.0
    context = instance.context_tokens + unfinished_tokens(world, tables, i) + tokens
    return _seconds(
        tables.profiled_decode_ps[kind, size, batch] + tables.profiled_context_ps[kind, size] * context
    )


@compiled
def _own_decode_s(tables: SharingTables, kind: int, size: int, tokens: int) -> float:
    return _seconds(
        tables.profiled_decode_ps[kind, size, 1] + tables.profiled_context_ps[kind, size] * tokens
    )


@compiled
def _backlog_s(world: SharingWorld, tables: SharingTables, i: int) -> float:
    """Prefill work that waits in an instance."""
    instance = world.instances[i]
    kind, size, total = world.nodes[node_of(tables, i)].kind, tables.size[instance.model], int64(0)
    r = instance.waiting_head
    while r >= 0:
        total += tables.profiled_prefill_ps[kind, size, tables.input_tokens[r] + world.requests[r].generated]
        r = world.requests[r].next
    return _seconds(total)


@compiled
def _write_headroom(world: SharingWorld, deadline: int, scale: float, row: NDArray[np.float32]) -> None:
    now = world.clock[0].now_ps
    if deadline < NEVER:
        row[_HEADROOM] = log_of(_seconds(deadline - now), scale)
        row[_OVERDUE] = log_of(_seconds(now - deadline), scale)


@compiled
def _write_node(
    world: SharingWorld,
    tables: SharingTables,
    scales: NDArray[np.float64],
    n: int,
    row: NDArray[np.float32],
) -> float:
    """What places on one node have in common; returns seconds of a cycle without the offered request."""
    node, now, width = world.nodes[n], world.clock[0].now_ps, tables.parameters[0].slots_per_node
    running, backlog, cycle, least = int64(0), 0.0, 0.0, NEVER
    for i in range(n * width, (n + 1) * width):
        instance = world.instances[i]
        if instance.status != EMPTY:
            running += instance.num_running
            backlog += _backlog_s(world, tables, i)
            cycle += _decode_s(world, tables, i, 0, 0)
            least = min(least, _least_deadline(world, i))
    row[_NODE_INSTANCES] = log_of(node.num_instances, scales[_REQUESTS])
    row[_NODE_RUNNING] = log_of(running, scales[_REQUESTS])
    row[_NODE_BACKLOG] = log_of(backlog, scales[_LATENCY_S])
    if least < NEVER:
        row[_NODE_HEADROOM] = log_of(_seconds(least - now), scales[_LATENCY_S])
    row[_NODE_FREE] = 1.0 - node.held / node.memory
    if node.at_work >= 0:
        row[_NODE_BUSY] = log_of(_seconds(node.due_ps - now), scales[_ITERATION_S])
    row[_NODE_USED] = node.num_instances > 0
    return cycle


@compiled
def _write_instance(
    world: SharingWorld,
    tables: SharingTables,
    scales: NDArray[np.float64],
    i: int,
    cycle: float,
    row: NDArray[np.float32],
) -> None:
    """An instance, and what the offered request would meet there."""
    instance, clock = world.instances[i], world.clock[0]
    now, r = clock.now_ps, clock.event_request
    kind, size = world.nodes[node_of(tables, i)].kind, tables.size[instance.model]
    row[_THERE] = 1.0
    row[_LOADING] = instance.status == LOADING
    row[_RESIZING] = instance.status == RESIZING
    if instance.due_ps < NEVER:
        row[_READY] = log_of(_seconds(instance.due_ps - now), scales[_LATENCY_S])
    row[_RUNNING] = log_of(instance.num_running, scales[_REQUESTS])
    row[_WAITING] = log_of(instance.num_waiting, scales[_REQUESTS])
    row[_USAGE] = instance.used_blocks / max(instance.pool_blocks, 1)
    if instance.idle_ps < NEVER:
        row[_IDLE] = log_of(_seconds(now - instance.idle_ps), scales[_LATENCY_S])
    _write_headroom(world, _least_deadline(world, i), scales[_LATENCY_S], row)
    row[_CAN_PREFILL] = to_prefill(world, tables, i, True) >= 0
    alone = _decode_s(world, tables, i, 0, 0)
    decode, demand = alone, required(world, tables, i)
    going = replaced(world, tables, i, r) if clock.event == PLACEMENT else 0
    if clock.event == PLACEMENT and instance.model == tables.model[r]:
        tokens = tables.input_tokens[r] + world.requests[r].generated
        row[_OF_MODEL] = 1.0
        row[_CAN_TAKE] = can_take(world, tables, i, r)
        row[_OWN_PREFILL] = log_of(
            _seconds(tables.profiled_prefill_ps[kind, size, tokens]), scales[_LATENCY_S]
        )
        decode = _decode_s(world, tables, i, 1, tokens)
        demand += tokens + mean_output(world, tables, instance.model)
    elif going > 0:
        model = tables.model[r]
        tokens = tables.input_tokens[r] + world.requests[r].generated
        row[_CAN_TAKE], row[_REPLACES] = 1.0, going
        load = tables.load_ps[kind, tables.size[model]] + tables.parameters[0].unload_ps
        row[_READY] = log_of(_seconds(load), scales[_LATENCY_S])
        own = _seconds(tables.profiled_prefill_ps[kind, tables.size[model], tokens])
        row[_OWN_PREFILL] = log_of(own, scales[_LATENCY_S])
        decode = _own_decode_s(tables, kind, tables.size[model], tokens)
    latency = scales[_LATENCY_S]
    write_demand(world.demand[instance.model], _seconds(now), latency, _ASKED, _KNOWN, _GAP, row)
    row[_DECODE] = log_of(decode, scales[_ITERATION_S])
    row[_NODE_CYCLE] = log_of(cycle + decode - alone, scales[_ITERATION_S])
    pool = max(instance.kv, instance.target) / tables.token_bytes[instance.model]
    row[_DEMAND] = min(demand / max(pool, 1.0), HIGHEST)


@compiled
def _write_new(
    world: SharingWorld,
    tables: SharingTables,
    scales: NDArray[np.float64],
    n: int,
    cycle: float,
    row: NDArray[np.float32],
) -> None:
    """A new instance on a node, and what the offered request would meet there."""
    r, kind = world.clock[0].event_request, world.nodes[n].kind
    model = tables.model[r]
    size = tables.size[model]
    tokens = tables.input_tokens[r] + world.requests[r].generated
    own = _own_decode_s(tables, kind, size, tokens)
    row[_CAN_TAKE] = empty_slot(world, tables, n) >= 0 and can_start(world, tables, n, r)
    row[_OF_MODEL] = 1.0
    row[_READY] = log_of(_seconds(tables.load_ps[kind, size]), scales[_LATENCY_S])
    row[_OWN_PREFILL] = log_of(_seconds(tables.profiled_prefill_ps[kind, size, tokens]), scales[_LATENCY_S])
    row[_DECODE] = log_of(own, scales[_ITERATION_S])
    row[_NODE_CYCLE] = log_of(cycle + own, scales[_ITERATION_S])
    now_s = _seconds(world.clock[0].now_ps)
    write_demand(world.demand[model], now_s, scales[_LATENCY_S], _ASKED, _KNOWN, _GAP, row)


@compiled
def _write_request(
    world: SharingWorld, tables: SharingTables, scales: NDArray[np.float64], row: NDArray[np.float32]
) -> None:
    """The offered request."""
    clock, now = world.clock[0], world.clock[0].now_ps
    r = clock.event_request
    request, model = world.requests[r], tables.model[r]
    promise = np.float64(tables.ttft_ps[r])
    instances = 0
    for i in range(len(world.instances)):
        instances += world.instances[i].status != EMPTY and world.instances[i].model == model
    row[0] = 1.0
    row[1] = log_of(tables.input_tokens[r], scales[_TOKENS])
    row[2] = log_of(mean_output(world, tables, model), scales[_TOKENS])
    row[3] = log_of(request.generated, scales[_TOKENS])
    row[4] = log_of(_seconds(now - tables.arrival_ps[r]), scales[_LATENCY_S])
    row[5] = min(max(request.deadline_ps - now, int64(0)) / promise, HIGHEST)
    row[6] = log_of((now - request.deadline_ps) / promise, 1.0)
    row[7] = log_of(instances, scales[_REQUESTS])
    row[8] = min(tables.weights[model] / 1e10, HIGHEST)
    row[9] = min(tables.token_bytes[model] / 1e6, HIGHEST)
    write_demand(world.demand[model], _seconds(now), scales[_LATENCY_S], -1, -1, 10, row)


@compiled
def _write_cluster(world: SharingWorld, scales: NDArray[np.float64], row: NDArray[np.float32]) -> None:
    """What all places have in common."""
    clock, running, instances = world.clock[0], int64(0), int64(0)
    for i in range(len(world.instances)):
        running += world.instances[i].num_running
        instances += world.instances[i].status != EMPTY
    row[0] = log_of(clock.num_held, scales[_REQUESTS])
    row[1] = log_of(clock.num_in_system, scales[_REQUESTS])
    row[2] = log_of(running, scales[_REQUESTS])
    row[3] = log_of(instances, scales[_REQUESTS])
    first = len(CLUSTER_FEATURES)
    for k in range(len(row) - first):
        count, used = 0, 0
        for n in range(len(world.nodes)):
            if world.nodes[n].kind == k:
                count += 1
                used += world.nodes[n].num_instances > 0
        row[first + k] = used / count


@compiled
def write_observation(
    world: SharingWorld,
    tables: SharingTables,
    scales: NDArray[np.float64],
    places: NDArray[np.float32],
    request: NDArray[np.float32],
    cluster: NDArray[np.float32],
    mask: NDArray[np.bool_],
) -> None:
    """Writes the observation of a decision.

    Args:
        world: The world.
        tables: What things take.
        scales: As `SharingScales`.
        places: (S + N, len(PLACE_FEATURES)), zero.
        request: (len(REQUEST_FEATURES),), zero.
        cluster: (len(CLUSTER_FEATURES) + K,), zero.
        mask: (S + N + 1,), false.
    """
    clock, num_slots = world.clock[0], len(world.instances)
    placing = clock.event == PLACEMENT
    width = tables.parameters[0].slots_per_node
    for n in range(len(world.nodes)):
        common = places[num_slots + n]
        cycle = _write_node(world, tables, scales, n, common)
        for i in range(n * width, (n + 1) * width):
            if world.instances[i].status != EMPTY:
                for f in range(_NODE_INSTANCES, len(PLACE_FEATURES)):
                    places[i, f] = common[f]
                _write_instance(world, tables, scales, i, cycle, places[i])
                if clock.event == ITERATION and clock.event_node == n:
                    places[i, _CAN_TAKE] = is_runnable(world, tables, i)
        common[_THERE] = common[_NEW] = 1.0
        if placing:
            _write_new(world, tables, scales, n, cycle, common)
    for p in range(len(places)):
        mask[p] = places[p, _CAN_TAKE] > 0
    mask[len(places)] = True
    if placing:
        _write_request(world, tables, scales, request)
    _write_cluster(world, scales, cluster)
