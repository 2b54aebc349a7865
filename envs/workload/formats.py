"""Trace files: reading the public formats, writing our own.

* Ours: CSV or parquet with ``arrival_s, input_tokens, output_tokens`` and, optionally, ``max_output_tokens``,
  ``predicted_tokens``, ``priority``, ``class``, ``model``, ``region`` and ``hash_ids``.
* Azure: CSV with ``TIMESTAMP, ContextTokens, GeneratedTokens``.
* BurstGPT: CSV with ``Timestamp`` (seconds), ``Request tokens, Response tokens``; the other columns are not read.
* Mooncake: JSON Lines with ``timestamp`` (milliseconds), ``input_length, output_length`` and, optionally,
  ``hash_ids``.

Rows in messages count from 0 after the header. Times count from the first request, which must come first.
Outputs of 0 tokens (requests that failed or were aborted) become 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from serving_gym.envs.workload.schema import (
    DEFAULT_HASH_BLOCK_TOKENS,
    FloatArray,
    OffsetArray,
    TokenArray,
    Workload,
)

_METADATA_KEY = b"serving_gym"
_OPTIONAL_COLUMNS = ("max_output_tokens", "predicted_tokens", "priority")
_NAMED_COLUMNS = {
    "class": "classes",
    "model": "models",
    "region": "regions",
}  # columns of names, and of which
_READABLE = "CSV (ours, Azure, BurstGPT), parquet (ours) and JSON Lines (Mooncake)"


def load_file(path: str | Path) -> Workload:
    """Reads a trace file in any of the formats above.

    Args:
        path: ``.csv``, ``.csv.gz``, ``.parquet`` or ``.jsonl``.

    Raises:
        ValueError: no such file, a format that is not read, or a malformed entry; names file, row and column.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"trace file {file} does not exist")
    kind = "".join(file.suffixes[-2:]) if file.suffix == ".gz" else file.suffix
    try:
        if kind == ".parquet":
            return _from_parquet(file)
        if kind in (".csv", ".csv.gz"):
            return _from_csv(file)
        if kind == ".jsonl":
            return _from_mooncake(file)
    except _MalformedError as error:
        raise ValueError(f"{file}: {error}") from error
    raise ValueError(f"{file}: cannot read {kind or 'files without a suffix'!r}; readable: {_READABLE}")


def write_trace(workload: Workload, path: str | Path) -> Path:
    """Writes a workload in our own format; reading it back gives an equal workload.

    A CSV drops name, provenance and block size; its ``hash_ids`` are separated by blanks.

    Args:
        workload: what to write.
        path: ``.csv`` or ``.parquet``; folders are made.

    Raises:
        ValueError: another suffix.
    """
    file = Path(path)
    if file.suffix not in (".csv", ".parquet"):
        raise ValueError(f"cannot write {file}: the name must end in .csv or .parquet")
    file.parent.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Any] = {
        "arrival_s": workload.arrival_s,
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "max_output_tokens": workload.max_output_tokens,
        **({} if workload.predicted_tokens is None else {"predicted_tokens": workload.predicted_tokens}),
        "priority": workload.priority,
        **{
            column: np.array(getattr(workload, names), dtype=object)[getattr(workload, f"{column}_id")]
            for column, names in _NAMED_COLUMNS.items()
            if column == "class" or getattr(workload, names) != ("",)
        },
    }
    if file.suffix == ".csv":
        if workload.hash_ids is not None and workload.hash_offsets is not None:
            rows = np.split(workload.hash_ids, workload.hash_offsets[1:-1])
            columns["hash_ids"] = [" ".join(map(str, row)) for row in rows]
        pd.DataFrame(columns).to_csv(file, index=False)
        return file
    if workload.hash_ids is not None and workload.hash_offsets is not None:
        columns["hash_ids"] = pa.LargeListArray.from_arrays(workload.hash_offsets, workload.hash_ids)
    about = {
        "name": workload.name,
        "provenance": workload.provenance,
        "classes": workload.classes,
        "hash_block_tokens": workload.hash_block_tokens,
    }
    table = pa.table(columns).replace_schema_metadata({_METADATA_KEY: json.dumps(about).encode()})
    pq.write_table(table, file, compression="zstd")
    return file


