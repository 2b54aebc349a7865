"""The router's desk: the request that waits for a decision, those held back, and what the router knows of engines.

Requests that no engine has yet stand in the pool. Those that arrive are offered one after another; what is held is
offered again at every retry, oldest first within its priority; where one is held once more, the others of its class and
endpoint are left alone until the next retry. Where admission is a decision, a request may also be refused at once, or
deferred: it stands at the last priority level from then on. Beside that a router has gauges, read at intervals, and
what it remembers of the past.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE, TOTALS
from serving_gym.envs.simulator.kernel.state import NEVER

# A router looks 100 iterations ahead (PreServe, section 4.3.1), now and every 10 of them (source of the step: ours).
AHEAD_STEP, NUM_GLANCES = 10, 11
NUM_SCALES = 11  # of the observation, see features.py

# Why a step ended: at a decision, at the end of the episode, at a time the caller gave, or for something that the
# kernel cannot do itself (state.NEED_*, state.NOTIFIED, FAR).
DECIDE, ENDED, DUE, FAR = range(100, 104)

# Actions that are no place. REJECT and DEFER are decisions only where admission is one (`deferred_level`).
HOLD, NO_ACTION, REJECT, DEFER = -1, -2, -3, -4

# What `Desk.held_again` notes of an endpoint and class in a retry.
HELD_AGAIN, DEFERRED_AGAIN = 1, 2

DESK_DTYPE = np.dtype(
    [
        ("next_row", np.int64),  # of Traffic: the next of this instant's arrivals to be offered ...
        ("last_row", np.int64),  # ... and the one behind the last
        ("retry_ps", np.int64),  # NEVER: nothing is held
        ("retry_interval_ps", np.int64),
        ("gauges_ps", np.int64),  # when gauges were read
        ("next_gauges_ps", np.int64),
        ("gauge_interval_ps", np.int64),  # 0: read at every decision
        ("deadline_ps", np.int64),  # when the episode is cut off
        ("decided_ps", np.int64),  # when the last decision was taken
        ("decisions", np.int64),
        ("held", np.int64),  # requests in the queue besides the one on the desk, at the last decision ...
        ("held_tokens", np.int64),  # ... and their tokens to prefill
        ("refused_actions", np.int64),  # places that could not take what was sent there
        ("latency_cost", np.float64),  # at the last decision
        ("square_cost", np.float64),  # of waiting, at the last decision
        ("slot", np.int32),  # the request that is offered, -1: none
        ("following", np.int32),  # the held request to be offered next, -1: none
        ("held_before", np.int32),  # 1: what is offered has been held
        ("capacity", np.int32),  # requests that may be held
        ("index_ttl_ps", np.int64),  # how long a prompt that was sent is taken to be cached
        ("sends_far", np.int32),  # 1: some request has gone to another region
        (
            "deferred_level",
            np.int32,
        ),  # priority level of deferred requests, the last; -1: admission is no decision
    ],
    align=True,
)

NUM_AVERAGES = 10
# What a router remembers of arrivals, and of promises kept and broken: exponential averages over two time constants.
(
    REQUESTS_SHORT,  # arrivals a second
    REQUESTS_LONG,
    PROMPTS_SHORT,  # prompt tokens a second
    PROMPTS_LONG,
    PREDICTED_SHORT,  # predicted output tokens a second
    PREDICTED_LONG,
    ANSWERED_SHORT,  # first tokens ...
    LATE_SHORT,  # ... and those later than promised, or never
    ENDED_SHORT,  # last tokens ...
    SLOW_SHORT,  # ... and those of answers slower than promised, or never
) = range(NUM_AVERAGES)

# One row a place: what a router knows of it at a decision, in physical units.
PLACE_DTYPE = np.dtype(
    [
        ("in_flight", np.int64),  # requests sent there and not done
        ("unanswered", np.int64),  # of these, without a first token
        ("queued_tokens", np.int64),  # prompt tokens of those
        ("context_tokens", np.int64),  # prompt and generated tokens of the others
        ("remaining_tokens", np.int64),  # predicted output tokens still to come, of all
        ("peak_tokens", np.int64),  # most context at a glance ahead if the request came
        ("can_take", np.int32),
    ],
    align=True,
)


# One row a place: what its requests in flight come to. But for the iterations that pass it holds until the engine does
# something else than to go on with a run.
TALLY_DTYPE = np.dtype(
    [
        ("queued_tokens", np.int64),  # prompts of requests without a first token
        ("queued_remaining", np.int64),  # their predicted outputs
        ("ends", np.int64),  # sum over the others of the iteration in which each is expected to end ...
        ("offsets", np.int64),  # ... and of its context less the iterations so far
        ("first_end", np.int64),
        ("changes", np.int32),  # of the engine, when this was counted; -1: never
        ("unanswered", np.int32),
        ("answered", np.int32),
        ("lasts", np.int32),  # 0: some do not gain a token in every iteration
    ],
    align=True,
)


# One row a class, where admission is a decision: what the router has let in and turned away.
ADMITTED_DTYPE = np.dtype(
    [
        ("sent", np.int64),  # requests sent to an engine since the episode began ...
        ("sent_before", np.int64),  # ... and up to the last decision
        ("held", np.int64),  # requests in the queue besides the one on the desk, at the last decision
        (
            "sent_short",
            np.float64,
        ),  # requests sent a second, exponential average with the short time constant
        ("refused_short", np.float64),  # the same of requests refused
    ],
    align=True,
)


# What the router believes that a place has of a node of the prefix tree: blocks up to `end`, until some time.
INDEX_DTYPE = np.dtype([("until_ps", np.int64), ("end", np.int32)], align=True)


class Desk(NamedTuple):
    """A router's desk. E places, P endpoints, N requests of the workload, C classes, L priority levels."""

    desk: NDArray[np.void]  # (1,) DESK_DTYPE
    gauges: NDArray[np.void]  # (E,) ENGINE_STATE_DTYPE, as last read
    places: NDArray[np.void]  # (E,) PLACE_DTYPE, as of the last decision
    totals: NDArray[np.float64]  # (C, len(TOTALS)) at the last decision
    memory: NDArray[np.float64]  # (NUM_AVERAGES,)
    held_again: NDArray[
        np.int8
    ]  # (P, C), sum of HELD_AGAIN and DEFERRED_AGAIN: what happened to one in this retry
    admitted: NDArray[np.void]  # (C,) ADMITTED_DTYPE
    sent_index: NDArray[np.void]  # (E, nodes) INDEX_DTYPE; no nodes: the router knows what engines have
    tallies: NDArray[np.void]  # (E,) TALLY_DTYPE
    flights: NDArray[np.int32]  # (E, S, 2) of each answered request in flight: expected end, offset
    ends: NDArray[np.int64]  # (NUM_GLANCES, 2) scratch: requests, and their context, that a glance sees last
    serves: NDArray[
        np.int8
    ]  # (P, E), 1: the place serves the endpoint's model within its reach; never changes
    kinds: NDArray[np.int32]  # (E,) row of Tables of a place without faults; never changes
    predicted: NDArray[np.int32]  # (N,) predicted output lengths; never changes
    network_s: NDArray[np.float64]  # (P, E) s to a place's region and back; never changes
    scales: NDArray[np.float64]  # (NUM_SCALES,) of the observation; never changes
    urgency: NDArray[np.float64]  # (L,) of each priority level, 0 to 1 (`urgency_of`); never changes


