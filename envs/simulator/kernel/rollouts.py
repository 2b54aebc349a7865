"""Many decisions of many worlds in one call, taken by a score of places inside the kernel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.simulator.kernel.compiled import entry, int64
from envs.simulator.kernel.decisions import (
    close_interval,
    read_desk,
    read_tables,
    read_traffic,
    read_world,
    run_to_decision,
)
from envs.simulator.kernel.desk import DECIDE, ENDED, HOLD
from envs.simulator.kernel.features import write_observation
from envs.simulator.kernel.offers import settle
from envs.simulator.kernel.place_scores import PlaceScore, ScoreSpace, best_place
from envs.simulator.kernel.router_view import look_at_places
from envs.simulator.kernel.state import REACHED

_DT = 0  # column of `decisions.OUTCOMES`
_EARLY_S = 1e-9  # so much before its window's end a world has reached it: times are sums


@entry
def roll_many(
    worlds: NDArray[np.int64],
    traffics: NDArray[np.int64],
    tables: NDArray[np.int64],
    desks: NDArray[np.int64],
    actions: NDArray[np.int64],
    until: NDArray[np.int64],
    going: NDArray[np.bool_],
    touched: NDArray[np.bool_],
    status: NDArray[np.int64],
    window_s: NDArray[np.float64],
    left: NDArray[np.int64],
    score: PlaceScore,
    space: ScoreSpace,
    place_rows: NDArray[np.float32],
    request: NDArray[np.float32],
    cluster: NDArray[np.float32],
    mask: NDArray[np.bool_],
    outcome: NDArray[np.float64],
    totals: NDArray[np.float64],
) -> int:
    """Rolls N worlds on, one after another. Returns how many need the control plane.

    One that comes back from the control plane goes on with NO_ACTION.

    Args:
        worlds: (N, width) handles, as the three that follow.
        traffics: The arrivals.
        tables: What engines cost.
        desks: The routers' desks.
        actions: (N,) what each begins with; afterwards its last decision.
        until: (N,) when the control plane is next due, ps.
        going: (N,) which worlds to move; those that come to their end stop going.
        touched: (N,) whether the control plane has acted since the last decision.
        status: (N,) why each stopped, as in `decide_many`.
        window_s: (N,) time after which a rollout ends, seconds.
        left: (N,) decisions after which it ends; afterwards those that were not taken.
        score: What decides.
        space: Where it computes.
        place_rows: (at least E, features), room for an observation, as the three that follow.
        request: (features,).
        cluster: (features,).
        mask: (at least E + 1,).
        outcome: (len(OUTCOMES) + 2 C,), room for what a decision brought.
        totals: (N, len(OUTCOMES) + 2 C), to which what all of them brought is added.
    """
    waiting = int64(0)
    for i in range(len(worlds)):
        if not going[i]:
            continue
        world, traffic = read_world(worlds, i), read_traffic(traffics, i)
        table, desk = read_tables(tables, i), read_desk(desks, i)
        places = place_rows[: len(world.engines)]
        while True:
            reason = settle(world, traffic, table, desk, actions[i])
            if reason == REACHED:
                reason = run_to_decision(world, traffic, table, desk, until[i], touched[i])
            status[i] = reason
            if reason != DECIDE and reason != ENDED:
                waiting += 1
                break
            touched[i] = False
            close_interval(world, desk, outcome)
            for k in range(len(outcome)):
                totals[i, k] += outcome[k]
            left[i] -= 1
            if reason == ENDED or left[i] <= 0 or totals[i, _DT] >= window_s[i] - _EARLY_S:
                going[i] = False
                break
            look_at_places(world, table, desk)
            places[:], request[:], cluster[:], mask[:] = 0.0, 0.0, 0.0, False
            write_observation(world, traffic, table, desk, places, request, cluster, mask)
            actions[i] = best_place(score, space, places, request, cluster, mask, int64(HOLD))
    return waiting
