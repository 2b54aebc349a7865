"""Writes result files atomically."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from operator import is_
from pathlib import Path
from typing import Any

import pandas as pd

from serving_gym.envs.interface.metrics import is_nan, to_jsonable


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` fill a temporary file and moves it to `path` when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file."""
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any, indent: int | None = 1) -> None:
    """Writes strict JSON; null means infinite, undefined values are left out (`interface.metrics.to_jsonable`)."""
    write_text(path, json.dumps(to_jsonable(value), indent=indent, allow_nan=False) + "\n")


def write_json_columns(path: Path, columns: Mapping[str, Any]) -> None:
    """Writes the same text as `write_json(path, columns, indent=None)`, but encodes each list as a whole.

    Args:
        path: File to write.
        columns: Metrics, and lists with one entry per request, by name.
    """
    entries = (
        f"{json.dumps(name)}: {_encoded(value)}" for name, value in columns.items() if not is_nan(value)
    )
    write_text(path, "{" + ", ".join(entries) + "}\n")


def _encoded(value: Any) -> str:
    if isinstance(value, list) and value and all(type(row) is list for row in value):
        return "[" + ", ".join(map(_encoded_row, value)) + "]"
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):  # infinity, NaN or a NumPy value somewhere in it
        return json.dumps(to_jsonable(value), allow_nan=False)


def _encoded_row(row: list[Any]) -> str:
    """A list inside a list; a row of one repeated number is encoded once."""
    if row and isinstance(row[0], float) and math.isfinite(row[0]) and all(map(is_, row, repeat(row[0]))):
        return "[" + ", ".join([repr(row[0])] * len(row)) + "]"
    return _encoded(row)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object per line."""
    write_text(path, "".join(json.dumps(to_jsonable(row), allow_nan=False) + "\n" for row in rows))


def write_parquet(path: Path, frame: pd.DataFrame) -> None:
    """Writes a table."""
    write_atomically(path, lambda partial: frame.to_parquet(partial, index=False))
