"""From one routing decision to the next, for many worlds in one call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.state import TOTALS
from serving_gym.envs.simulator.kernel.accounting import latency_cost, square_cost
from serving_gym.envs.simulator.kernel.compiled import entry, inlined, int64
from serving_gym.envs.simulator.kernel.desk import (
    ANSWERED_SHORT,
    DECIDE,
    DUE,
    ENDED,
    ENDED_SHORT,
    LATE_SHORT,
    PREDICTED_LONG,
    PREDICTED_SHORT,
    PROMPTS_LONG,
    PROMPTS_SHORT,
    REQUESTS_LONG,
    REQUESTS_SHORT,
    SLOW_SHORT,
    Desk,
    new_desk,
)
from serving_gym.envs.simulator.kernel.features import LONG_S, SHORT_S, write_admission, write_observation
from serving_gym.envs.simulator.kernel.handles import handle_width, reader_of
from serving_gym.envs.simulator.kernel.offers import (
    begin_retry,
    may_defer,
    next_offer,
    offer_arrivals,
    settle,
)
from serving_gym.envs.simulator.kernel.router_view import look_at_places
from serving_gym.envs.simulator.kernel.sessions import row_of
from serving_gym.envs.simulator.kernel.state import (
    CLASS_DTYPE,
    KIND_DTYPE,
    NEED_EXTENTS,
    NEVER,
    PS_PER_S,
    REACHED,
    TRIGGERED,
    Tables,
    Traffic,
    World,
    new_world,
)
from serving_gym.envs.simulator.kernel.world import (
    go_on,
    is_idle,
    lacks_extents,
    next_arrival,
    show_engines,
    take_stock,
)

# Columns of what a decision brought, before three (C,) blocks: misses of TTFT, misses of TPOT, requests refused.
OUTCOMES = ("dt_s", "latency", "good", "lost", "square")
_DT, _LATENCY, _GOOD_COLUMN, _LOST, _SQUARE = range(len(OUTCOMES))
MISSES = len(OUTCOMES)
CLASS_BLOCKS = 3
_DRAIN_PS = PS_PER_S  # once all have arrived, how often one looks whether all are done

_ARRIVED, _PROMPTS = TOTALS.index("arrived"), TOTALS.index("arrived_tokens")
_REFUSED, _FAILED, _GOOD = (TOTALS.index(name) for name in ("refused", "failed", "good"))
_FIRST, _TTFT_MET = TOTALS.index("first_tokens"), TOTALS.index("ttft_met")
_FINISHED, _TPOT_MET = TOTALS.index("finished"), TOTALS.index("tpot_met")


def outcome_width(num_classes: int) -> int:
    """Columns of what a decision brought."""
    return len(OUTCOMES) + CLASS_BLOCKS * num_classes


def _sample_traffic() -> Traffic:
    narrow = np.zeros(1, np.int32)
    return Traffic(
        np.zeros(1, np.int64), narrow, narrow, narrow, narrow, narrow, narrow, np.zeros(1, np.int8)
    )


def _sample_tables() -> Tables:
    wide = np.zeros((1, 1), np.int64)
    return Tables(wide, wide, np.zeros(1, KIND_DTYPE), np.zeros(1, CLASS_DTYPE))


_EXAMPLES = (
    new_world(1, 1, 1, 1),
    _sample_traffic(),
    _sample_tables(),
    new_desk(1, 1, 1, np.zeros((1, 1), np.int8), np.zeros(1, np.int32), np.zeros(1, np.int32)),
)
HANDLE_WIDTHS = tuple(handle_width(example) for example in _EXAMPLES)
read_world = reader_of(World, _EXAMPLES[0])
read_traffic = reader_of(Traffic, _EXAMPLES[1])
read_tables = reader_of(Tables, _EXAMPLES[2])
read_desk = reader_of(Desk, _EXAMPLES[3])


@inlined
def _read_gauges(world: World, desk: Desk) -> None:
    """Polls every engine; the kernel has just shown them."""
    board = desk.desk[0]
    for e in range(len(world.engines)):
        desk.gauges[e] = world.shown[e]
    board.gauges_ps = world.cluster[0].now_ps
    board.next_gauges_ps = board.gauges_ps + board.gauge_interval_ps


@inlined
def _next_stop(world: World, traffic: Traffic, desk: Desk, until: int) -> int:
    """How far the clock may run before a router looks up."""
    board, now = desk.desk[0], world.cluster[0].now_ps
    stop = until
    if board.gauge_interval_ps > 0:
        stop = min(stop, board.next_gauges_ps)
    if world.cluster[0].num_pooled > 0:
        if board.retry_ps == NEVER:  # some have lost their engine
            board.retry_ps = now + board.retry_interval_ps
        stop = min(stop, board.retry_ps)
    if next_arrival(world, traffic) == NEVER:
        stop = min(stop, now + _DRAIN_PS)
    return stop


@inlined
def run_to_decision(
    world: World, traffic: Traffic, tables: Tables, desk: Desk, until: int, fresh: bool
) -> int:
    """Moves on to the next decision, the end of the episode, or `until`. Returns which, or what the kernel needs.

    `fresh` says that something else than a decision may have happened to the world since it last stood still.
    """
    board = desk.desk[0]
    while True:
        if next_offer(world, traffic, desk):
            if board.gauge_interval_ps == 0 and board.decided_ps == world.cluster[0].now_ps:
                show_engines(world, tables)  # the decision before this one fell at the same instant
                _read_gauges(world, desk)
            return int64(DECIDE)
        if is_idle(world, traffic) or world.cluster[0].now_ps >= board.deadline_ps:
            return int64(ENDED)
        stop = _next_stop(world, traffic, desk, min(until, int64(board.deadline_ps)))
        noticed = False
        if fresh:
            if lacks_extents(world, int64(0)):
                return int64(NEED_EXTENTS)
            noticed = take_stock(world, tables)
            fresh = False
        # One call of `go_on`, as all that it does is compiled in where it stands.
        reason = go_on(world, traffic, tables, stop, noticed)
        if reason != REACHED and reason != TRIGGERED:
            return reason
        now = world.cluster[0].now_ps
        if board.gauge_interval_ps == 0 or now >= board.next_gauges_ps:
            _read_gauges(world, desk)
        if reason == TRIGGERED:
            offer_arrivals(world, traffic, desk)
        elif now >= board.retry_ps:
            begin_retry(world, desk)
        elif now >= until:
            return int64(DUE)


@inlined
def _book_outcome(world: World, desk: Desk, out: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Writes what the time since the last decision brought.

    Returns:
        Arrivals, their prompt tokens, and requests whose promise of TTFT and of TPOT was kept or broken.
    """
    board, stats = desk.desk[0], world.stats
    num_classes = len(stats)
    cost, square = latency_cost(world), square_cost(world)
    out[_DT] = (world.cluster[0].now_ps - board.decided_ps) / PS_PER_S
    out[_LATENCY] = cost - board.latency_cost
    out[_SQUARE] = square - board.square_cost
    out[_GOOD_COLUMN] = out[_LOST] = 0.0
    arrived, prompts, answered, ended = 0.0, 0.0, 0.0, 0.0
    for c in range(num_classes):
        before = desk.totals[c]
        lost = stats[c, _REFUSED] - before[_REFUSED] + stats[c, _FAILED] - before[_FAILED]
        first = stats[c, _FIRST] - before[_FIRST]
        finished = stats[c, _FINISHED] - before[_FINISHED]
        out[_GOOD_COLUMN] += stats[c, _GOOD] - before[_GOOD]
        out[_LOST] += lost
        out[MISSES + c] = first - (stats[c, _TTFT_MET] - before[_TTFT_MET]) + lost
        out[MISSES + num_classes + c] = finished - (stats[c, _TPOT_MET] - before[_TPOT_MET]) + lost
        out[MISSES + 2 * num_classes + c] = stats[c, _REFUSED] - before[_REFUSED]
        arrived += stats[c, _ARRIVED] - before[_ARRIVED]
        prompts += stats[c, _PROMPTS] - before[_PROMPTS]
        answered += first + lost
        ended += finished + lost
        for i in range(desk.totals.shape[1]):
            desk.totals[c, i] = stats[c, i]
    board.latency_cost, board.square_cost = cost, square
    board.decided_ps = world.cluster[0].now_ps
    board.decisions += 1
    return arrived, prompts, answered, ended


