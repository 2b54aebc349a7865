"""Queues whose order counts, against lists that are sorted anew after every change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_gym.envs.simulator.kernel import gateway, queues, state
from serving_gym.envs.simulator.kernel.compiled import entry
from serving_gym.envs.simulator.kernel.gateway import Gate, new_gate
from serving_gym.envs.simulator.kernel.state import DPA, EDF, PRIORITY, World
from tests.simulator.oracle import Kind, Settings
from tests.simulator.twins import Case, Kernel, Row, Slot

SLOTS = 24
ENGINE, POOL = 0, 1  # rows of a world with one engine
NUM_LEVELS = state.NUM_LEVELS
# A request that stands in the queue leaves it, one that does not joins it: at once or, if older ones came, in between.
turns = st.lists(st.integers(0, SLOTS - 1), max_size=80)


@entry
def join(world: World, row: int, slot: int) -> None:
    """A door for Python."""
    queues.enqueue(world, row, slot)


@entry
def leave(world: World, row: int, slot: int) -> None:
    """A door for Python."""
    queues.unlink(world, row, slot)


def world_of(order: int, arrivals: list[int], deadlines: list[int], levels: list[int]) -> World:
    """A world whose requests stand nowhere yet."""
    world = state.new_world(1, 1, 16, num_classes=1, request_slots=SLOTS)
    world.cluster["order"] = order
    requests = world.requests
    requests["index"] = np.arange(SLOTS)
    requests["arrival_ps"], requests["deadline_ps"], requests["level"] = arrivals, deadlines, levels
    return world


def listed(world: World, row: int, level: int, way: str) -> list[int]:
    """Slots of a list, from its head on by `next` or from its tail on by `prev`."""
    found = []
    slot = int(world.queues[row, level, 0 if way == "next" else 1])
    while slot >= 0:
        found.append(slot)
        slot = int(world.requests[slot][way])
    return found


def sorted_anew(world: World, row: int, level: int, standing: set[int]) -> list[int]:
    """What stands in a list, by the rule of `enqueue`'s text."""
    order, requests = int(world.cluster["order"][0]), world.requests
    by_level = row == POOL or order in (PRIORITY, DPA)
    by_deadline = row == ENGINE and order in (EDF, DPA)
    there = [slot for slot in standing if (int(requests["level"][slot]) if by_level else 0) == level]
    return sorted(
        there,
        key=lambda slot: (
            int(requests["deadline_ps"][slot]) if by_deadline else 0,
            int(requests["arrival_ps"][slot]),
            int(requests["index"][slot]),
        ),
    )


few = st.lists(st.integers(0, 6), min_size=SLOTS, max_size=SLOTS)
two = st.lists(st.integers(0, 1), min_size=SLOTS, max_size=SLOTS)


@pytest.mark.parametrize("row", [ENGINE, POOL])
@pytest.mark.parametrize("order", [PRIORITY, EDF, DPA])
@settings(max_examples=60)
@given(few, few, two, turns)
def test_a_request_stands_where_sorting_puts_it(
    order: int, row: int, arrivals: list[int], deadlines: list[int], levels: list[int], turns: list[int]
) -> None:
    world = world_of(order, arrivals, deadlines, levels)
    standing: set[int] = set()
    for slot in turns:
        (leave if slot in standing else join)(world, np.int64(row), np.int64(slot))
        standing ^= {slot}
        for level in range(NUM_LEVELS):
            expected = sorted_anew(world, row, level, standing)
            assert listed(world, row, level, "next") == expected
            assert listed(world, row, level, "prev") == expected[::-1]


def test_what_a_stopped_engine_leaves_is_merged_into_the_queue_of_the_other() -> None:
    """Requests go to the two engines in turn; the second one stops, and all wait at the first one by arrival."""
    kind = Kind([1000] * 3, [1000] * 3, 1, 1, 1, 4, max_num_seqs=1, max_batched_tokens=8)
    rows = tuple(Row(number, 3, 20, 20, 0) for number in range(40))
    kernel = Kernel(Case((kind,), (Slot(0, 64),) * 2, rows, Settings(order="priority")))
    kernel.advance(50)
    waiting = kernel.queue(0) + kernel.queue(1)
    assert min(len(kernel.queue(0)), len(kernel.queue(1))) > 15
    kernel.pool_waiting(1)
    kernel.world.engines["status"][1] = state.DRAINING
    kernel.dispatch()
    assert kernel.queue(1) == []
    assert kernel.queue(0) == sorted(waiting)


# -- on their way to another region ------------------------------------------------------------------------------------

DELAYS_PS = ((0, 7, 3), (7, 0, 5), (2, 5, 0))  # from each endpoint to each


@entry
def set_out(world: World, gate: Gate, slot: int, number: int) -> None:
    """A door for Python."""
    gateway._set_out(world, gate, slot, number, number)


def on_their_way(world: World, gate: Gate, way: str) -> list[int]:
    """Slots of those on their way, the next to arrive first by `next`, last by `prev`."""
    found = []
    slot = int(gate.gate["first_on_way" if way == "next" else "last_on_way"][0])
    while slot >= 0:
        found.append(slot)
        slot = int(world.requests[slot][way])
    return found


journeys = st.tuples(st.integers(0, 2), st.integers(1, 2), st.integers(0, 3))


@settings(max_examples=100)
@given(st.lists(journeys, max_size=SLOTS))
def test_requests_on_their_way_stand_as_they_arrive(journeys: list[tuple[int, int, int]]) -> None:
    """From an endpoint to another one, so much later than the one before; of equals the first leads."""
    world = state.new_world(3, 3, 16, num_classes=1, request_slots=SLOTS)
    kinds = np.zeros(3, np.int32), 3, np.zeros((3, 3), np.int32)
    gate = new_gate(*kinds, np.array(DELAYS_PS), np.ones(1, np.int8), 1, 1, 1, 0.7, holds=False)
    arrives_ps: list[int] = []
    for slot, (origin, further, later_ps) in enumerate(journeys):
        number = (origin + further) % 3
        world.cluster["now_ps"] += later_ps
        world.requests["endpoint"][slot] = origin
        set_out(world, gate, np.int64(slot), np.int64(number))
        arrives_ps.append(int(world.cluster["now_ps"][0]) + DELAYS_PS[origin][number])
        expected = sorted(range(slot + 1), key=arrives_ps.__getitem__)
        assert on_their_way(world, gate, "next") == expected
        assert on_their_way(world, gate, "prev") == expected[::-1]
