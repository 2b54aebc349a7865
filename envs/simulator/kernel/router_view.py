"""What a router knows of each place from the requests that it sent there and the tokens that came back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.compiled import compiled, entry, inlined, int64
from serving_gym.envs.simulator.kernel.desk import AHEAD_STEP, NUM_GLANCES, Desk
from serving_gym.envs.simulator.kernel.engine import decoding_progress
from serving_gym.envs.simulator.kernel.offers import may_go
from serving_gym.envs.simulator.kernel.prefix_index import expected_hit
from serving_gym.envs.simulator.kernel.queues import enqueue, next_tracked, unlink
from serving_gym.envs.simulator.kernel.returns import has_first_token
from serving_gym.envs.simulator.kernel.state import (
    DECODE,
    NEVER,
    NUM_LEVELS,
    PS_PER_S,
    TRANSIT,
    Tables,
    World,
)

__all__ = ["cached_tokens", "in_flight_rows", "look_at_places", "reprioritise", "tracked_slots"]


@inlined
def expected_output(predicted: int, generated: int) -> int:
    """Output length that is expected of a request which has come so far.

    A request that outlives its prediction gets a fifth of its present length more, again and again (PreServe, section
    4.3.1).
    """
    expected = max(predicted, int64(1))
    while expected <= generated:
        expected += max(expected // 5, int64(1))
    return expected


@inlined
def _tally_request(world: World, desk: Desk, e: int, slot: int, now: int) -> None:
    """Adds a request to the tally of its place, which has ended `now` iterations."""
    request, tally = world.requests[slot], desk.tallies[e]
    if not has_first_token(world, slot):
        tally.unanswered += 1
        tally.queued_tokens += request.prompt
        tally.queued_remaining += request.predicted
        return
    generated = decoding_progress(world, slot)
    end = now + expected_output(int64(request.predicted), generated) - generated
    offset = request.prompt + generated - now
    if tally.answered < desk.flights.shape[1]:
        desk.flights[e, tally.answered, 0] = end
        desk.flights[e, tally.answered, 1] = offset
    tally.answered += 1
    tally.ends += end
    tally.offsets += offset
    tally.first_end = min(tally.first_end, end)
    if request.phase != DECODE:
        tally.lasts = 0


@compiled
def _tally(world: World, desk: Desk, e: int, now: int) -> None:
    """Counts the requests that a place has, anew."""
    engine, tally = world.engines[e], desk.tallies[e]
    tally.queued_tokens = tally.queued_remaining = tally.ends = tally.offsets = 0
    tally.unanswered = tally.answered = 0
    tally.first_end = NEVER
    tally.changes = engine.changes
    tally.lasts = engine.walked == 0
    if engine.num_kept > 0 or engine.first_transit >= 0:  # some are in no list
        tally.lasts = 0
        slot = next_tracked(world.tracked, int64(0))
        while slot >= 0:
            if world.requests[slot].engine == e:
                _tally_request(world, desk, e, slot, now)
            slot = next_tracked(world.tracked, slot + 1)
        return
    for i in range(engine.num_running):
        _tally_request(world, desk, e, int64(world.running[e, i]), now)
    slot = int64(engine.first_returning)
    while slot >= 0:
        _tally_request(world, desk, e, slot, now)
        slot = int64(world.requests[slot].next)
    for level in range(NUM_LEVELS):
        slot = int64(world.queues[e, level, 0])
        while slot >= 0:
            _tally_request(world, desk, e, slot, now)
            slot = int64(world.requests[slot].next)


@inlined
def _look_ahead(desk: Desk, e: int, now: int) -> None:
    """Notes which requests of a place will have ended at each glance ahead."""
    tally, ends = desk.tallies[e], desk.ends
    for glance in range(NUM_GLANCES):
        ends[glance, 0] = ends[glance, 1] = 0
    for i in range(min(int64(tally.answered), int64(desk.flights.shape[1]))):
        remaining = desk.flights[e, i, 0] - now
        if remaining <= AHEAD_STEP * NUM_GLANCES:
            seen_last = (remaining - 1) // AHEAD_STEP
            ends[seen_last, 0] += 1
            ends[seen_last, 1] += desk.flights[e, i, 1] + now


@inlined
def _peak(desk: Desk, e: int, prompt: int, predicted: int) -> int:
    """Most tokens of context on a place at a glance ahead, now and every AHEAD_STEP iterations, if a request came."""
    count, context = int64(desk.tallies[e].answered), int64(desk.places[e].context_tokens)
    peak = int64(0)
    for glance in range(NUM_GLANCES):
        ahead = glance * AHEAD_STEP
        own = prompt + ahead if ahead < predicted else int64(0)
        peak = max(peak, context + count * ahead + own)
        count -= desk.ends[glance, 0]
        context -= desk.ends[glance, 1]
    return peak


@compiled
def _add_those_on_their_way(world: World, desk: Desk) -> None:
    """Counts requests that have not yet come to the place in another region to which they were sent."""
    slot = next_tracked(world.tracked, int64(0))
    while slot >= 0:
        request = world.requests[slot]
        if request.phase == TRANSIT and request.engine < 0:
            place = desk.places[request.target - 1]
            place.in_flight += 1
            place.unanswered += 1
            place.queued_tokens += request.prompt
            place.remaining_tokens += request.predicted
        slot = next_tracked(world.tracked, slot + 1)


@inlined
def look_at_places(world: World, tables: Tables, desk: Desk) -> None:
    """Fills `Desk.places`. Engines have caught up."""
    slot = int64(desk.desk[0].slot)
    for e in range(len(world.engines)):
        engine, tally, place = world.engines[e], desk.tallies[e], desk.places[e]
        now = int64(engine.tick) - (engine.step_end_ps >= 0)  # iterations that have ended
        if tally.changes != engine.changes or tally.lasts == 0 or tally.first_end <= now:
            _tally(world, desk, int64(e), now)
        place.in_flight = tally.answered + tally.unanswered
        place.unanswered = tally.unanswered
        place.queued_tokens = tally.queued_tokens
        place.context_tokens = tally.offsets + now * tally.answered
        place.remaining_tokens = tally.queued_remaining + tally.ends - now * tally.answered
        if slot >= 0:
            request = world.requests[slot]
            _look_ahead(desk, int64(e), now)
            place.can_take = may_go(world, tables, desk, slot, int64(e))
            place.peak_tokens = _peak(desk, int64(e), int64(request.prompt), int64(request.predicted))
        else:
            place.can_take = place.peak_tokens = 0
    if desk.desk[0].sends_far:
        _add_those_on_their_way(world, desk)


@entry
def tracked_slots(world: World, slots: NDArray[np.int32]) -> int:
    """Fills (M,) with the slots of all requests but those in a gateway's line, in order; returns how many."""
    count, slot = int64(0), next_tracked(world.tracked, int64(0))
    while slot >= 0:
        slots[count] = slot
        count += 1
        slot = next_tracked(world.tracked, slot + 1)
    return count


