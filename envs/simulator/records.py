"""Per-request results from the kernel's log and from the requests still in the system."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.metrics import (
    ABANDONED,
    FAILED,
    FINISHED,
    NO_REASON,
    PATIENCE,
    REFUSED,
    TIMEOUT,
    TOO_LONG,
    UNFINISHED,
    RequestRecords,
)
from serving_gym.envs.simulator.kernel import state as kernel
from serving_gym.envs.simulator.kernel.state import PS_PER_S, Traffic, World
from serving_gym.envs.simulator.kernel.world import decoding_progress
from serving_gym.envs.workload.schema import Workload

# By the kernel's outcomes.
OUTCOMES = np.array([FINISHED, REFUSED, FAILED, ABANDONED, REFUSED, FAILED], np.int8)
REASONS = np.array([NO_REASON, NO_REASON, NO_REASON, PATIENCE, TOO_LONG, TIMEOUT], np.int8)


def _seconds(times_ps: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(times_ps < 0, np.nan, times_ps / PS_PER_S)


def to_records(workload: Workload, traffic: Traffic, world: World, log: NDArray[np.void]) -> RequestRecords:
    """Every request that has arrived, in the order of arrival."""
    arrived = int(world.cluster["next_arrival"][0])
    here = world.turns["came_row"][:arrived].astype(np.int64) if workload.has_sessions else np.arange(arrived)
    count = len(workload) if workload.has_sessions else arrived
    first_scheduled = np.full(count, -1, np.int64)
    first_token = np.full(count, -1, np.int64)
    finish = np.full(count, -1, np.int64)
    generated = np.zeros(count, np.int32)
    preemptions = np.zeros(count, np.int32)
    cached = np.zeros(count, np.int32)
    engine = np.full(count, -1, np.int32)
    outcome, reason = np.full(count, UNFINISHED, np.int8), np.full(count, NO_REASON, np.int8)
    rows = log["index"]
    first_scheduled[rows] = log["first_scheduled_ps"]
    first_token[rows] = log["first_token_ps"]
    finish[rows] = np.where(log["outcome"] == kernel.FINISHED, log["finish_ps"], -1)
    generated[rows] = log["generated"]
    preemptions[rows] = log["preemptions"]
    cached[rows] = log["cached"]
    engine[rows] = log["engine"]
    outcome[rows], reason[rows] = OUTCOMES[log["outcome"]], REASONS[log["outcome"]]
    now_ps = int(world.cluster["now_ps"][0])
    for slot in np.flatnonzero(world.requests["phase"] != kernel.FREE):
        request = world.requests[slot]
        row = request["index"]
        first_scheduled[row] = request["first_scheduled_ps"]
        first_token[row] = request["first_token_ps"] if request["first_token_ps"] <= now_ps else -1
        generated[row] = decoding_progress(world, int(slot))
        preemptions[row] = request["preemptions"]
        cached[row] = request["cached"]
        engine[row] = request["engine"]
    return RequestRecords(
        index=here,
        arrival_s=arrival_times(workload, traffic, world, here),
        input_tokens=workload.input_tokens[here],
        output_tokens=workload.output_tokens[here],
        class_id=workload.class_id[here],
        priority=workload.priority[here],
        first_scheduled_s=_seconds(first_scheduled[here]),
        first_token_s=_seconds(first_token[here]),
        finish_s=_seconds(finish[here]),
        generated_tokens=generated[here],
        preemptions=preemptions[here],
        engine=engine[here],
        outcome=outcome[here],
        cached_tokens=cached[here],
        session=None if workload.session_id is None else workload.session_id[here],
        turn=None if workload.session_id is None else workload.turn[here],
        reason=reason[here],
    )


def arrival_times(
    workload: Workload, traffic: Traffic, world: World, rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """When the first len(rows) requests arrived, (N,) seconds; `rows`: which of the workload they are."""
    if workload.has_sessions:
        return _seconds(world.turns["came_ps"][: len(rows)])
    return _seconds(traffic.arrival_ps[rows]) if workload.num_clients else workload.arrival_s[rows]