@inlined
def _remember(desk: Desk, average: int, amount: float, keep: float, over: float) -> None:
    """Lets an exponential average of a rate go on."""
    desk.memory[average] = desk.memory[average] * keep + amount / over


@inlined
def close_interval(world: World, desk: Desk, out: NDArray[np.float64]) -> None:
    """Books the interval that ends here, and lets the averages of arrivals and promises go on."""
    arrived, prompts, answered, ended = _book_outcome(world, desk, out)
    num_classes = len(world.stats)
    predicted, late, slow = 0.0, 0.0, 0.0
    last = world.cluster[0].next_arrival
    for row in range(last - int64(arrived), last):
        predicted += desk.predicted[row_of(world, row)]
    for c in range(num_classes):
        late += out[MISSES + c]
        slow += out[MISSES + num_classes + c]
    short_s, long_s = desk.scales[SHORT_S], desk.scales[LONG_S]
    short, long = np.exp(-out[_DT] / short_s), np.exp(-out[_DT] / long_s)
    _remember(desk, REQUESTS_SHORT, arrived, short, short_s)
    _remember(desk, REQUESTS_LONG, arrived, long, long_s)
    _remember(desk, PROMPTS_SHORT, prompts, short, short_s)
    _remember(desk, PROMPTS_LONG, prompts, long, long_s)
    _remember(desk, PREDICTED_SHORT, predicted, short, short_s)
    _remember(desk, PREDICTED_LONG, predicted, long, long_s)
    _remember(desk, ANSWERED_SHORT, answered, short, 1.0)
    _remember(desk, LATE_SHORT, late, short, 1.0)
    _remember(desk, ENDED_SHORT, ended, short, 1.0)
    _remember(desk, SLOW_SHORT, slow, short, 1.0)
    for c in range(num_classes if desk.desk[0].deferred_level >= 0 else 0):
        admitted = desk.admitted[c]
        sent, refused = admitted.sent - admitted.sent_before, out[MISSES + 2 * num_classes + c]
        admitted.sent_short = admitted.sent_short * short + sent / short_s
        admitted.refused_short = admitted.refused_short * short + refused / short_s
        admitted.sent_before = admitted.sent


