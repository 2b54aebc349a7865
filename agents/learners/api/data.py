"""Tables of sampled states for training, and their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.agents.learners.api.counterfactuals import Batch, padded

_COLUMNS = ("states", "actions", "returns", "squares")
_PLAIN: dict[str, Any] = {"chosen": np.int64, "kinds": np.str_}


@dataclass(frozen=True)
class Table:
    """States (N, S), actions (N, K, F), gains (N, K), and valid actions (N, K)."""

    states: NDArray[np.float32]
    actions: NDArray[np.float32]
    gains: NDArray[np.float32]
    valid: NDArray[np.bool_]

    def some(self, rows: NDArray[np.bool_]) -> Table:
        """Some of the states."""
        return Table(self.states[rows], self.actions[rows], self.gains[rows], self.valid[rows])


def states_of(batches: Sequence[Batch]) -> NDArray[np.float32]:
    """(N, S), the states of all batches."""
    return np.stack([state for batch in batches for state in batch.states])


def actions_of(batches: Sequence[Batch]) -> NDArray[np.float32]:
    """(N, K, F), the actions tried in each, K the most of them; zeros where there were fewer."""
    rows = [row for batch in batches for row in batch.actions]
    actions = np.zeros((len(rows), max(len(row) for row in rows), rows[0].shape[1]), np.float32)
    for filled, row in zip(actions, rows, strict=True):
        filled[: len(row)] = row
    return actions


def in_spreads(
    values: Sequence[NDArray[np.floating[Any]]], kinds: NDArray[np.str_], widest: int
) -> NDArray[np.float32]:
    """(N, widest), values divided by their standard deviation among the states of their kind; NaN where missing.

    Args:
        values: (K,) each, K at most `widest`; NaN counts for nothing.
        kinds: (N,), of each state.
        widest: Columns.
    """
    table = padded(values, widest).astype(np.float32)
    for kind in np.unique(kinds):
        table[kinds == kind] /= float(np.nanstd(table[kinds == kind])) or 1.0
    return table


def write_batches(batches: Sequence[Batch], path: Path) -> None:
    """Writes batches, as `read_batches` reads them."""
    arrays = {
        f"{i}/{name}/{k}": value
        for i, batch in enumerate(batches)
        for name in _COLUMNS
        for k, value in enumerate(_packed(getattr(batch, name)))
    } | {
        f"{i}/{name}": np.array(getattr(batch, name), dtype)
        for i, batch in enumerate(batches)
        for name, dtype in _PLAIN.items()
    }
    np.savez(path, **arrays)  # type: ignore[arg-type]


def read_batches(path: Path) -> list[Batch]:
    """The batches in a file."""
    with np.load(path) as data:
        number = len({name.partition("/")[0] for name in data})
        return [_read_batch(data, i) for i in range(number)]


def _packed(rows: list[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Arrays of different length one behind the other, and their lengths (0 for single vectors)."""
    if not rows:
        return np.zeros(0), np.zeros(0, np.int64)
    return np.concatenate(rows), np.array([len(row) for row in rows], np.int64)


def _read_batch(data: Mapping[str, NDArray[Any]], i: int) -> Batch:
    columns: dict[str, list[Any]] = {}
    for name in _COLUMNS:
        lengths = data[f"{i}/{name}/1"]
        ends = np.cumsum(lengths)[:-1]
        columns[name] = list(np.split(data[f"{i}/{name}/0"], ends)) if len(lengths) else []
    return Batch(**columns, **{name: data[f"{i}/{name}"].tolist() for name in _PLAIN})
