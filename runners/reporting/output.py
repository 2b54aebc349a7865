"""Writing results so that a reader never meets half a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from serving_gym.envs.interface.metrics import to_jsonable


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` fill a file beside `path` and moves it there once it is whole."""
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
    """Writes strict JSON; null means infinite, and what is undefined is left out (`interface.metrics.to_jsonable`)."""
    write_text(path, json.dumps(to_jsonable(value), indent=indent, allow_nan=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object a line."""
    write_text(path, "".join(json.dumps(to_jsonable(row), allow_nan=False) + "\n" for row in rows))


def write_parquet(path: Path, frame: pd.DataFrame) -> None:
    """Writes a table."""
    write_atomically(path, lambda partial: frame.to_parquet(partial, index=False))
