"""Heaps of alarms: what is due at known times, the earliest first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.compiled import compiled, int64


@compiled
def _comes_first(heap: NDArray[np.void], a: int, b: int) -> bool:
    """Whether one alarm is due before another: of equal ones the lower row, and of one row the lower limit."""
    first, second = heap[a], heap[b]
    if first.due_ps != second.due_ps:
        return first.due_ps < second.due_ps
    if first.row != second.row:
        return first.row < second.row
    return first.limit < second.limit


@compiled
def _swap(heap: NDArray[np.void], a: int, b: int) -> None:
    first, second = heap[a], heap[b]
    first.due_ps, second.due_ps = int64(second.due_ps), int64(first.due_ps)
    first.row, second.row = int64(second.row), int64(first.row)
    first.slot, second.slot = int64(second.slot), int64(first.slot)
    first.limit, second.limit = int64(second.limit), int64(first.limit)


@compiled
def push(heap: NDArray[np.void], count: int, due_ps: int, row: int, slot: int, limit: int) -> None:
    """Adds an alarm to a heap that has `count` of them and room for one more."""
    i = count
    alarm = heap[i]
    alarm.due_ps, alarm.row, alarm.slot, alarm.limit = due_ps, row, slot, limit
    while i > 0 and _comes_first(heap, i, (i - 1) // 2):
        _swap(heap, i, (i - 1) // 2)
        i = (i - 1) // 2


@compiled
def pop(heap: NDArray[np.void], count: int) -> None:
    """Takes the first alarm out of a heap that has `count` of them."""
    last = count - 1
    _swap(heap, int64(0), last)
    i = int64(0)
    while True:
        child = 2 * i + 1
        if child >= last:
            return
        if child + 1 < last and _comes_first(heap, child + 1, child):
            child += 1
        if not _comes_first(heap, child, i):
            return
        _swap(heap, i, child)
        i = child
