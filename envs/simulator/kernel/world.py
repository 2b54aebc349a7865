"""The data plane: arrivals, routing, and many engines under one clock. Compiled; SimPy decides when it stops."""

from __future__ import annotations

import numpy as np
from numba import njit

from envs.simulator.kernel.engine import (
    advance_engine,
    complete,
    drop_running,
    kick,
    schedule,
    write_log,
)
from envs.simulator.kernel.queues import (
    enqueue,
    head_of,
    release_slot,
    take_slot,
    tokens_to_prefill,
    unlink,
)
from envs.simulator.kernel.state import (
    ACTIVE,
    AFFINITY,
    DECODE,
    FAILED,
    HOLD,
    LEAST_REQUESTS,
    NEED_LOG,
    NEED_SLOTS,
    NEVER,
    NOTIFIED,
    PS_PER_S,
    REACHED,
    REFUSED,
    ROUND_ROBIN,
    S_ARRIVED,
    S_ARRIVED_TOKENS,
    S_DECODE_CLOSED,
    S_DECODE_W,
    S_DECODE_WS,
    S_FAILED,
    S_REFUSED,
    S_WAIT_CLOSED,
    S_WAIT_W,
    S_WAIT_WS,
    SPECULATIVE,
    TRIGGERED,
    Tables,
    Traffic,
    World,
)


@njit(cache=True)
def may_take(world: World, tables: Tables, e: int, most_tokens: int) -> bool:
    """Whether an engine takes new requests and could hold one that grows to `most_tokens`."""
    engine = world.engines[e]
    if engine.status != ACTIVE and engine.status != SPECULATIVE:
        return False
    return most_tokens <= engine.capacity_blocks * tables.block_size[engine.kind]


@njit(cache=True)
def _score(world: World, tables: Tables, e: int, router: int) -> float:
    """What the routers minimise: requests, or tokens to prefill and resident, over the engine's speed."""
    engine = world.engines[e]
    if router == LEAST_REQUESTS:
        return float(engine.num_running + engine.num_waiting)
    return (engine.pending_prefill_tokens + engine.decode_context) / tables.speed[engine.kind]


@njit(cache=True)
def _width_wanted(world: World, tables: Tables, most_tokens: int, urgent: bool) -> int:
    """AFFINITY: the widest engines serve urgent requests, the narrower ones the rest, if there are any.

    Returns the width to choose, or the negated width to avoid, or 0 where all fitting engines are as wide.
    """
    widest, narrowest = 0, np.iinfo(np.int32).max
    for e in range(len(world.engines)):
        if may_take(world, tables, e, most_tokens):
            widest = max(widest, world.engines[e].width)
            narrowest = min(narrowest, world.engines[e].width)
    if widest <= narrowest:
        return 0
    return widest if urgent else -widest


@njit(cache=True)
def route(world: World, tables: Tables, slot: int, most_tokens: int) -> int:
    """The built-in router's engine for a request, or -1 (none can take it, or the router holds)."""
    cluster = world.cluster[0]
    router = cluster.router
    num_engines = len(world.engines)
    if router == HOLD:
        return -1
    if router == ROUND_ROBIN:
        for step in range(num_engines):
            e = (cluster.turn + step) % num_engines
            if may_take(world, tables, e, most_tokens):
                cluster.turn = (e + 1) % num_engines
                return e
        return -1
    width = 0
    if router == AFFINITY:
        width = _width_wanted(world, tables, most_tokens, world.requests[slot].level == 0)
    best, best_score = -1, np.inf
    for e in range(num_engines):
        if width > 0 and world.engines[e].width != width:
            continue
        if width < 0 and world.engines[e].width == -width:
            continue
        if may_take(world, tables, e, most_tokens):
            score = _score(world, tables, e, router)
            if score < best_score:
                best, best_score = e, score
    return best


@njit(cache=True)
def dispatch(world: World, traffic: Traffic, tables: Tables, slot: int) -> int:
    """Sends an unqueued request to an engine, or to the pool. Returns the engine or -1."""
    index = world.requests[slot].index
    most_tokens = np.int64(traffic.prompt[index]) + traffic.max_output[index]
    e = route(world, tables, slot, most_tokens)
    enqueue(world, e if e >= 0 else len(world.engines), slot, False)
    return e


