"""Request slots and the doubly linked queues they stand in. Row E of `World.queues` is the pool of unrouted ones.

An entry of `World.queues` is the head of a list, its tail, and its finger: the request that was last put between two
others. Those that follow stand close to it where many older requests come at once, in order, into a long queue: when an
engine stops and its requests go to others.

Who looks at all requests goes from one to the next that is tracked, as `World.tracked` says: hundreds of thousands may
stand in the lines of a gateway, and nothing happens to them there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.blocks import forget
from serving_gym.envs.simulator.kernel.compiled import compiled, int64
from serving_gym.envs.simulator.kernel.state import (
    DPA,
    EDF,
    FCFS,
    FREE,
    NEVER,
    NUM_LEVELS,
    PRIORITY,
    WAITING,
    World,
)


@compiled
def track(world: World, slot: int) -> None:
    """Lets those find a request who look at all of them."""
    world.tracked[slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)


@compiled
def untrack(world: World, slot: int) -> None:
    """Lets a request be passed over, or a slot that becomes free."""
    world.tracked[slot >> 6] &= ~(np.uint64(1) << np.uint64(slot & 63))


@compiled
def is_tracked(world: World, slot: int) -> bool:
    """Whether those find a request who look at all of them: it stands in no line of a gateway."""
    return (world.tracked[slot >> 6] >> np.uint64(slot & 63)) & np.uint64(1) != np.uint64(0)


@compiled
def next_tracked(tracked: NDArray[np.uint64], slot: int) -> int:
    """The first slot, from one on, whose request is tracked, or -1."""
    number = slot >> 6
    if number >= len(tracked):
        return int64(-1)
    word = tracked[number] >> np.uint64(slot & 63)
    while word == np.uint64(0):
        number += 1
        if number == len(tracked):
            return int64(-1)
        word, slot = tracked[number], number << 6
    while (word & np.uint64(1)) == np.uint64(0):
        word >>= np.uint64(1)
        slot += 1
    return slot


@compiled
def take_slot(world: World) -> int:
    """Removes a slot from the free list; the caller has made sure there is one."""
    cluster = world.cluster[0]
    slot = int64(cluster.free_head)
    cluster.free_head = world.requests[slot].next
    cluster.num_in_flight += 1
    track(world, slot)
    return slot


@compiled
def release_slot(world: World, slot: int) -> None:
    """Returns a slot to the free list."""
    cluster = world.cluster[0]
    request = world.requests[slot]
    forget(world, slot)
    request.phase = FREE
    request.next = cluster.free_head
    cluster.free_head = slot
    cluster.num_in_flight -= 1
    untrack(world, slot)


@compiled
def tokens_to_prefill(world: World, slot: int) -> int:
    """Tokens a waiting or prefilling request still needs computed before it can decode."""
    request = world.requests[slot]
    return int64(request.prompt) + request.generated - request.computed


@compiled
def _comes_before(world: World, row: int, a: int, b: int) -> bool:
    """Order of two requests of one list: by deadline where deadlines count, by arrival, by row of the workload."""
    first, second = world.requests[a], world.requests[b]
    order = world.cluster[0].order
    if row < len(world.engines) and (order in (EDF, DPA)) and first.deadline_ps != second.deadline_ps:
        return first.deadline_ps < second.deadline_ps
    if first.arrival_ps != second.arrival_ps:
        return first.arrival_ps < second.arrival_ps
    return first.index < second.index


@compiled
def _level_of(world: World, row: int, slot: int) -> int:
    """List of a queue a request stands in: its priority level where that counts, else one for all.

    Those that are swapped out stand in a second one.
    """
    order = world.cluster[0].order
    if row == len(world.engines) or order in (PRIORITY, DPA):
        return int64(world.requests[slot].level)
    return int64(world.requests[slot].loads)


@compiled
def _stand_behind(world: World, row: int, level: int, slot: int, before: int) -> None:
    """Links a request into a queue behind `before` (-1: at the head) and counts it there."""
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
    request.phase = WAITING
    if row == len(world.engines):
        request.engine = -1
        world.cluster[0].num_pooled += 1
        world.cluster[0].pooled_tokens += tokens_to_prefill(world, slot)
    else:
        engine = world.engines[row]
        request.engine = row
        request.offset = engine.steps + (engine.step_end_ps >= 0)
        engine.num_waiting += 1
        engine.pending_prefill_tokens += tokens_to_prefill(world, slot)
        engine.steady = 0  # it may join the batch when the iteration in flight ends


@compiled
def _in_front_of(world: World, row: int, level: int, slot: int) -> int:
    """The request of an ordered list that another stands behind, or -1: it stands at the head.

    Looked for from both ends of the stretch that it stands in: between head and finger, or between finger and tail.
    """
    behind = int64(world.queues[row, level, 1])
    if behind < 0 or not _comes_before(world, row, slot, behind):
        return behind
    before = int64(world.queues[row, level, 0])
    if _comes_before(world, row, slot, before):
        return int64(-1)
    finger = int64(world.queues[row, level, 2])
    if finger >= 0 and _comes_before(world, row, slot, finger):
        behind = finger
    elif finger >= 0:
        before = finger
    while True:
        after = int64(world.requests[before].next)
        if _comes_before(world, row, slot, after):
            break
        before = after
        behind = int64(world.requests[behind].prev)
        if not _comes_before(world, row, slot, behind):
            before = behind
            break
    world.queues[row, level, 2] = slot
    return before


@compiled
def enqueue(world: World, row: int, slot: int) -> None:
    """Puts a request into a queue: by arrival within its level, or at the tail.

    Under PRIORITY every queue is ordered by (priority, arrival), as vLLM's heap is, under EDF by deadline, under DPA by
    deadline within each priority; under FCFS an engine's queue is a plain deque. The pool is always ordered by
    (priority, arrival).
    """
    level = _level_of(world, row, slot)
    before = int64(world.queues[row, level, 1])
    if row == len(world.engines) or world.cluster[0].order != FCFS:
        before = _in_front_of(world, row, level, slot)
    _stand_behind(world, row, level, slot, before)


@compiled
def put_back(world: World, e: int, slot: int) -> None:
    """Puts a preempted request into its engine's queue: at the head, or where its priority and arrival say."""
    if world.cluster[0].order != FCFS:
        enqueue(world, e, slot)
    else:
        _stand_behind(world, e, int64(0), slot, int64(-1))