@entry
def decide_many(
    worlds: NDArray[np.int64],
    traffics: NDArray[np.int64],
    tables: NDArray[np.int64],
    desks: NDArray[np.int64],
    actions: NDArray[np.int64],
    until: NDArray[np.int64],
    going: NDArray[np.bool_],
    touched: NDArray[np.bool_],
    status: NDArray[np.int64],
    places: NDArray[np.float32],
    requests: NDArray[np.float32],
    clusters: NDArray[np.float32],
    admissions: NDArray[np.float32],
    masks: NDArray[np.bool_],
    outcomes: NDArray[np.float64],
) -> int:
    """Takes a decision in each of N worlds and goes on to the next one. Returns how many need the control plane.

    One that comes back from the control plane goes on with NO_ACTION.

    Args:
        worlds: (N, width) handles, as the three that follow.
        traffics: The arrivals.
        tables: What engines cost.
        desks: The routers' desks.
        actions: (N,) a place, or desk.HOLD, REJECT, DEFER or NO_ACTION.
        until: (N,) when the control plane is next due, ps.
        going: (N,) which worlds to move; those that come to a decision or their end stop going.
        touched: (N,) whether the control plane has acted since the last decision.
        status: (N,) why each stopped: DECIDE, ENDED, DUE, FAR, NOTIFIED, or NEED_*.
        places: (N, at least E, features), written where the outcome is DECIDE or ENDED.
        requests: (N, features).
        clusters: (N, features).
        admissions: (N, features); no features where admission is no decision.
        masks: (N, R + 1) of R rows of places: each place, to hold; (N, R + 3) where admission is a decision: to refuse
            and to defer as well.
        outcomes: (N, outcome_width(C)).
    """
    waiting = int64(0)
    for i in range(len(worlds)):
        if not going[i]:
            continue
        world, traffic = read_world(worlds, i), read_traffic(traffics, i)
        table, desk = read_tables(tables, i), read_desk(desks, i)
        reason = settle(world, traffic, table, desk, actions[i])
        if reason == REACHED:
            reason = run_to_decision(world, traffic, table, desk, until[i], touched[i])
        status[i] = reason
        if reason != DECIDE and reason != ENDED:
            waiting += 1
            continue
        going[i] = False
        close_interval(world, desk, outcomes[i])
        look_at_places(world, table, desk)
        places[i], requests[i], clusters[i], masks[i] = 0.0, 0.0, 0.0, False
        masks[i, places.shape[1]] = True
        write_observation(world, traffic, table, desk, places[i], requests[i], clusters[i], masks[i])
        if desk.desk[0].deferred_level >= 0:
            write_admission(world, traffic, desk, admissions[i])
            if desk.desk[0].slot >= 0:
                masks[i, places.shape[1] + 1] = True
                masks[i, places.shape[1] + 2] = may_defer(world, desk)
    return waiting
