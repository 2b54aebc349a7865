"""Ids of prefix blocks: any whole numbers or texts, numbered densely where they do not fit 32 bits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving_gym.envs.workload.ragged import offsets_of
from serving_gym.envs.workload.reading.context import Reading, counted
from serving_gym.envs.workload.reading.tables import Table, is_missing
from serving_gym.envs.workload.schema import DEFAULT_HASH_BLOCK_TOKENS, OffsetArray, TokenArray

_SIZES = tuple(2**power for power in range(12, 2, -1))
_FITS = 0.95  # share of rows that a block size must fit to be inferred


@dataclass(frozen=True)
class Blocks:
    """Prefix blocks of all rows.

    Attributes:
        offsets: (N + 1,); row ``i`` owns ``ids[offsets[i]:offsets[i + 1]]``.
        ids: block ids.
        tokens: tokens that one id covers.
        own: whether they are in our own columns, in which an id names all before it as well, and are kept as they are.
    """

    offsets: OffsetArray
    ids: TokenArray
    tokens: int = DEFAULT_HASH_BLOCK_TOKENS
    own: bool = False


def lists_of(reading: Reading, table: Table, name: str) -> tuple[OffsetArray, NDArray[Any]]:
    """A column of lists: of JSON, of parquet, or texts with entries between blanks or commas; missing: none.

    Returns:
        Offsets (N + 1,) and the entries row after row.
    """
    raw = table[name]
    if not isinstance(raw, np.ndarray):
        lengths = raw.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        entries = raw.flatten()
        values = (
            entries.to_numpy(zero_copy_only=False)
            if entries.null_count == 0
            else _objects(entries.to_pylist())
        )
        return offsets_of(lengths), values
    if raw.dtype.kind in "iu":
        return np.arange(len(raw) + 1, dtype=np.int64), raw
    rows: list[Any] = [None if gone else value for value, gone in zip(raw, _missing_lists(raw), strict=True)]
    for number, row in enumerate(rows):
        if isinstance(row, str):
            rows[number] = re.sub(r"[\[\]\",']", " ", row).split()
        elif row is None:
            rows[number] = ()
        elif isinstance(row, float) and row.is_integer():
            rows[number] = (int(row),)
        elif isinstance(row, int) and not isinstance(row, bool):
            rows[number] = (row,)
    if set(map(type, rows)) <= {list, tuple}:
        entries = list(chain.from_iterable(rows))
        if set(map(type, entries)) <= {int, str}:
            return offsets_of(np.fromiter(map(len, rows), np.int64, len(rows))), _objects(entries)
    bad = np.fromiter((not isinstance(row, list | tuple) for row in rows), bool, len(rows))
    bad |= np.fromiter(
        (not bad[i] and not all(map(_is_id, row)) for i, row in enumerate(rows)), bool, len(rows)
    )
    reading.refuse(table, name, raw, bad, "is not a list of whole numbers or names")
    for refused in np.flatnonzero(bad).tolist():
        rows[refused] = ()
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return offsets_of(lengths), _objects(chain.from_iterable(rows))


def blocks_of(
    reading: Reading, table: Table, name: str, scope: NDArray[np.int64] | None = None
) -> tuple[OffsetArray, TokenArray]:
    """Prefix ids of a column.

    Args:
        reading: its state.
        table: the file.
        name: column, which is there.
        scope: (N,), rows of different scopes share no block; None: all are of one.
    """
    offsets, entries = lists_of(reading, table, name)
    return offsets, dense_ids(entries, None if scope is None else np.repeat(scope, np.diff(offsets)))


def dense_ids(entries: NDArray[Any], scope: NDArray[np.int64] | None = None) -> TokenArray:
    """Ids as 32-bit numbers: as they are where they fit, else numbered in order of appearance.

    Args:
        entries: (B,), numbers or texts.
        scope: (B,), ids of different scopes are different; None: all are of one.
    """
    values: Any = entries
    if entries.dtype == object:
        listed = entries.tolist()
        if set(map(type, listed)) <= {int}:
            values = _as_whole(listed, entries)
        else:
            texts = [str(int(e)) if isinstance(e, float) else str(e) for e in listed]
            whole = all(re.fullmatch(r"\d{1,18}", text) for text in texts)
            values = np.array(texts, dtype=np.int64) if whole else np.array(texts, dtype=object)
    elif entries.dtype.kind == "f":
        values = (
            entries.astype(np.int64) if entries.size == 0 or (entries == np.floor(entries)).all() else entries
        )
    if (
        scope is None
        and values.dtype.kind in "iu"
        and (values.size == 0 or (values.min() >= 0 and values.max() <= np.iinfo(np.int32).max))
    ):
        return np.asarray(values, dtype=np.int32)
    codes = pd.factorize(values)[0]
    if scope is not None:
        codes = pd.factorize(scope * (int(codes.max(initial=0)) + 1) + codes)[0]
    return np.asarray(codes, dtype=np.int32)


def chained(offsets: OffsetArray, ids: TokenArray) -> tuple[TokenArray, bool]:
    """Ids that name a block and all before it, as prefix caches need them.

    Where an id follows different ids in two rows, it names a block's own content; it is then told apart by what is
    before it.

    Returns:
        The ids, and whether any had to be told apart.
    """
    counts = np.diff(offsets)
    inside = np.arange(ids.size) - np.repeat(offsets[:-1], counts)
    _, first_seen, name = np.unique(ids, return_index=True, return_inverse=True)
    before = np.where(inside > 0, np.concatenate([[-1], name[:-1]]) if name.size else name, -1)
    if ids.size == 0 or (before == before[first_seen][name]).all():
        return ids, False
    told = np.zeros(ids.size, np.int64)
    next_id, most = 0, int(name.max()) + 1
    for place in range(int(counts.max())):
        rows = np.flatnonzero(counts > place)
        at = offsets[:-1][rows] + place
        parent = told[at - 1] + 1 if place else np.zeros(rows.size, np.int64)
        pairs, codes = np.unique(parent * most + name[at], return_inverse=True)
        told[at] = codes + next_id
        next_id += pairs.size
    return told.astype(np.int32), True


def check_counts(
    reading: Reading,
    table: Table,
    name: str,
    blocks: Blocks,
    prompt: TokenArray,
    least: NDArray[np.int64],
    most: NDArray[np.int64],
) -> None:
    """Warns once where the number of ids does not fit the length.

    Args:
        reading: its state.
        table: the file.
        name: the column.
        blocks: the ids.
        prompt: (N,), tokens.
        least: (N,), ids that a row with ids must have.
        most: (N,), ids that it may have.
    """
    counts = np.diff(blocks.offsets)
    bad = (counts > 0) & ((counts > most) | (counts < least))
    if bad.any():
        row = int(np.argmax(bad))
        fit = int(blocks_in(prompt[row : row + 1], blocks.tokens)[0])
        rows = f"{int(bad.sum())} of {int((counts > 0).sum())} rows with ids"
        given = counted(int(counts[row]), "block")
        reading.warn(
            f"{table.place(row)}, column {name!r}: {given} do not fit {prompt[row]} tokens, which fill {fit} of "
            f"{blocks.tokens} tokens ({rows})"
        )


def blocks_in(tokens: NDArray[Any], size: int) -> NDArray[np.int64]:
    """Blocks that so many tokens fill, the last one maybe in part."""
    return np.asarray(-(-tokens.astype(np.int64) // size))


def inferred_size(counts: NDArray[np.int64], prompt: TokenArray, default: int) -> int:
    """Tokens a block, from the numbers of ids: the default unless it fits badly and one other size fits well."""
    has = counts > 0
    if has.sum() < 3:
        return default

    def share(size: int) -> float:
        return float((blocks_in(prompt[has], size) == counts[has]).mean())

    if share(default) >= 0.5:
        return default
    fitting = [size for size in _SIZES if share(size) >= _FITS]
    return fitting[0] if len(fitting) == 1 else default


def _as_whole(listed: list[int], entries: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers as an array of 64 bits where they fit, else as they are."""
    try:
        values = np.array(listed, dtype=None if listed else np.int64)
    except OverflowError:
        return entries
    return values if values.dtype.kind in "iu" else entries


def _missing_lists(raw: NDArray[Any]) -> NDArray[np.bool_]:
    if raw.dtype != object:
        return is_missing(raw)
    return np.fromiter((v is None or (isinstance(v, float) and v != v) for v in raw), bool, len(raw))


def _is_id(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int | str | np.integer) or (isinstance(value, float) and value.is_integer())


def _objects(values: Iterable[Any]) -> NDArray[Any]:
    listed = list(values)
    array = np.empty(len(listed), dtype=object)
    array[:] = listed
    return array
