"""Reads a trace file: its content says which format it is."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from serving_gym.envs.workload.reading.aiperf import is_aiperf, rows_of_aiperf
from serving_gym.envs.workload.reading.context import MalformedError, Problem, Reading
from serving_gym.envs.workload.reading.dynamo import is_dynamo, rows_of_dynamo
from serving_gym.envs.workload.reading.files import PARQUET, check_file, text_of, unpacked
from serving_gym.envs.workload.reading.mooncake import is_mooncake, rows_of_mooncake
from serving_gym.envs.workload.reading.options import ReadOptions
from serving_gym.envs.workload.reading.own import rows_of_table
from serving_gym.envs.workload.reading.report import TraceReport
from serving_gym.envs.workload.reading.rows import Rows, assembled
from serving_gym.envs.workload.reading.tables import (
    ALIASES,
    Table,
    records_of,
    table_of_csv,
    table_of_parquet,
    table_of_records,
)
from serving_gym.envs.workload.reading.vllm_bench import is_vllm_bench, rows_of_vllm_bench
from serving_gym.envs.workload.reading.weka import is_weka, rows_of_weka
from serving_gym.envs.workload.schema import Workload

READABLE = (
    "CSV, parquet and JSON Lines of our own, of Azure, BurstGPT, Mooncake, SageServe and ServeGen, Dynamo's and Weka's "
    "traces, and results of AIPerf and vllm bench"
)

Nested = tuple[
    Callable[[Mapping[str, Any]], bool], Callable[[Reading, list[dict[str, Any]]], tuple[Table, Rows]], str
]
_LOOKED_AT = 20
_NESTED: tuple[Nested, ...] = (
    (is_dynamo, rows_of_dynamo, "Dynamo request traces"),
    (is_aiperf, rows_of_aiperf, "AIPerf records"),
    (is_vllm_bench, rows_of_vllm_bench, "vllm bench results"),
    (is_weka, rows_of_weka, "Weka traces"),
)


@dataclass(frozen=True)
class Checked:
    """What is wrong with a file.

    Attributes:
        problems: refused entries, at most 20 of each kind.
        refused: number of refused entries of each kind, by column and reason.
        fatal: why the file could not be read to its end; None: it was.
        report: on the requests; None where the file could not be read.
    """

    problems: tuple[Problem, ...]
    refused: dict[tuple[str, str], int]
    fatal: str | None
    report: TraceReport | None

    @property
    def good(self) -> bool:
        """Whether the file can be played."""
        return not self.problems and self.fatal is None


def read_trace(path: str | Path, options: ReadOptions | None = None) -> tuple[Workload, TraceReport]:
    """Reads a trace file in any format of this package.

    Args:
        path: plain, gzip or zstd.
        options: what the user says about it.

    Raises:
        ValueError: no such file, a format that is not read, or a malformed entry; names file, row and column.
    """
    file = Path(path)
    check_file(file)
    try:
        return _read(Reading(file, options or ReadOptions()))
    except MalformedError as error:
        raise ValueError(f"{file}: {error}") from error


def load_file(path: str | Path) -> Workload:
    """The requests of a trace file; as :func:`read_trace`, without the report."""
    return read_trace(path)[0]


def check_trace(path: str | Path, options: ReadOptions | None = None) -> Checked:
    """Reads a trace file to its end and lists all that is wrong with it.

    Args:
        path: plain, gzip or zstd.
        options: what the user says about it.

    Raises:
        ValueError: no such file.
    """
    file = Path(path)
    check_file(file)
    reading = Reading(file, options or ReadOptions(), strict=False)
    fatal, report = None, None
    try:
        report = _read(reading)[1]
    except MalformedError as error:
        fatal = str(error)
    return Checked(tuple(reading.problems), dict(reading.refused), fatal, report)


def _read(reading: Reading) -> tuple[Workload, TraceReport]:
    try:
        with _without_collection():
            table, rows = _rows(reading)
        return assembled(reading, table, rows)
    except (pa.ArrowException, OverflowError, RecursionError, UnicodeError, MemoryError) as error:
        raise MalformedError(f"cannot be read ({type(error).__name__}: {str(error)[:200]})") from error


@contextmanager
def _without_collection() -> Iterator[None]:
    """Keeps Python from looking for garbage among the millions of objects of a large JSON file."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _rows(reading: Reading) -> tuple[Table, Rows]:
    content = unpacked(reading)
    if content.startswith(PARQUET):
        return _of_table(reading, table_of_parquet(reading, content))
    if reading.path.suffix == ".parquet":
        raise MalformedError("is not a parquet file (it does not begin as one)")
    text = text_of(reading, content)
    if not text.strip():
        raise MalformedError("is empty: it holds no requests (is not a table)")
    if not text.lstrip().startswith(("{", "[")):
        return _of_table(reading, table_of_csv(reading, text))
    records = records_of(reading, text)
    if not records:
        raise MalformedError("is empty: it holds no requests")
    for fits, rows_of, name in _NESTED:
        if any(fits(record) for record in records[:_LOOKED_AT]):
            if reading.options.columns:
                raise MalformedError(f"holds {name}, whose fields are fixed: columns is for tables")
            return rows_of(reading, records)
    _refuse_others(records[0])
    table = table_of_records(records)
    return (table, rows_of_mooncake(reading, table)) if is_mooncake(table) else _of_table(reading, table)


def _of_table(reading: Reading, table: Table) -> tuple[Table, Rows]:
    needed = {alias for own in ("arrival_s", "input_tokens", "output_tokens") for alias in ALIASES[own]}
    if not needed & set(table.known) and not reading.options.columns:
        shown = [name[:40] for name in list(table.columns)[:10]]
        raise MalformedError(
            f"is no trace that can be read: its columns are {shown}; readable: {READABLE}; "
            "columns={arrival_s: NAME, ...} says which columns are ours"
        )
    if not table.num_rows:
        raise MalformedError("is empty: it holds no requests")
    return table, rows_of_table(reading, table)


def _refuse_others(record: Mapping[str, Any]) -> None:
    """Raises MalformedError for known JSON that holds no requests with times."""
    if "conversations" in record:
        raise MalformedError(
            "is a list of conversations without arrival times: make a workload of them with 'python -m runners.traces "
            "convert path=FILE out=FILE.parquet'"
        )
