"""Which answers a recorded agent's requests waited for, from when each began and ended.

Source: Dynamo's lowering of agentic request traces (``agent_trace_to_mooncake`` in ai-dynamo/dynamo): requests of an
agent follow one another, a sub-agent's first request waits for the request of its parent that ended last before it, and
the first request of the parent that began after the sub-agent's end waits for that end. Departure: requests of an agent
that overlapped do not wait for one another (Dynamo chains them with a delay of 0), but for what both could have waited
for. The delay is the time between the last of those ends and the request.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from serving_gym.envs.workload.reading.rows import Waits
from serving_gym.envs.workload.schema import FloatArray

_TOLERANCE_S = 1e-3  # recorded times are rounded to milliseconds


def recorded_waits(
    start_s: FloatArray, end_s: FloatArray, agents: Sequence[Hashable], parents: Mapping[Hashable, Hashable]
) -> Waits:
    """What each request waited for.

    Args:
        start_s: (N,), never decreasing.
        end_s: (N,), at least ``start_s``.
        agents: (N,), the agent of each request; None: of none, which waits for nothing.
        parents: the agent that started an agent.
    """
    rows_of: dict[Hashable, list[int]] = {}
    for row, agent in enumerate(agents):
        if agent is not None:
            rows_of.setdefault(agent, []).append(row)
    awaited: list[list[int]] = [[] for _ in agents]
    ended: dict[Hashable, list[tuple[float, int]]] = {}
    alongside: dict[int, int] = {}
    for agent, rows in rows_of.items():
        ends: list[tuple[float, int]] = []
        for row in rows:
            before = _last_ended(ends, float(start_s[row]), row)
            if before is not None:
                awaited[row].append(before)
            elif row != rows[0]:
                alongside[row] = rows[0]
            insort(ends, (float(end_s[row]), row))
        ended[agent] = ends
    for agent in rows_of:
        if parents.get(agent) in rows_of:
            _branch(agent, rows_of, ended, parents, awaited, alongside, start_s)
    for row in sorted(alongside):
        awaited[row].extend(
            each for each in awaited[alongside[row]] if each not in awaited[row] and each < row
        )
    delay_s = np.zeros(len(agents))
    for row, others in enumerate(awaited):
        if others:
            delay_s[row] = max(0.0, float(start_s[row]) - max(float(end_s[other]) for other in others))
    return Waits.of(awaited, delay_s)


def _branch(
    agent: Hashable,
    rows_of: Mapping[Hashable, list[int]],
    ended: Mapping[Hashable, list[tuple[float, int]]],
    parents: Mapping[Hashable, Hashable],
    awaited: list[list[int]],
    alongside: dict[int, int],
    start_s: FloatArray,
) -> None:
    """Lets a sub-agent's first request wait for its parent, and its parent go on after its end."""
    rows, parent = rows_of[agent], parents[agent]
    source = _last_ended(ended[parent], float(start_s[rows[0]]), rows[0])
    if source is not None:
        awaited[rows[0]].append(source)
    elif rows_of[parent][0] < rows[0]:
        alongside[rows[0]] = rows_of[parent][0]
    end_s, last = ended[agent][-1]
    for row in rows_of[parent]:
        if row > last and float(start_s[row]) + _TOLERANCE_S >= end_s:
            if last not in awaited[row]:
                awaited[row].append(last)
            break


def _last_ended(ends: list[tuple[float, int]], start_s: float, row: int) -> int | None:
    """The row that ended last before a time, of those before a row."""
    place = bisect_right(ends, (start_s + _TOLERANCE_S, math.inf))
    return next((other for _, other in reversed(ends[:place]) if other < row), None)
