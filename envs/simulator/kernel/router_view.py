"""What a router knows of each place from the requests that it sent there and the tokens that came back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.simulator.kernel.blocks import find_hit
from envs.simulator.kernel.compiled import compiled, entry, int64
from envs.simulator.kernel.desk import AHEAD_STEP, NUM_GLANCES, Desk
from envs.simulator.kernel.engine import decoding_progress
from envs.simulator.kernel.offers import may_go
from envs.simulator.kernel.queues import enqueue, unlink
from envs.simulator.kernel.state import FREE, PS_PER_S, Tables, World

__all__ = ["cached_tokens", "in_flight_rows", "look_at_places", "reprioritise"]


@compiled
def expected_output(predicted: int, generated: int) -> int:
    """Output length that is expected of a request which has come so far.

    A request that outlives its prediction gets a fifth of its present length more, again and again (PreServe, section
    4.3.1).
    """
    expected = max(predicted, int64(1))
    while expected <= generated:
        expected += max(expected // 5, int64(1))
    return expected


@compiled
def _count_in_flight(world: World, desk: Desk, slot: int) -> None:
    """Adds a request that has been sent to what is known of its place."""
    request = world.requests[slot]
    place = desk.places[request.engine]
    place.in_flight += 1
    if request.first_token_ps < 0:
        place.unanswered += 1
        place.queued_tokens += request.prompt
        place.remaining_tokens += request.predicted
        return
    generated = decoding_progress(world, slot)
    context = int64(request.prompt) + generated
    remaining = expected_output(int64(request.predicted), generated) - generated
    place.context_tokens += context
    place.remaining_tokens += remaining
    gone = (remaining + AHEAD_STEP - 1) // AHEAD_STEP  # the first glance that no longer sees it
    if gone <= NUM_GLANCES:
        desk.ends[request.engine, gone - 1, 0] += 1
        desk.ends[request.engine, gone - 1, 1] += context


@compiled
def _peak(desk: Desk, e: int, prompt: int, predicted: int) -> int:
    """Most tokens of context on a place at a glance ahead, now and every AHEAD_STEP iterations, if a request came."""
    place = desk.places[e]
    count = place.in_flight - place.unanswered
    context, peak = int64(place.context_tokens), int64(0)
    for glance in range(NUM_GLANCES):
        ahead = glance * AHEAD_STEP
        own = prompt + ahead if ahead < predicted else int64(0)
        peak = max(peak, context + count * ahead + own)
        count -= desk.ends[e, glance, 0]
        context -= desk.ends[e, glance, 1]
    return peak


@compiled
def look_at_places(world: World, tables: Tables, desk: Desk) -> None:
    """Fills `Desk.places`. Engines have caught up."""
    slot = int64(desk.desk[0].slot)
    for e in range(len(world.engines)):
        place = desk.places[e]
        place.in_flight = place.unanswered = place.queued_tokens = 0
        place.context_tokens = place.remaining_tokens = 0
        for glance in range(NUM_GLANCES):
            desk.ends[e, glance, 0] = desk.ends[e, glance, 1] = 0
    for number in range(len(world.requests)):
        if world.requests[number].phase != FREE and world.requests[number].engine >= 0:
            _count_in_flight(world, desk, int64(number))
    for e in range(len(world.engines)):
        if slot < 0:
            desk.places[e].can_take = desk.places[e].peak_tokens = 0
            continue
        request = world.requests[slot]
        desk.places[e].can_take = may_go(world, tables, desk, slot, int64(e))
        desk.places[e].peak_tokens = _peak(desk, int64(e), int64(request.prompt), int64(request.predicted))


@entry
def in_flight_rows(world: World, levels: NDArray[np.int32], rows: NDArray[np.void]) -> int:
    """Fills (M,) IN_FLIGHT_DTYPE with the requests that engines have; returns how many.

    Args:
        world: The world.
        levels: (levels,) priority of each.
        rows: What is to be filled, long enough.
    """
    count = int64(0)
    for slot in range(len(world.requests)):
        request = world.requests[slot]
        if request.phase == FREE or request.engine < 0:
            continue
        row = rows[count]
        row.arrival_s = request.arrival_ps / PS_PER_S
        row.first_token_s = -1.0 if request.first_token_ps < 0 else request.first_token_ps / PS_PER_S
        row.index = request.index
        row.place = request.engine
        row.input_tokens = request.prompt
        row.predicted_tokens = request.predicted
        row.generated_tokens = decoding_progress(world, int64(slot))
        row.max_output_tokens = request.max_output
        row.class_id = request.class_id
        row.priority = levels[request.level]
        count += 1
    return count


@entry
def cached_tokens(world: World, tables: Tables, slot: int, tokens: NDArray[np.int64]) -> None:
    """Tokens of a pooled request's prompt that each engine's prefix cache holds, (E,)."""
    for e in range(len(world.engines)):
        blocks = find_hit(world, tables, int64(e), slot)[0]
        tokens[e] = blocks * tables.kinds[world.engines[e].kind].block_size


@entry
def reprioritise(world: World, slot: int, level: int) -> None:
    """Gives a pooled request another priority level."""
    unlink(world, int64(len(world.engines)), slot)
    world.requests[slot].level = level
    enqueue(world, int64(len(world.engines)), slot)
