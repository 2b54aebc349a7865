"""Per-request results from the kernel's log and from the requests still in the system."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.metrics import (
    FAILED,
    FINISHED,
    NO_REASON,
    REFUSED,
    TOO_LONG,
    UNFINISHED,
    RequestRecords,
)
from serving_gym.envs.simulator.kernel import state as kernel
from serving_gym.envs.simulator.kernel.state import PS_PER_S, Traffic, World
from serving_gym.envs.simulator.kernel.world import decoding_progress
from serving_gym.envs.workload.schema import Workload

# By the kernel's outcomes.
OUTCOMES = np.array([FINISHED, REFUSED, FAILED, FAILED, REFUSED], np.int8)
REASONS = np.array([NO_REASON, NO_REASON, NO_REASON, NO_REASON, TOO_LONG], np.int8)


def _seconds(times_ps: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(times_ps < 0, np.nan, times_ps / PS_PER_S)


def to_records(workload: Workload, traffic: Traffic, world: World, log: NDArray[np.void]) -> RequestRecords:
    """Every request that has arrived, in the order of the workload."""
    count = int(world.cluster["next_arrival"][0])
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
    for slot in np.flatnonzero(world.requests["phase"] != kernel.FREE):
        request = world.requests[slot]
        row = request["index"]
        first_scheduled[row] = request["first_scheduled_ps"]
        first_token[row] = request["first_token_ps"]
        generated[row] = decoding_progress(world, int(slot))
        preemptions[row] = request["preemptions"]
        cached[row] = request["cached"]
        engine[row] = request["engine"]
    return RequestRecords(
        index=np.arange(count, dtype=np.int64),
        arrival_s=_seconds(traffic.arrival_ps[:count])
        if workload.num_clients
        else workload.arrival_s[:count],
        input_tokens=workload.input_tokens[:count],
        output_tokens=workload.output_tokens[:count],
        class_id=workload.class_id[:count],
        priority=workload.priority[:count],
        first_scheduled_s=_seconds(first_scheduled),
        first_token_s=_seconds(first_token),
        finish_s=_seconds(finish),
        generated_tokens=generated,
        preemptions=preemptions,
        engine=engine,
        outcome=outcome,
        cached_tokens=cached,
        reason=reason,
    )