@entry
def in_flight_rows(world: World, levels: NDArray[np.int32], rows: NDArray[np.void]) -> int:
    """Fills (M,) IN_FLIGHT_DTYPE with the requests that engines have or will get; returns how many.

    Args:
        world: The world.
        levels: (levels,) priority of each.
        rows: What is to be filled, long enough.
    """
    count = int64(0)
    following = next_tracked(world.tracked, int64(0))
    while following >= 0:
        slot, request = following, world.requests[following]
        following = next_tracked(world.tracked, following + 1)
        on_its_way = request.phase == TRANSIT and request.engine < 0
        if request.engine < 0 and not on_its_way:
            continue
        row = rows[count]
        row.arrival_s = request.arrival_ps / PS_PER_S
        row.first_token_s = request.first_token_ps / PS_PER_S if has_first_token(world, slot) else -1.0
        row.index = request.index
        row.place = request.target - 1 if on_its_way else request.engine
        row.input_tokens = request.prompt
        row.predicted_tokens = request.predicted
        row.generated_tokens = decoding_progress(world, slot)
        row.max_output_tokens = request.max_output
        row.class_id = request.class_id
        row.priority = levels[request.level]
        count += 1
    return count


@entry
def cached_tokens(world: World, tables: Tables, desk: Desk, slot: int, tokens: NDArray[np.int64]) -> None:
    """Tokens of a pooled request's prompt that the router expects each engine's prefix cache to hold, (E,)."""
    for e in range(len(world.engines)):
        blocks = expected_hit(world, tables, desk, int64(e), slot)
        tokens[e] = blocks * tables.kinds[world.engines[e].kind].block_size


@entry
def reprioritise(world: World, slot: int, level: int) -> None:
    """Gives a pooled request another priority level."""
    unlink(world, int64(len(world.engines)), slot)
    world.requests[slot].level = level
    enqueue(world, int64(len(world.engines)), slot)
