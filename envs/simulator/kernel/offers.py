"""Offering requests to the router, and doing what it decides."""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.accounting import book_turned_away
from serving_gym.envs.simulator.kernel.compiled import compiled, inlined, int64
from serving_gym.envs.simulator.kernel.desk import (
    DEFER,
    DEFERRED_AGAIN,
    FAR,
    HELD_AGAIN,
    HOLD,
    NO_ACTION,
    REJECT,
    Desk,
)
from serving_gym.envs.simulator.kernel.prefix_index import note_sent
from serving_gym.envs.simulator.kernel.queues import enqueue, tokens_to_prefill, unlink
from serving_gym.envs.simulator.kernel.routers import may_take
from serving_gym.envs.simulator.kernel.sessions import came_at, row_of
from serving_gym.envs.simulator.kernel.state import NEVER, NUM_LEVELS, REACHED, Tables, Traffic, World
from serving_gym.envs.simulator.kernel.world import send


@compiled
def _slot_of(world: World, traffic: Traffic, k: int) -> int:
    """Where the k-th request, which arrives now, stands in the pool, or -1: it was refused."""
    row = row_of(world, k)
    slot = int64(world.queues[len(world.engines), traffic.level[row], 1])
    index = world.cluster[0].first_index + row
    while slot >= 0 and world.requests[slot].arrival_ps == came_at(world, traffic, k):
        if world.requests[slot].index == index:
            return slot
        slot = int64(world.requests[slot].prev)
    return int64(-1)


@compiled
def _first_pooled(world: World, level: int) -> int:
    """The pool's first request of a level or a later one, or -1."""
    while level < NUM_LEVELS:
        slot = int64(world.queues[len(world.engines), level, 0])
        if slot >= 0:
            return slot
        level += 1
    return int64(-1)


@compiled
def _after(world: World, slot: int) -> int:
    """The pool's next request, or -1."""
    following = int64(world.requests[slot].next)
    return following if following >= 0 else _first_pooled(world, int64(world.requests[slot].level) + 1)


@compiled
def offer_arrivals(world: World, traffic: Traffic, desk: Desk) -> None:
    """Requests have arrived: they are the next to be offered."""
    now = world.cluster[0].now_ps
    first = last = int64(world.cluster[0].next_arrival)
    while first > 0 and came_at(world, traffic, first - 1) == now:
        first -= 1
    desk.desk[0].next_row, desk.desk[0].last_row = first, last


@compiled
def begin_retry(world: World, desk: Desk) -> None:
    """Offers what is held once more."""
    board = desk.desk[0]
    board.retry_ps = NEVER
    for endpoint in range(len(desk.held_again)):
        for c in range(desk.held_again.shape[1]):
            desk.held_again[endpoint, c] = 0
    board.following = _first_pooled(world, int64(0))


@inlined
def next_offer(world: World, traffic: Traffic, desk: Desk) -> bool:
    """Puts the next request of this instant on the desk. Returns whether there is one."""
    board, now = desk.desk[0], world.cluster[0].now_ps
    while board.next_row < board.last_row:
        slot = _slot_of(world, traffic, board.next_row)
        board.next_row += 1
        if slot >= 0:
            world.requests[slot].predicted = desk.predicted[row_of(world, board.next_row - 1)]
            board.slot, board.held_before = slot, 0
            return True
    while board.following >= 0:
        slot = int64(board.following)
        board.following = _after(world, slot)
        request = world.requests[slot]
        again = desk.held_again[request.endpoint, request.class_id]
        left_alone = (again & HELD_AGAIN) != 0 or (again != 0 and request.level == board.deferred_level)
        if request.arrival_ps < now and not left_alone:
            board.slot, board.held_before = slot, 1
            return True
    return False


@inlined
def count_held(world: World, traffic: Traffic, desk: Desk) -> None:
    """Counts what is in the router's queue: the pool without what is on the desk and what has not been offered yet."""
    board, cluster = desk.desk[0], world.cluster[0]
    board.held, board.held_tokens = cluster.num_pooled, cluster.pooled_tokens
    if board.slot >= 0:
        board.held -= 1
        board.held_tokens -= tokens_to_prefill(world, int64(board.slot))
    for row in range(board.next_row, board.last_row):
        slot = _slot_of(world, traffic, row)
        if slot >= 0:
            board.held -= 1
            board.held_tokens -= tokens_to_prefill(world, slot)


