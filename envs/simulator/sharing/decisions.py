"""From one decision to the next, for many worlds in one call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.compiled import entry
from serving_gym.envs.simulator.kernel.handles import handle_width, reader_of
from serving_gym.envs.simulator.sharing.arrays import (
    ITERATION,
    PARAMETERS_DTYPE,
    PLACEMENT,
    SharingTables,
    SharingWorld,
    new_world,
)
from serving_gym.envs.simulator.sharing.commands import act
from serving_gym.envs.simulator.sharing.engine import advance
from serving_gym.envs.simulator.sharing.features import write_observation
from serving_gym.envs.simulator.sharing.manager import new_pool
from serving_gym.envs.simulator.sharing.requests import latency_cost

NO_ACTION = -1  # a command has been given already, or there is none to give

_row, _times = np.zeros(1, np.int64), np.zeros((1, 1, 1), np.int64)
_EXAMPLES = (
    new_world(np.zeros(1, np.int32), np.zeros(1, np.int64), 1, 1, 1, 1, 0),
    SharingTables(
        *(_row,) * 11,
        _times,
        _times,
        _times[0],
        _times,
        _times,
        _times[0],
        np.zeros((1, 2)),
        _times[0],
        _times,
        np.zeros(1),
        np.zeros(1, PARAMETERS_DTYPE),
    ),
)
HANDLE_WIDTHS = tuple(handle_width(example) for example in _EXAMPLES)
_read_world = reader_of(SharingWorld, _EXAMPLES[0])
_read_tables = reader_of(SharingTables, _EXAMPLES[1])


@entry
def decide_many(
    worlds: NDArray[np.int64],
    tables: NDArray[np.int64],
    scales: NDArray[np.float64],
    actions: NDArray[np.int64],
    until_ps: NDArray[np.int64],
    going: NDArray[np.bool_],
    reasons: NDArray[np.int64],
    events: NDArray[np.int64],
    costs: NDArray[np.float64],
    places: NDArray[np.float32],
    request: NDArray[np.float32],
    cluster: NDArray[np.float32],
    masks: NDArray[np.bool_],
) -> None:
    """Carries out actions and moves every world that goes on to its next event.

    Args:
        worlds: (W, HANDLE_WIDTHS[0]), handles.
        tables: (W, HANDLE_WIDTHS[1]), handles.
        scales: As `SharingScales`.
        actions: (W,), a slot, S + a node, S + N to hold, or NO_ACTION.
        until_ps: (W,), when episodes are cut off.
        going: (W,), which go on.
        reasons: (W,), why an action was refused, an index of `commands.REASONS`; written, as what follows.
        events: (W,), what each has come to.
        costs: (W,), running latency cost.
        places: (W, S + N, len(PLACE_FEATURES)), zero, as the next three.
        request: (W, len(REQUEST_FEATURES)).
        cluster: (W, len(CLUSTER_FEATURES) + K).
        masks: (W, S + N + 1).
    """
    for w in range(len(actions)):
        if not going[w]:
            continue
        world, table = _read_world(worlds, w), _read_tables(tables, w)
        clock = world.clock[0]
        if actions[w] != NO_ACTION:
            if clock.event == PLACEMENT or clock.event == ITERATION:
                reasons[w] = act(world, table, actions[w])
            clock.num_finished = 0
            clock.decisions += 1
        events[w] = advance(world, table, until_ps[w])
        costs[w] = latency_cost(world)
        write_observation(world, table, scales, places[w], request[w], cluster[w], masks[w])


@entry
def look(
    world: SharingWorld,
    tables: SharingTables,
    scales: NDArray[np.float64],
    places: NDArray[np.float32],
    request: NDArray[np.float32],
    cluster: NDArray[np.float32],
    mask: NDArray[np.bool_],
) -> None:
    """Writes the observation of a world that stands still at a decision: arguments as of `write_observation`."""
    write_observation(world, tables, scales, places, request, cluster, mask)


@entry
def pool_for(world: SharingWorld, tables: SharingTables, n: int, r: int) -> int:
    """KV pool that the environment's manager gives a new instance for a request, bytes; -1: the node has no room.

    Args:
        world: The world.
        tables: What things take.
        n: The node.
        r: The request.
    """
    return new_pool(world, tables, n, tables.model[r], r)
