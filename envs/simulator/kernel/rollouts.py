"""Many decisions of many worlds in one call, taken by a score of places inside the kernel."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.compiled import compiled, entry, int64, spliced
from serving_gym.envs.simulator.kernel.decisions import (
    MISSES,
    close_interval,
    outcome_width,
    read_desk,
    read_tables,
    read_traffic,
    read_world,
    run_to_decision,
)
from serving_gym.envs.simulator.kernel.desk import DECIDE, DEFER, ENDED, HOLD, REJECT, Desk
from serving_gym.envs.simulator.kernel.features import (
    ADMISSION_CLASS_FEATURES,
    ADMISSION_FEATURES,
    CLUSTER_FEATURES,
    PLACE_FEATURES,
    REQUEST_FEATURES,
    write_admission,
    write_observation,
)
from serving_gym.envs.simulator.kernel.handles import copy_bytes
from serving_gym.envs.simulator.kernel.offers import may_defer, settle
from serving_gym.envs.simulator.kernel.place_scores import (
    VERDICTS,
    PlaceScore,
    ScoreSpace,
    best_place,
    knows_verdicts,
    score_space,
)
from serving_gym.envs.simulator.kernel.queues import next_tracked
from serving_gym.envs.simulator.kernel.returns import has_first_token
from serving_gym.envs.simulator.kernel.router_view import look_at_places
from serving_gym.envs.simulator.kernel.state import REACHED, Tables, Traffic, World


class Room(NamedTuple):
    """Where one world after another is observed and decided in."""

    scores: ScoreSpace
    places: NDArray[
        np.float32
    ]  # (at least E, features), as those that follow those of an observation; with the rows
    # and columns of `VERDICTS` where the score knows them
    request: NDArray[np.float32]  # (features,)
    admission: NDArray[np.float32]  # (features,), none where it does not
    cluster: NDArray[np.float32]  # (features,)
    mask: NDArray[np.bool_]  # (at least E + 1,)
    outcome: NDArray[np.float64]  # (outcome_width(C),), what a decision brought


def room_for(score: PlaceScore, num_rows: int, num_classes: int) -> Room:
    """Room for worlds of at most so many places, with so many classes."""
    verdicts = len(VERDICTS) if knows_verdicts(score) else 0
    shown = len(ADMISSION_FEATURES) + len(ADMISSION_CLASS_FEATURES) * num_classes
    return Room(
        score_space(score, num_rows + verdicts),
        np.zeros((num_rows + verdicts, len(PLACE_FEATURES) + verdicts), np.float32),
        np.zeros(len(REQUEST_FEATURES) + num_classes, np.float32),
        np.zeros(shown if verdicts else 0, np.float32),
        np.zeros(len(CLUSTER_FEATURES), np.float32),
        np.zeros(num_rows + verdicts + 1, np.bool_),
        np.zeros(outcome_width(num_classes)),
    )


class Rollouts(NamedTuple):
    """N rollouts, a row each; C classes."""

    actions: NDArray[np.int64]  # what each begins with; afterwards its last decision
    until: NDArray[np.int64]  # when the control plane is next due, ps
    going: NDArray[np.bool_]  # which to move; those that come to their end stop going
    touched: NDArray[np.bool_]  # whether the control plane has acted since the last decision
    status: NDArray[np.int64]  # why each stopped, as in `decide_many`
    window_s: NDArray[np.float64]  # time after which a rollout ends, seconds
    left: NDArray[np.int64]  # decisions after which it ends; afterwards those that were not taken
    totals: NDArray[np.float64]  # (N, outcome_width(C)), to which what all decisions brought is added


_DT = 0  # column of `decisions.OUTCOMES`
_EARLY_S = 1e-9  # so much before its window's end a world has reached it: times are sums


@compiled
def _add_certain_misses(world: World, tables: Tables, totals: NDArray[np.float64]) -> None:
    """Books promises that requests in the system have broken already, though their tokens have not come.

    Otherwise a rollout that ends would find it free to hold a request beyond its deadline.
    """
    now, num_classes = world.cluster[0].now_ps, len(world.stats)
    slot = next_tracked(world.tracked, int64(0))
    while slot >= 0:
        request = world.requests[slot]
        c = request.class_id
        if not has_first_token(world, slot):
            totals[MISSES + c] += now > request.deadline_ps
        else:
            allowed = tables.classes[c].tpot_slo_ps * (request.output - 1)
            totals[MISSES + num_classes + c] += now - request.first_token_ps > allowed
        slot = next_tracked(world.tracked, slot + 1)


@spliced
def _roll(
    world: World,
    traffic: Traffic,
    table: Tables,
    desk: Desk,
    rollouts: Rollouts,
    i: int,
    score: PlaceScore,
    room: Room,
) -> None:
    """Rolls one world on, by row i of the rollouts. One that needs the control plane is still `going`.

    Where admission is a decision, promises that are broken for certain count when a rollout stops before its end.
    """
    number, verdicts = int64(len(world.engines)), int64(len(VERDICTS) if len(room.admission) > 0 else 0)
    places = room.places[: number + verdicts]
    while True:
        reason = settle(world, traffic, table, desk, rollouts.actions[i])
        if reason == REACHED:
            reason = run_to_decision(world, traffic, table, desk, rollouts.until[i], rollouts.touched[i])
        rollouts.status[i] = reason
        if reason != DECIDE and reason != ENDED:
            return
        rollouts.touched[i] = False
        close_interval(world, desk, room.outcome)
        for k in range(len(room.outcome)):
            rollouts.totals[i, k] += room.outcome[k]
        rollouts.left[i] -= 1
        over = rollouts.totals[i, _DT] >= rollouts.window_s[i] - _EARLY_S
        if reason == ENDED or rollouts.left[i] <= 0 or over:
            if reason != ENDED and desk.desk[0].deferred_level >= 0:
                _add_certain_misses(world, table, rollouts.totals[i])
            rollouts.going[i] = False
            return
        look_at_places(world, table, desk)
        places[:], room.request[:], room.cluster[:], room.mask[:] = 0.0, 0.0, 0.0, False
        write_observation(world, traffic, table, desk, places, room.request, room.cluster, room.mask)
        if verdicts:
            write_admission(world, traffic, desk, room.admission)
            for k in range(verdicts):
                places[number + k, places.shape[1] - verdicts + k] = 1.0
                room.mask[number + k] = k < verdicts - 1 or may_defer(world, desk)
        best = best_place(
            score,
            room.scores,
            places,
            room.request,
            room.admission,
            room.cluster,
            room.mask,
            int64(HOLD),
        )
        if verdicts and best >= number:
            best = HOLD if best == number else REJECT if best == number + 1 else DEFER
        rollouts.actions[i] = best


@entry
def roll_many(
    worlds: NDArray[np.int64],
    traffics: NDArray[np.int64],
    tables: NDArray[np.int64],
    desks: NDArray[np.int64],
    copies: NDArray[np.int64],
    owners: NDArray[np.int64],
    rollouts: Rollouts,
    score: PlaceScore,
    room: Room,
    stats: NDArray[np.float64],
) -> None:
    """Rolls worlds on, one after another: N themselves, or M copies of them, in the same memory if of the same.

    One that needs the control plane is still `going`, and what it is told of is in its log. A world goes on from there
    with NO_ACTION; a copy is given up.

    Args:
        worlds: (N, width) handles, of the memory of a copy where there are copies, as the three that follow.
        traffics: The arrivals.
        tables: What engines cost.
        desks: The routers' desks.
        copies: (N, arrays, 3), from where to where how many bytes are copied first; no arrays: worlds themselves go on.
        owners: (M,) which world each is.
        rollouts: M of them.
        score: What decides.
        room: Where it computes.
        stats: (M, C, len(STAT_NAMES)), a copy's at its end; C = 0: nobody asks.
    """
    for j in range(len(owners)):
        if not rollouts.going[j]:
            continue
        i = owners[j]
        for k in range(copies.shape[1]):
            copy_bytes(copies[i, k, 0], copies[i, k, 1], copies[i, k, 2])
        world, traffic = read_world(worlds, i), read_traffic(traffics, i)
        table, desk = read_tables(tables, i), read_desk(desks, i)
        if copies.shape[1] > 0:
            world.cluster[0].log_length = 0  # what is in it is for the owner to tell
        _roll(world, traffic, table, desk, rollouts, int64(j), score, room)
        for c in range(stats.shape[1]):
            for k in range(stats.shape[2]):
                stats[j, c, k] = world.stats[c, k]