@njit(cache=True)
def dispatch_pool(world: World, traffic: Traffic, tables: Tables) -> None:
    """Offers every pooled request to the router again, in order, and starts idle engines."""
    num_engines = len(world.engines)
    for level in range(world.queues.shape[1]):
        slot = world.queues[num_engines, level, 0]
        while slot >= 0:
            following = world.requests[slot].next
            index = world.requests[slot].index
            most_tokens = np.int64(traffic.prompt[index]) + traffic.max_output[index]
            e = route(world, tables, slot, most_tokens)
            if e >= 0:
                unlink(world, num_engines, slot)
                enqueue(world, e, slot, False)
            slot = following
    now = world.cluster[0].now_ps
    for e in range(num_engines):
        kick(world, tables, e, now)


@njit(cache=True)
def _ingest(world: World, traffic: Traffic, tables: Tables, index: int) -> None:
    """Lets request `index` of the workload arrive."""
    cluster = world.cluster[0]
    slot = take_slot(world)
    request = world.requests[slot]
    request.index = index
    request.arrival_ps = traffic.arrival_ps[index]
    request.first_scheduled_ps = -1
    request.first_token_ps = -1
    request.prompt = traffic.prompt[index]
    request.output = traffic.output[index]
    request.generated = 0
    request.computed = 0
    request.chunk = 0
    request.preemptions = 0
    request.level = traffic.level[index]
    request.class_id = traffic.class_id[index]
    request.engine = -1
    stats = world.stats[request.class_id]
    stats[S_ARRIVED] += 1
    stats[S_ARRIVED_TOKENS] += request.prompt
    if np.int64(request.prompt) + traffic.max_output[index] > cluster.max_request_tokens:
        stats[S_REFUSED] += 1
        write_log(world, slot, request.arrival_ps, REFUSED)
        release_slot(world, slot)
        return
    weight = PS_PER_S / tables.ttft_slo_ps[request.class_id]
    stats[S_WAIT_W] += weight
    stats[S_WAIT_WS] += weight * (request.arrival_ps / PS_PER_S)
    dispatch(world, traffic, tables, slot)


@njit(cache=True)
def _needs_room(world: World) -> int:
    """Whether arrays must grow before another request may arrive."""
    cluster = world.cluster[0]
    if cluster.free_head < 0:
        return NEED_SLOTS
    if cluster.log_length + cluster.num_in_flight + 1 > len(world.log):
        return NEED_LOG
    return REACHED


@njit(cache=True)
def _done_or_held(world: World, e: int) -> bool:
    """Whether an engine that was asked to tell has nothing left to run, or stands still as told."""
    engine = world.engines[e]
    if engine.notify == 0 or engine.step_end_ps >= 0:
        return False
    return engine.hold == 1 or engine.num_running + engine.num_waiting == 0


@njit(cache=True)
def _advance_watched(world: World, tables: Tables, until: int) -> int:
    """Steps the engines that notify, in the order of their iterations, up to the first notice. Returns the time reached."""
    while True:
        first, due = -1, until + 1
        for e in range(len(world.engines)):
            engine = world.engines[e]
            if engine.notify:
                if _done_or_held(world, e):
                    return world.cluster[0].now_ps
                if 0 <= engine.step_end_ps < due:
                    first, due = e, engine.step_end_ps
        if first < 0:
            return until
        complete(world, tables, first, due)
        schedule(world, tables, first, due)
        if _done_or_held(world, first):
            return due


@njit(cache=True)
def _triggered(traffic: Traffic, last: int) -> bool:
    """Whether a request that arrived together with row `last` asks for a decision."""
    i = last
    while i >= 0 and traffic.arrival_ps[i] == traffic.arrival_ps[last]:
        if traffic.trigger[i] == 1:
            return True
        i -= 1
    return False


@njit(cache=True)
def advance(world: World, traffic: Traffic, tables: Tables, until: int) -> int:
    """Moves the world to `until`, or to the first thing the control plane must see. Returns why it stopped.

    At one instant iterations end first, then requests arrive, then idle engines begin.
    """
    cluster = world.cluster[0]
    num_engines = len(world.engines)
    num_requests = len(traffic.arrival_ps)
    watched = False
    for e in range(num_engines):
        watched |= world.engines[e].notify == 1
    while True:
        upcoming = NEVER if cluster.next_arrival >= num_requests else traffic.arrival_ps[cluster.next_arrival]
        if upcoming <= until:
            needs = _needs_room(world)
            if needs != REACHED:
                return needs
        target = min(upcoming, until)
        if watched:
            reached = _advance_watched(world, tables, target)
        else:
            reached = target
        for e in range(num_engines):
            if not world.engines[e].notify:
                advance_engine(world, tables, e, reached)
        cluster.now_ps = reached
        if watched:
            for e in range(num_engines):
                if _done_or_held(world, e):
                    return NOTIFIED
        if upcoming > until:
            return REACHED
        while cluster.next_arrival < num_requests and traffic.arrival_ps[cluster.next_arrival] == upcoming:
            needs = _needs_room(world)
            if needs != REACHED:
                return needs
            _ingest(world, traffic, tables, cluster.next_arrival)
            cluster.next_arrival += 1
        for e in range(num_engines):
            kick(world, tables, e, upcoming)
        if cluster.stop_on_trigger and _triggered(traffic, cluster.next_arrival - 1):
            return TRIGGERED