@inlined
def count_held_of_classes(world: World, traffic: Traffic, desk: Desk) -> None:
    """As `count_held`, class by class."""
    board, admitted = desk.desk[0], desk.admitted
    for c in range(len(admitted)):
        admitted[c].held = 0
    slot = _first_pooled(world, int64(0))
    while slot >= 0:
        admitted[world.requests[slot].class_id].held += slot != board.slot
        slot = _after(world, slot)
    for row in range(board.next_row, board.last_row):
        slot = _slot_of(world, traffic, row)
        if slot >= 0:
            admitted[world.requests[slot].class_id].held -= 1


@inlined
def may_go(world: World, tables: Tables, desk: Desk, slot: int, e: int) -> bool:
    """Whether a place serves a request's model, is in service, and could hold it."""
    request = world.requests[slot]
    if desk.serves[request.endpoint, e] == 0:
        return False
    return may_take(world, tables, e, int64(request.prompt) + request.max_output)


@compiled
def _hold(world: World, traffic: Traffic, tables: Tables, desk: Desk, again: int) -> None:
    """Keeps what is offered in the queue, or turns it away where there is no room. `again`: see `Desk.held_again`."""
    board, slot, now = desk.desk[0], int64(desk.desk[0].slot), world.cluster[0].now_ps
    count_held(world, traffic, desk)
    if board.held_before == 0 and board.held >= board.capacity:
        unlink(world, int64(len(world.engines)), slot)
        book_turned_away(world, tables, slot, now)
    elif board.held_before:
        desk.held_again[world.requests[slot].endpoint, world.requests[slot].class_id] |= again
    if world.cluster[0].num_pooled > 0 and board.retry_ps == NEVER:
        board.retry_ps = now + board.retry_interval_ps


@compiled
def _defer(world: World, traffic: Traffic, tables: Tables, desk: Desk) -> None:
    """Moves what is offered to the last priority level, and keeps it as `_hold` does.

    Those of its class and endpoint that stand there already are left alone in this retry: it must not be offered twice.
    """
    slot, pool = int64(desk.desk[0].slot), int64(len(world.engines))
    unlink(world, pool, slot)
    world.requests[slot].level = desk.desk[0].deferred_level
    enqueue(world, pool, slot)
    _hold(world, traffic, tables, desk, int64(DEFERRED_AGAIN))


@compiled
def _reject(world: World, tables: Tables, desk: Desk) -> None:
    """Turns away what is offered."""
    slot = int64(desk.desk[0].slot)
    unlink(world, int64(len(world.engines)), slot)
    book_turned_away(world, tables, slot, world.cluster[0].now_ps)


@inlined
def may_defer(world: World, desk: Desk) -> bool:
    """Whether what is offered can be deferred: where admission is a decision, once."""
    board = desk.desk[0]
    return board.deferred_level >= 0 and world.requests[board.slot].level != board.deferred_level


@inlined
def settle(world: World, traffic: Traffic, tables: Tables, desk: Desk, action: int) -> int:
    """Does what was decided about the request on the desk. Returns REACHED, or FAR: it goes to another region.

    An action that is none of these, or a place that cannot take the request, is counted and holds it.
    """
    board = desk.desk[0]
    slot = int64(board.slot)
    if slot < 0 or action == NO_ACTION:
        return int64(REACHED)
    if 0 <= action < len(world.engines) and may_go(world, tables, desk, slot, action):
        desk.admitted[world.requests[slot].class_id].sent += 1
        note_sent(world, tables, desk, slot, action)
        if desk.network_s[world.requests[slot].endpoint, action] > 0:
            board.sends_far = 1
            return int64(FAR)
        send(world, tables, slot, action)
    elif action == REJECT and board.deferred_level >= 0:
        _reject(world, tables, desk)
    elif action == DEFER and may_defer(world, desk):
        _defer(world, traffic, tables, desk)
    else:
        board.refused_actions += int64(action != HOLD)
        _hold(world, traffic, tables, desk, int64(HELD_AGAIN))
    board.slot = -1
    return int64(REACHED)
