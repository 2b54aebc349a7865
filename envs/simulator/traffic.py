"""A workload in the kernel's form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.state import (
    NEVER,
    NUM_LEVELS,
    PS_PER_S,
    TURN_DTYPE,
    Sessions,
    Traffic,
    no_sessions,
)
from serving_gym.envs.workload.schema import Workload

LONGEST_S = 105 * 86400.0  # 64-bit picoseconds hold 106 days


def priorities_of(workload: Workload, others: Sequence[int] = ()) -> NDArray[np.int32]:
    """The distinct priorities of a workload, and `others` that may come later, ascending.

    Raises:
        ValueError: there are more than an engine's queue supports.
    """
    values = np.unique(np.concatenate([workload.priority, np.asarray(others, np.int32)]))
    if len(values) > NUM_LEVELS:
        raise ValueError(
            f"workload.priority has {len(values)} distinct values; at most {NUM_LEVELS} are kept apart"
        )
    return values


def make_traffic(
    workload: Workload,
    priorities: NDArray[np.int32],
    trigger_classes: Sequence[int] = (),
    endpoint: NDArray[np.int32] | None = None,
) -> Traffic:
    """A workload in the kernel's form.

    Args:
        workload: Requests sorted by arrival.
        priorities: Distinct priorities, ascending; a request's level is the index of its priority.
        trigger_classes: Classes whose arrival may trigger a decision.
        endpoint: (N,) endpoint of each request; None: there is only one.

    Raises:
        ValueError: a request has a priority that is not among `priorities`, or arrives later than a run can last.
    """
    level = np.searchsorted(priorities, workload.priority)
    known = np.isin(workload.priority, priorities)
    if not known.all():
        row = int(np.argmin(known))
        raise ValueError(
            f"workload {workload.name!r}: row {row}, column 'priority': {workload.priority[row]} is not among the "
            f"priorities {priorities.tolist()} known when the stream began"
        )
    if len(workload) and not workload.num_clients and workload.arrival_s[-1] > LONGEST_S:
        raise ValueError(
            f"workload {workload.name!r}: its last request arrives after {workload.arrival_s[-1] / 86400.0:,.0f} days, "
            f"and a run lasts at most {LONGEST_S / 86400.0:.0f}; take a part of it, or raise its rate (rate_scale)"
        )
    arrival_ps = np.round(workload.arrival_s * PS_PER_S).astype(np.int64)
    if workload.num_clients:
        arrival_ps[:] = NEVER
    return Traffic(
        arrival_ps=arrival_ps,
        prompt=workload.input_tokens.astype(np.int32),
        output=workload.output_tokens.astype(np.int32),
        max_output=workload.max_output_tokens.astype(np.int32),
        level=level.astype(np.int32),
        class_id=workload.class_id.astype(np.int32),
        endpoint=np.zeros(len(workload), np.int32) if endpoint is None else endpoint,
        trigger=np.isin(workload.class_id, trigger_classes).astype(np.int8),
        patience_ps=_patience_ps(workload),
    )


def _patience_ps(workload: Workload) -> NDArray[np.int64]:
    """How long each client waits for the first token, (N,), or nothing where all wait as long as it takes."""
    if workload.patience_s is None or np.isinf(workload.patience_s).all():
        return np.zeros(0, np.int64)
    finite = np.isfinite(workload.patience_s)
    patience_ps = np.round(np.where(finite, workload.patience_s, 0.0) * PS_PER_S).astype(np.int64)
    return np.where(finite, patience_ps, NEVER)


def make_sessions(workload: Workload) -> Sessions:
    """Who waits for whom, in the kernel's form; nothing where nobody waits."""
    if not workload.has_sessions:
        return no_sessions()
    assert workload.after is not None
    assert workload.delay_s is not None
    awaited = workload.num_awaited
    turns = np.zeros(len(workload), TURN_DTYPE)
    turns["came_ps"] = NEVER
    turns["unmet"] = awaited
    turns["delay_ps"] = np.where(awaited > 0, np.round(workload.delay_s * PS_PER_S).astype(np.int64), -1)
    owner = np.repeat(np.arange(len(workload), dtype=np.int32), awaited)
    order = np.argsort(workload.after, kind="stable")
    ends = np.cumsum(np.bincount(workload.after, minlength=len(workload)))
    turns["first_child"][1:], turns["last_child"] = ends[:-1], ends
    return Sessions(turns, owner[order])