@njit(cache=True)
def pool_waiting(world: World, e: int) -> None:
    """Sends an engine's waiting requests to the pool."""
    while world.engines[e].num_waiting > 0:
        slot = head_of(world, e)
        unlink(world, e, slot)
        world.engines[e].pending_prefill_tokens -= tokens_to_prefill(world, slot)
        enqueue(world, len(world.engines), slot, False)


@njit(cache=True)
def pool_running(world: World, tables: Tables, e: int) -> None:
    """Drops the KV of an engine's running requests and sends them to the pool, to be recomputed elsewhere."""
    while world.engines[e].num_running > 0:
        slot = drop_running(world, tables, e, world.engines[e].num_running - 1)
        enqueue(world, len(world.engines), slot, False)
    world.engines[e].next_finish_tick = NEVER
    world.engines[e].step_end_ps = -1


@njit(cache=True)
def fail_running(world: World, tables: Tables, e: int) -> None:
    """Loses an engine's running requests: their clients get an error."""
    now = world.cluster[0].now_ps
    while world.engines[e].num_running > 0:
        slot = drop_running(world, tables, e, world.engines[e].num_running - 1)
        _fail(world, tables, slot, now)
    world.engines[e].next_finish_tick = NEVER
    world.engines[e].step_end_ps = -1


@njit(cache=True)
def _fail(world: World, tables: Tables, slot: int, now: int) -> None:
    request = world.requests[slot]
    c = request.class_id
    stats = world.stats[c]
    stats[S_FAILED] += 1
    if request.first_token_ps < 0:
        weight = PS_PER_S / tables.ttft_slo_ps[c]
        stats[S_WAIT_W] -= weight
        stats[S_WAIT_WS] -= weight * (request.arrival_ps / PS_PER_S)
        stats[S_WAIT_CLOSED] += weight * ((now - request.arrival_ps) / PS_PER_S)
    elif request.output > 1:
        weight = PS_PER_S / tables.tpot_slo_ps[c] / (request.output - 1)
        stats[S_DECODE_W] -= weight
        stats[S_DECODE_WS] -= weight * (request.first_token_ps / PS_PER_S)
        stats[S_DECODE_CLOSED] += weight * ((now - request.first_token_ps) / PS_PER_S)
    write_log(world, slot, now, FAILED)
    release_slot(world, slot)


@njit(cache=True)
def send(world: World, tables: Tables, slot: int, e: int) -> None:
    """Moves a pooled request to an engine of the caller's choice and starts it if it is idle."""
    unlink(world, len(world.engines), slot)
    enqueue(world, e, slot, False)
    kick(world, tables, e, world.cluster[0].now_ps)


@njit(cache=True)
def latency_cost(world: World) -> float:
    """Running integral of the SLO-weighted number in system: sum over requests of TTFT/SLO + TPOT/SLO up to now."""
    now_s = world.cluster[0].now_ps / PS_PER_S
    total = 0.0
    for c in range(len(world.stats)):
        stats = world.stats[c]
        total += stats[S_WAIT_CLOSED] + now_s * stats[S_WAIT_W] - stats[S_WAIT_WS]
        total += stats[S_DECODE_CLOSED] + now_s * stats[S_DECODE_W] - stats[S_DECODE_WS]
    return total


@njit(cache=True)
def is_idle(world: World, traffic: Traffic) -> bool:
    """Whether every request of the workload has arrived and left."""
    return world.cluster[0].next_arrival >= len(traffic.arrival_ps) and world.cluster[0].num_in_flight == 0


@njit(cache=True)
def decoding_progress(world: World, slot: int) -> int:
    """Output tokens a request has produced, the iteration in flight not counted."""
    request = world.requests[slot]
    if request.phase != DECODE:
        return request.generated
    engine = world.engines[request.engine]
    ahead = 1 if engine.step_end_ps >= 0 else 0
    return engine.tick - ahead + request.offset - request.prompt + 1
