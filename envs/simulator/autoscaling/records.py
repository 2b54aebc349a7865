"""Compact records of each request during an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.metrics import NO_REASON, UNFINISHED, RequestRecords
from serving_gym.envs.simulator.kernel import state as kernel
from serving_gym.envs.simulator.kernel.state import PS_PER_S, World
from serving_gym.envs.simulator.kernel.world import decoding_progress
from serving_gym.envs.simulator.records import OUTCOMES, REASONS
from serving_gym.envs.workload.schema import Workload

Left = NDArray[np.void]

# A request that has left. Times since its arrival, single precision; NaN: it never happened.
LEFT_DTYPE = np.dtype(
    [
        ("index", np.int32),
        ("first_scheduled_s", np.float32),
        ("first_token_s", np.float32),
        ("finish_s", np.float32),
        ("generated", np.int32),
        ("engine", np.int16),
        ("preemptions", np.int16),
        ("outcome", np.int8),
        ("reason", np.int8),
    ]
)


def left_of(log: NDArray[np.void]) -> Left:
    """Log entries in few bytes, (M,) LEFT_DTYPE."""
    rows = np.empty(len(log), LEFT_DTYPE)
    for name in ("first_scheduled", "first_token", "finish"):
        since = (log[f"{name}_ps"] - log["arrival_ps"]) / PS_PER_S
        rows[f"{name}_s"] = np.where(log[f"{name}_ps"] < 0, np.nan, since)
    rows["finish_s"][log["outcome"] != kernel.FINISHED] = np.nan
    for name in ("index", "generated", "engine"):
        rows[name] = log[name]
    rows["preemptions"] = np.minimum(log["preemptions"], np.iinfo(np.int16).max)
    rows["outcome"], rows["reason"] = OUTCOMES[log["outcome"]], REASONS[log["outcome"]]
    return rows


def records_of(pieces: Sequence[Workload], world: World, gone: Sequence[Left]) -> RequestRecords:
    """Every request that has arrived, in the order of arrival.

    Args:
        pieces: Requests so far, piece by piece; of the last one not all have arrived.
        world: The world, with the requests that are still there.
        gone: Those that have left.
    """
    sessions = pieces[-1].has_sessions  # then it is the only piece
    present = len(pieces[-1]) if sessions else int(world.cluster["next_arrival"][0])
    counts = [len(piece) for piece in pieces[:-1]] + [present]

    def column(name: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(p, name)[:count] for p, count in zip(pieces, counts, strict=True)])

    count = sum(counts)
    arrival_s = column("arrival_s").astype(np.float64)
    if sessions:
        turns = world.turns[: int(world.cluster["next_arrival"][0])]
        arrival_s[turns["came_row"]] = turns["came_ps"] / PS_PER_S
    times = {name: np.full(count, np.nan) for name in ("first_scheduled_s", "first_token_s", "finish_s")}
    generated, preemptions = np.zeros(count, np.int32), np.zeros(count, np.int32)
    engine, outcome = np.full(count, -1, np.int32), np.full(count, UNFINISHED, np.int8)
    reason = np.full(count, NO_REASON, np.int8)
    left = np.concatenate([*gone, np.empty(0, LEFT_DTYPE)])
    at = left["index"]
    for name, values in times.items():
        values[at] = arrival_s[at] + left[name]
    generated[at], preemptions[at] = left["generated"], left["preemptions"]
    engine[at], outcome[at], reason[at] = left["engine"], left["outcome"], left["reason"]
    now_ps = int(world.cluster["now_ps"][0])
    for slot in np.flatnonzero(world.requests["phase"] != kernel.FREE):
        request = world.requests[slot]
        row = request["index"]
        for name in ("first_scheduled", "first_token"):
            if 0 <= request[f"{name}_ps"] <= now_ps:
                times[f"{name}_s"][row] = request[f"{name}_ps"] / PS_PER_S
        generated[row] = decoding_progress(world, int(slot))
        preemptions[row], engine[row] = request["preemptions"], request["engine"]
    records = RequestRecords(
        index=np.arange(count, dtype=np.int64),
        arrival_s=arrival_s,
        input_tokens=column("input_tokens").astype(np.int32),
        output_tokens=column("output_tokens").astype(np.int32),
        class_id=column("class_id").astype(np.int32),
        priority=column("priority").astype(np.int32),
        **times,
        generated_tokens=generated,
        preemptions=preemptions,
        engine=engine,
        outcome=outcome,
        reason=reason,
    )
    if not sessions:
        return records
    workload = pieces[-1]
    assert workload.session_id is not None
    known = replace(records, session=workload.session_id, turn=workload.turn)
    return known.rows(turns["came_row"].astype(np.int64))