def new_desk(
    num_places: int,
    max_running: int,
    num_classes: int,
    serves: NDArray[np.int8],
    kinds: NDArray[np.int32],
    predicted: NDArray[np.int32],
    network_s: NDArray[np.float64] | None = None,
    scales: NDArray[np.float64] | None = None,
    retry_interval_ps: int = NEVER,
    gauge_interval_ps: int = 0,
    deadline_ps: int = NEVER,
    capacity: int = 0,
    deferred_level: int = -1,
    urgency: NDArray[np.float64] | None = None,
    index_nodes: int = 0,
    index_ttl_ps: int = 0,
) -> Desk:
    """An empty desk at time zero."""
    desk = np.zeros(1, DESK_DTYPE)
    desk["slot"] = desk["following"] = -1
    desk["retry_ps"] = NEVER
    desk["retry_interval_ps"] = retry_interval_ps
    desk["gauge_interval_ps"] = gauge_interval_ps
    desk["deadline_ps"] = deadline_ps
    desk["capacity"] = capacity
    desk["deferred_level"] = deferred_level
    desk["index_ttl_ps"] = index_ttl_ps
    index = np.zeros((num_places, index_nodes), INDEX_DTYPE)
    index["until_ps"] = -1
    return Desk(
        desk=desk,
        gauges=np.zeros(num_places, ENGINE_STATE_DTYPE),
        places=np.zeros(num_places, PLACE_DTYPE),
        totals=np.zeros((num_classes, len(TOTALS))),
        memory=np.zeros(NUM_AVERAGES),
        held_again=np.zeros((len(serves), num_classes), np.int8),
        admitted=np.zeros(num_classes, ADMITTED_DTYPE),
        sent_index=index,
        tallies=_no_tallies(num_places),
        flights=np.zeros((num_places, max_running, 2), np.int32),
        ends=np.zeros((NUM_GLANCES, 2), np.int64),
        serves=np.ascontiguousarray(serves, np.int8),
        kinds=np.ascontiguousarray(kinds, np.int32),
        predicted=np.ascontiguousarray(predicted, np.int32),
        network_s=np.zeros(serves.shape)
        if network_s is None
        else np.ascontiguousarray(network_s, np.float64),
        scales=np.ones(NUM_SCALES) if scales is None else np.ascontiguousarray(scales, np.float64),
        urgency=np.zeros(1) if urgency is None else np.ascontiguousarray(urgency, np.float64),
    )


def urgency_of(priority: NDArray[np.integer[Any]] | int) -> NDArray[np.float64]:
    """1 / (1 + e^priority): a priority between 0 and 1, the higher the sooner served; of any shape."""
    return np.asarray(1.0 / (1.0 + np.exp(np.clip(priority, -500.0, 500.0))))


def _no_tallies(num_places: int) -> NDArray[np.void]:
    tallies = np.zeros(num_places, TALLY_DTYPE)
    tallies["changes"] = -1
    return tallies


def fork_desk(desk: Desk) -> Desk:
    """A copy that shares nothing that lasts."""
    return desk._replace(
        desk=desk.desk.copy(),
        gauges=desk.gauges.copy(),
        places=desk.places.copy(),
        tallies=_no_tallies(len(desk.places)),
        flights=np.empty_like(desk.flights),
        totals=desk.totals.copy(),
        memory=desk.memory.copy(),
        held_again=desk.held_again.copy(),
        admitted=desk.admitted.copy(),
        sent_index=desk.sent_index.copy(),
    )