class _MalformedError(Exception):
    """What is wrong inside a file; the file's name is put before it."""


def _from_parquet(file: Path) -> Workload:
    try:
        table = pq.read_table(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise _MalformedError(f"is not a parquet file ({str(error).splitlines()[0]})") from error
    about = json.loads((table.schema.metadata or {}).get(_METADATA_KEY, b"{}"))
    hashes = table.column("hash_ids").combine_chunks() if "hash_ids" in table.column_names else None
    frame = table.drop_columns(["hash_ids"]).to_pandas() if hashes is not None else table.to_pandas()
    return _from_frame(file, frame, None if hashes is None else _arrow_blocks(hashes), about)


def _from_csv(file: Path) -> Workload:
    try:
        frame = pd.read_csv(file, skipinitialspace=True, low_memory=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise _MalformedError(f"is not a table ({str(error).strip()})") from error
    if "TIMESTAMP" in frame:
        return _from_azure(file, frame)
    if "Request tokens" in frame:
        return _from_burstgpt(file, frame)
    hashes = _csv_blocks(frame) if "hash_ids" in frame else None
    return _from_frame(file, frame, hashes, {})


def _from_frame(
    file: Path, frame: pd.DataFrame, hashes: tuple[OffsetArray, TokenArray] | None, about: dict[str, Any]
) -> Workload:
    """Our own columns. Times are kept as they are."""
    lengths_only = "arrival_s" not in frame and any("token" in str(column).lower() for column in frame)
    if lengths_only:
        raise _MalformedError(
            "holds lengths without arrival times (such as the ShareGPT or arXiv length files): "
            "a workload needs a column 'arrival_s'"
        )
    optional: dict[str, Any] = {
        column: _whole(frame, column) for column in _OPTIONAL_COLUMNS if column in frame
    }
    for column, names in _NAMED_COLUMNS.items():
        if column in frame:
            known, ids = _names(frame[column], about.get(names, ()))
            optional |= {names: known, f"{column}_id": ids}
    return _checked(
        Workload(
            arrival_s=_numbers(frame, "arrival_s"),
            input_tokens=_whole(frame, "input_tokens"),
            output_tokens=np.maximum(_whole(frame, "output_tokens", least=0), 1),
            **optional,
            hash_offsets=None if hashes is None else hashes[0],
            hash_ids=None if hashes is None else hashes[1],
            hash_block_tokens=about.get("hash_block_tokens", DEFAULT_HASH_BLOCK_TOKENS),
            name=about.get("name", file.stem),
            provenance=about.get("provenance", f"file {file.name}"),
        )
    )


def _from_azure(file: Path, frame: pd.DataFrame) -> Workload:
    time = pd.to_datetime(frame["TIMESTAMP"], format="ISO8601", utc=True, errors="coerce")
    _refuse(frame, "TIMESTAMP", time.isna().to_numpy(), "is not a date and time")
    nanoseconds = time.astype("datetime64[ns, UTC]").astype(np.int64).to_numpy()
    arrival_s = (nanoseconds - nanoseconds[:1]) / 1e9
    return _public(file, frame, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), arrival_s)


def _from_burstgpt(file: Path, frame: pd.DataFrame) -> Workload:
    arrival_s = _numbers(frame, "Timestamp")
    return _public(file, frame, ("Timestamp", "Request tokens", "Response tokens"), arrival_s)


def _from_mooncake(file: Path) -> Workload:
    rows = []
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise _MalformedError(
                    f"row {number} is not JSON ({error.msg} at character {error.pos})"
                ) from error
            if not isinstance(row, dict):
                raise _MalformedError(f"row {number} is not a JSON object")
            rows.append(row)
    frame = pd.DataFrame({key: [row.get(key) for row in rows] for key in (rows[0] if rows else {})})
    hashes = None
    if "hash_ids" in frame:
        hashes = _list_blocks(frame["hash_ids"].tolist())
    arrival_s = _numbers(frame, "timestamp") / 1e3
    return _public(file, frame, ("timestamp", "input_length", "output_length"), arrival_s, hashes)


def _public(
    file: Path,
    frame: pd.DataFrame,
    columns: tuple[str, str, str],
    arrival_s: FloatArray,
    hashes: tuple[OffsetArray, TokenArray] | None = None,
) -> Workload:
    """Columns of a publisher (time, prompt, output); times are counted from the first row."""
    time, prompt, output = columns
    earlier = np.diff(arrival_s, prepend=arrival_s[:1]) < 0
    _refuse(frame, time, earlier, "is earlier than the row before: requests must be sorted by arrival")
    return _checked(
        Workload(
            arrival_s=arrival_s - arrival_s[:1],
            input_tokens=_whole(frame, prompt, least=1),
            output_tokens=np.maximum(_whole(frame, output, least=0), 1),
            hash_offsets=None if hashes is None else hashes[0],
            hash_ids=None if hashes is None else hashes[1],
            name=file.stem,
            provenance=f"file {file.name}",
        )
    )


def _checked(workload: Workload) -> Workload:
    try:
        return workload.validate()
    except ValueError as error:
        raise _MalformedError(str(error)) from error


def _numbers(frame: pd.DataFrame, column: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    if column not in frame:
        raise _MalformedError(f"has no column {column!r}; it has {[str(name) for name in frame.columns]}")
    values = pd.to_numeric(frame[column], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    _refuse(frame, column, ~np.isfinite(values), "is not a number")
    return values


def _whole(frame: pd.DataFrame, column: str, least: int | None = None) -> TokenArray:
    values = _numbers(frame, column)
    _refuse(frame, column, values != np.floor(values), "is not a whole number")
    _refuse(frame, column, np.abs(values) > np.iinfo(np.int32).max, "is too large")
    if least is not None:
        _refuse(frame, column, values < least, f"is below {least}")
    return values.astype(np.int32)


def _refuse(frame: pd.DataFrame, column: str, bad: np.ndarray[Any, np.dtype[np.bool_]], why: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        value = frame[column].iloc[row]
        shown = "a missing value" if value is None or value != value else repr(str(value))
        raise _MalformedError(f"row {row}, column {column!r}: {shown} {why}")


def _names(column: pd.Series, known: list[str] | tuple[str, ...]) -> tuple[tuple[str, ...], TokenArray]:
    """Names in the order of the writer, else of first appearance, and the index of each row."""
    labels = column.astype(str)
    names = tuple(dict.fromkeys([*known, *labels.unique()]))
    codes = pd.Categorical(labels, categories=list(names)).codes
    return names, np.asarray(codes, dtype=np.int32)


def _arrow_blocks(column: Any) -> tuple[OffsetArray, TokenArray]:
    """Blocks of a parquet list column; a null row has none."""
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    ids = column.flatten().to_numpy(zero_copy_only=False)
    return _offsets(lengths), ids.astype(np.int32)


def _csv_blocks(frame: pd.DataFrame) -> tuple[OffsetArray, TokenArray]:
    return _list_blocks([text.split() for text in frame["hash_ids"].fillna("").astype(str)])


def _list_blocks(rows: list[Any]) -> tuple[OffsetArray, TokenArray]:
    """Blocks of one list per row; None has none."""
    ids: list[int] = []
    lengths = np.zeros(len(rows), dtype=np.int64)
    for number, row in enumerate(rows):
        try:
            own = [int(block) for block in row or ()]
        except (TypeError, ValueError):
            raise _MalformedError(
                f"row {number}, column 'hash_ids': {row!r} is not a list of whole numbers"
            ) from None
        lengths[number] = len(own)
        ids += own
    return _offsets(lengths), np.array(ids, dtype=np.int32)


def _offsets(lengths: Any) -> OffsetArray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
