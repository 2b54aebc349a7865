"""Writes a workload in our own format."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from serving_gym.envs.workload.reading.own import METADATA_KEY, NAMED_COLUMNS
from serving_gym.envs.workload.schema import Workload

_SUFFIXES = (".csv", ".parquet", ".jsonl")


def write_trace(workload: Workload, path: str | Path) -> Path:
    """Writes a workload in our own format; reading it back gives an equal workload.

    CSV and JSON Lines drop name and provenance, and number classes in order of appearance; in a CSV ``hash_ids`` and
    ``after`` are separated by blanks.

    Args:
        workload: what to write.
        path: ``.csv``, ``.parquet`` or ``.jsonl``; folders are made.

    Raises:
        ValueError: another suffix.
    """
    file = Path(path)
    if file.suffix not in _SUFFIXES:
        raise ValueError(
            f"cannot write {file}: the name must end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    columns = _columns(workload)
    if file.suffix == ".parquet":
        return _write_parquet(workload, columns, file)
    lists = {name: np.split(values, offsets[1:-1]) for name, (offsets, values) in _lists(workload).items()}
    if "hash_ids" in lists:
        columns["hash_block_tokens"] = np.full(len(workload), workload.hash_block_tokens)
    if file.suffix == ".csv":
        for name, rows in lists.items():
            columns[name] = [" ".join(map(str, row)) for row in rows]
        pd.DataFrame(columns).to_csv(file, index=False)
        return file
    plain = {name: np.asarray(values).tolist() for name, values in columns.items()}
    plain |= {name: [row.tolist() for row in rows] for name, rows in lists.items()}
    with file.open("w", encoding="utf-8") as out:
        for values in zip(*plain.values(), strict=True):
            out.write(
                json.dumps({k: None if v == math.inf else v for k, v in zip(plain, values, strict=True)})
                + "\n"
            )
    return file


def _columns(workload: Workload) -> dict[str, Any]:
    """Columns with one entry a row."""
    columns: dict[str, Any] = {
        "arrival_s": workload.arrival_s + (0.0 if workload.skipped_s is None else workload.skipped_s),
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "max_output_tokens": workload.max_output_tokens,
        **({} if workload.predicted_tokens is None else {"predicted_tokens": workload.predicted_tokens}),
        "priority": workload.priority,
    }
    for column, names in NAMED_COLUMNS.items():
        if column == "class" or getattr(workload, names) != ("",):
            columns[column] = np.array(getattr(workload, names), dtype=object)[
                getattr(workload, f"{column}_id")
            ]
    for column in ("session_id", "delay_s", "patience_s"):
        if getattr(workload, column) is not None:
            columns[column] = getattr(workload, column)
    return columns


def _lists(workload: Workload) -> dict[str, tuple[Any, Any]]:
    """Offsets and entries of the columns with a list a row."""
    lists = {
        "hash_ids": (workload.hash_offsets, workload.hash_ids),
        "after": (workload.after_offsets, workload.after),
    }
    return {name: (offsets, values) for name, (offsets, values) in lists.items() if offsets is not None}


def _write_parquet(workload: Workload, columns: dict[str, Any], file: Path) -> Path:
    for name, (offsets, values) in _lists(workload).items():
        columns[name] = pa.LargeListArray.from_arrays(offsets, values)
    about = {
        "name": workload.name,
        "provenance": workload.provenance,
        "classes": workload.classes,
        "hash_block_tokens": workload.hash_block_tokens,
    }
    table = pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(about).encode()})
    pq.write_table(table, file, compression="zstd")
    return file
