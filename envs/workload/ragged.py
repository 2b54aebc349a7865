"""Rows of different lengths in two flat arrays: offsets, and the entries row after row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def offsets_of(lengths: ArrayLike) -> NDArray[np.int64]:
    """Offsets of rows, (N + 1,), from the lengths of N rows."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def gather_rows(
    lengths: NDArray[np.int64], entries: NDArray[Any], order: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Rows by number.

    Args:
        lengths: (N,), entries in each row.
        entries: (sum of lengths,), row after row.
        order: (M,), the rows wanted, in the order wanted.

    Returns:
        Offsets (M + 1,) and entries of the wanted rows.
    """
    starts = offsets_of(lengths)[:-1]
    taken = lengths[order]
    offsets = offsets_of(taken)
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], taken)
    return offsets, entries[np.repeat(starts[order], taken) + inside]