@compiled
def unlink(world: World, row: int, slot: int) -> None:
    """Takes a request out of a queue. An engine's pending prefill tokens stay: the caller settles them.

    One that was swapped out gives back its blocks on the host.
    """
    request = world.requests[slot]
    level = _level_of(world, row, slot)
    if world.queues[row, level, 2] == slot:
        world.queues[row, level, 2] = request.prev
    if request.prev < 0:
        world.queues[row, level, 0] = request.next
    else:
        world.requests[request.prev].next = request.next
    if request.next < 0:
        world.queues[row, level, 1] = request.prev
    else:
        world.requests[request.next].prev = request.prev
    if row == len(world.engines):
        world.cluster[0].num_pooled -= 1
        world.cluster[0].pooled_tokens -= tokens_to_prefill(world, slot)
    else:
        world.engines[row].num_waiting -= 1
        world.engines[row].host_used -= request.loads * request.loaded
        request.loads = 0


@compiled
def _first_due_after(world: World, row: int, level: int, deadline: int) -> int:
    """First request of a list, ordered by deadline, whose deadline is not before `deadline`, or -1."""
    slot = int64(world.queues[row, level, 0])
    while slot >= 0 and world.requests[slot].deadline_ps < deadline:
        slot = int64(world.requests[slot].next)
    return slot


@compiled
def _earliest_deadline(world: World, row: int) -> int:
    """The waiting request with the earliest deadline, or -1; the more urgent level in case of a tie."""
    best = int64(-1)
    for level in range(NUM_LEVELS):
        slot = int64(world.queues[row, level, 0])
        if slot >= 0 and (best < 0 or world.requests[slot].deadline_ps < world.requests[best].deadline_ps):
            best = slot
    return best


@compiled
def _by_deadline_and_priority(world: World, row: int, now: int) -> int:
    """DPA's next request: severely expired, urgent by tier, not urgent by tier, recently expired; -1 if none waits."""
    cluster = world.cluster[0]
    oldest = _earliest_deadline(world, row)
    if oldest < 0 or world.requests[oldest].deadline_ps < now - cluster.expired_ps:
        return oldest
    relaxed = int64(-1)
    for level in range(NUM_LEVELS):
        slot = _first_due_after(world, row, int64(level), now)
        if slot >= 0 and world.requests[slot].deadline_ps <= now + cluster.urgent_ps:
            return slot
        if relaxed < 0:
            relaxed = slot
    return relaxed if relaxed >= 0 else oldest


@compiled
def next_change(world: World, row: int, now: int) -> int:
    """When the mere passing of time may next bring another request of a queue to its head, or NEVER.

    Under DPA, that is when one becomes urgent, when it has just expired, and when it has severely.
    """
    cluster = world.cluster[0]
    soonest = NEVER
    if cluster.order != DPA:
        return soonest
    for level in range(NUM_LEVELS):
        slot = int64(world.queues[row, level, 0])
        while slot >= 0:
            deadline = int64(world.requests[slot].deadline_ps)
            for at in (deadline - cluster.urgent_ps, deadline + 1, deadline + cluster.expired_ps + 1):
                if at > now:
                    soonest = min(soonest, at)
            slot = int64(world.requests[slot].next)
    return soonest


@compiled
def head_of(world: World, row: int, now: int) -> int:
    """The slot that is served next, or -1."""
    if row < len(world.engines):
        order = world.cluster[0].order
        if order in (FCFS, EDF):
            return int64(world.queues[row, 0, 0])
        if order == DPA:
            return _by_deadline_and_priority(world, row, now)
    for level in range(NUM_LEVELS):
        if world.queues[row, level, 0] >= 0:
            return int64(world.queues[row, level, 0])
    return int64(-1)


@compiled
def swapped_head(world: World, e: int) -> int:
    """The first of an engine's requests that are swapped out, or -1; under FCFS."""
    return int64(world.queues[e, 1, 0])


@compiled
def known_head_of(world: World, e: int) -> int:
    """As `head_of`, of those who came before the engine's last iteration began; orders but DPA."""
    for level in range(NUM_LEVELS):
        slot = int64(world.queues[e, level, 0])
        while slot >= 0:
            if world.requests[slot].offset <= world.engines[e].steps:
                return slot
            slot = int64(world.requests[slot].next)
    return int64(-1)


@compiled
def count_known(world: World, e: int) -> int:
    """Waiting requests who came before the engine's last iteration began."""
    known = int64(0)
    for level in range(NUM_LEVELS):
        slot = int64(world.queues[e, level, 0])
        while slot >= 0:
            known += world.requests[slot].offset <= world.engines[e].steps
            slot = int64(world.requests[slot].next)
    return known
