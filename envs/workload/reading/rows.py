"""From the columns of a file, whatever its format, to a workload and the report on it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.workload.ragged import gather_rows, offsets_of
from serving_gym.envs.workload.reading.blocks import Blocks, chained
from serving_gym.envs.workload.reading.context import MalformedError, Reading, counted
from serving_gym.envs.workload.reading.report import TraceReport, make_report
from serving_gym.envs.workload.reading.tables import Table
from serving_gym.envs.workload.reading.times import shortened
from serving_gym.envs.workload.schema import FloatArray, OffsetArray, TokenArray, Workload


@dataclass(frozen=True)
class Waits:
    """What requests wait for.

    Attributes:
        offsets: (N + 1,); row ``i`` waits for ``after[offsets[i]:offsets[i + 1]]``, all of them earlier rows.
        after: rows.
        delay_s: (N,), seconds after the last of those answers.
    """

    offsets: OffsetArray
    after: NDArray[np.int64]
    delay_s: FloatArray

    @property
    def waiting(self) -> NDArray[np.bool_]:
        """Rows that wait, (N,)."""
        return np.asarray(np.diff(self.offsets) > 0)

    @staticmethod
    def of(awaited: list[list[int]], delay_s: FloatArray) -> Waits:
        """From a list of rows for each row."""
        flat = [row for rows in awaited for row in rows]
        return Waits(offsets_of([len(rows) for rows in awaited]), np.array(flat, np.int64), delay_s)

    def none(self) -> bool:
        """Whether nobody waits."""
        return self.after.size == 0


@dataclass
class Rows:
    """Requests of a file.

    Attributes:
        format: name of the format.
        arrival_s: (N,), seconds on the clock of a run; of requests that wait, anything.
        input_tokens: (N,), at least 1.
        output_tokens: (N,), 0 where a request failed.
        blocks: prefix ids; None: the file has none.
        sessions: (N,), number of the session, -1 for none; None: the file has none.
        waits: what requests wait for; None: nobody waits.
        sort: whether rows that are out of order are sorted; else they are refused.
        time_column: name of the times, for messages.
        others: further columns of the workload, by its field.
    """

    format: str
    arrival_s: FloatArray
    input_tokens: TokenArray
    output_tokens: TokenArray
    blocks: Blocks | None = None
    sessions: TokenArray | None = None
    waits: Waits | None = None
    sort: bool = False
    time_column: str = "arrival_s"
    others: dict[str, Any] = field(default_factory=dict)


def assembled(reading: Reading, table: Table, rows: Rows) -> tuple[Workload, TraceReport]:
    """The workload and its report.

    Raises:
        MalformedError: rows out of order, or anything else that a workload refuses.
    """
    count = len(rows.arrival_s)
    if not count:
        raise MalformedError("is empty: it holds no requests")
    zero = int((rows.output_tokens < 1).sum())
    if zero:
        became = "becomes" if zero == 1 else "become"
        reading.note(
            f"{counted(zero, 'answer')} of 0 tokens {became} 1 (requests that failed or were aborted)"
        )
    others = dict(rows.others)
    if rows.blocks is not None:
        ids, told = chained(rows.blocks.offsets, rows.blocks.ids)
        if told and rows.blocks.own:
            ids = rows.blocks.ids
            reading.warn(
                "hash_ids: an id follows different ids in different rows, where equal ids must mean equal prompts "
                "up to there; prefix caching will refuse it"
            )
        elif told:
            reading.note("prefix ids that follow different ids are told apart by what is before them")
        others |= {
            "hash_offsets": rows.blocks.offsets,
            "hash_ids": ids,
            "hash_block_tokens": rows.blocks.tokens,
        }
    workload = _ordered(reading, table, rows, others)
    try:
        workload.validate()
    except ValueError as error:
        if reading.strict or not reading.problems:
            raise MalformedError(str(error)) from error
        raise MalformedError("has no further checks until these are mended") from error
    unused = tuple(str(name) for name in table.columns if name not in table.used)
    return workload, make_report(
        str(reading.path), f"{rows.format} ({reading.container})", workload, reading.times, unused, reading.notes,
        reading.warnings,
    )  # fmt: skip


def _ordered(reading: Reading, table: Table, rows: Rows, others: dict[str, Any]) -> Workload:
    """The workload with its rows in order of their earliest arrivals."""
    count = len(rows.arrival_s)
    roots = np.ones(count, bool) if rows.waits is None else ~rows.waits.waiting
    order = np.arange(count)
    times = np.where(roots, rows.arrival_s, 0.0)
    earlier = np.zeros(count, bool)
    at = np.flatnonzero(roots)
    earlier[at[1:]] = np.diff(times[at]) < 0
    if earlier.any() and not rows.sort and rows.sessions is None:
        names = table.columns.get(rows.time_column, times)
        reading.refuse(
            table, rows.time_column, names, earlier,
            "is earlier than the row before: requests must be sorted by arrival",
        )  # fmt: skip
        times[at] = np.maximum.accumulate(times[at])
    elif earlier.any() and (rows.waits is None or rows.waits.none()):
        order = np.argsort(times, kind="stable")
    whole = times
    times = _cut(reading, table, times, roots)
    made: dict[str, Any] = {} if rows.sessions is None else {"session_id": rows.sessions}
    if reading.options.max_gap_s is None and (whole != times).any():
        made["skipped_s"] = np.where(roots, whole - times, 0.0)
    workload = Workload(
        arrival_s=times,
        input_tokens=rows.input_tokens,
        output_tokens=np.maximum(rows.output_tokens, 1),
        **{"name": _stem(reading.path), "provenance": f"file {reading.path.name}", **made, **others},
    )
    if rows.waits is not None and not rows.waits.none():
        waiting = replace(
            workload, after_offsets=rows.waits.offsets, after=rows.waits.after.astype(np.int32),
            delay_s=np.where(roots, 0.0, rows.waits.delay_s),
        )  # fmt: skip
        return _rising(waiting.planned())
    return _rising(workload if (order == np.arange(count)).all() else workload.take(order))


def _rising(workload: Workload) -> Workload:
    """The same workload, in which a request that waits has the idle time left out of those before it."""
    if workload.skipped_s is None:
        return workload
    return replace(workload, skipped_s=np.maximum.accumulate(workload.skipped_s))


def _stem(path: Path) -> str:
    """Name of a file without its endings."""
    return path.with_suffix("").stem if path.suffix in (".gz", ".zst") else path.stem


def _cut(reading: Reading, table: Table, times: FloatArray, roots: NDArray[np.bool_]) -> FloatArray:
    """Times with idle gaps cut; they are looked at in order of arrival."""
    at = np.flatnonzero(roots)
    by_time = at[np.argsort(times[at], kind="stable")]
    short = shortened(reading, times[by_time], np.ones(len(by_time), bool), _Places(table, by_time))
    cut = times.copy()
    cut[by_time] = short
    return cut


@dataclass(frozen=True)
class _Places:
    """Names of rows in another order."""

    table: Table
    order: NDArray[np.intp]

    def place(self, row: int) -> str:
        return self.table.place(int(self.order[row]))


def in_order(waits: Waits, order: NDArray[np.intp]) -> Waits:
    """The same for rows in another order, which must keep each after what it waits for."""
    offsets, after = gather_rows(np.diff(waits.offsets), waits.after, order)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return Waits(offsets, number[after], waits.delay_s[order])
