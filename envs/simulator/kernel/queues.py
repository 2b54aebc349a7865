"""Request slots and the doubly linked queues they stand in. Row E of `World.queues` is the pool of unrouted requests."""

from __future__ import annotations

import numpy as np
from numba import njit

from envs.simulator.kernel.state import DECODE, FCFS, FREE, NUM_LEVELS, PRIORITY, WAITING, World


@njit(cache=True, inline="never")
def take_slot(world: World) -> int:
    """Removes a slot from the free list; the caller has made sure there is one."""
    cluster = world.cluster[0]
    slot = np.int64(cluster.free_head)
    cluster.free_head = world.requests[slot].next
    cluster.num_in_flight += 1
    return slot


@njit(cache=True)
def release_slot(world: World, slot: int) -> None:
    """Returns a slot to the free list."""
    cluster = world.cluster[0]
    request = world.requests[slot]
    request.phase = FREE
    request.next = cluster.free_head
    cluster.free_head = slot
    cluster.num_in_flight -= 1


@njit(cache=True)
def tokens_to_prefill(world: World, slot: int) -> int:
    """Tokens a waiting or prefilling request still needs computed before it can decode."""
    request = world.requests[slot]
    return request.prompt + request.generated - request.computed


@njit(cache=True)
def _insert_after(world: World, row: int, level: int, slot: int, before: int) -> None:
    """Links `slot` behind `before` (-1: at the head)."""
    request = world.requests[slot]
    if before < 0:
        after = world.queues[row, level, 0]
        world.queues[row, level, 0] = slot
    else:
        after = world.requests[before].next
        world.requests[before].next = slot
    request.prev = before
    request.next = after
    if after < 0:
        world.queues[row, level, 1] = slot
    else:
        world.requests[after].prev = slot


@njit(cache=True)
def _comes_before(world: World, a: int, b: int) -> bool:
    """Order of two requests of one level: by arrival, then by row of the workload."""
    first, second = world.requests[a], world.requests[b]
    if first.arrival_ps != second.arrival_ps:
        return first.arrival_ps < second.arrival_ps
    return first.index < second.index


@njit(cache=True)
def enqueue(world: World, row: int, slot: int, at_head: bool) -> None:
    """Puts a request into a queue: at the tail, at the head (a preempted one), or by arrival within its level.

    Under PRIORITY every queue is ordered by (priority, arrival), as vLLM's heap is; under FCFS an engine's queue is a
    plain deque. The pool is always ordered by (priority, arrival).
    """
    num_engines = len(world.engines)
    request = world.requests[slot]
    ordered = row == num_engines or world.cluster[0].order == PRIORITY
    level = np.int64(request.level) if ordered else np.int64(0)
    if not ordered:
        before = np.int64(-1) if at_head else np.int64(world.queues[row, level, 1])
    else:
        before = np.int64(world.queues[row, level, 1])
        while before >= 0 and _comes_before(world, slot, before):
            before = np.int64(world.requests[before].prev)
    _insert_after(world, row, level, slot, before)
    request.phase = WAITING
    if row == num_engines:
        request.engine = -1
        world.cluster[0].num_pooled += 1
        world.cluster[0].pooled_tokens += tokens_to_prefill(world, slot)
    else:
        request.engine = row
        world.engines[row].num_waiting += 1
        world.engines[row].steady = 0
        world.engines[row].steady = 0
        world.engines[row].pending_prefill_tokens += tokens_to_prefill(world, slot)


@njit(cache=True)
def unlink(world: World, row: int, slot: int) -> None:
    """Takes a request out of a queue. An engine's pending prefill tokens stay: the caller settles them."""
    num_engines = len(world.engines)
    request = world.requests[slot]
    ordered = row == num_engines or world.cluster[0].order == PRIORITY
    level = np.int64(request.level) if ordered else np.int64(0)
    if request.prev < 0:
        world.queues[row, level, 0] = request.next
    else:
        world.requests[request.prev].next = request.next
    if request.next < 0:
        world.queues[row, level, 1] = request.prev
    else:
        world.requests[request.next].prev = request.prev
    if row == num_engines:
        world.cluster[0].num_pooled -= 1
        world.cluster[0].pooled_tokens -= tokens_to_prefill(world, slot)
    else:
        world.engines[row].num_waiting -= 1


@njit(cache=True)
def head_of(world: World, row: int) -> int:
    """The slot that is served next, or -1."""
    if world.cluster[0].order == FCFS and row < len(world.engines):
        return np.int64(world.queues[row, 0, 0])
    for level in range(NUM_LEVELS):
        if world.queues[row, level, 0] >= 0:
            return np.int64(world.queues[row, level, 0])
    return np.int64(-1)


@njit(cache=True)
def computed_tokens(world: World, slot: int) -> int:
    """Tokens whose KV a running request holds, those scheduled in the iteration in flight included."""
    request = world.requests[slot]
    if request.phase == DECODE:
        return world.engines[request.engine].tick + request.offset
    return np.int64(request.computed)
