"""What a profiling run would find of iteration times: the truth, with errors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_STREAM = 0x9F0F
_COMMON = (
    0.5  # share of the error that all measurements of a model on a kind of node have in common; source: ours
)

Table = NDArray[np.int64]


def profiled(
    prefill: Table, decode: Table, context: Table, error: float, seed: int
) -> tuple[Table, Table, Table]:
    """Iteration times as they were measured, ps.

    Times are measured at powers of two, each a factor exp(u) off, with u in [-error, error]: half of it is the same for
    all measurements of a size on a kind of node, half is drawn for each. Between them the factor is interpolated.

    Args:
        prefill: (K, Z, tokens + 1), the truth.
        decode: (K, Z, batch + 1).
        context: (K, Z).
        error: Half-width; 0: the profile is the truth.
        seed: Of the profiling run.
    """
    if error == 0.0:
        return prefill, decode, context
    rng = np.random.default_rng(np.random.SeedSequence([seed, _STREAM]))
    common = _COMMON * error * rng.uniform(-1.0, 1.0, (*context.shape, 1))
    own = (1.0 - _COMMON) * error

    def with_errors(table: Table) -> Table:
        width = table.shape[2]
        points = int(np.ceil(np.log2(max(width, 2)))) + 1
        drawn = common + own * rng.uniform(-1.0, 1.0, (*table.shape[:2], points))
        at = np.log2(np.maximum(np.arange(width), 1))
        rows = [np.interp(at, np.arange(points), row) for row in drawn.reshape(-1, points)]
        return np.rint(table * np.exp(np.reshape(rows, table.shape))).astype(np.int64)

    per_token = context[:, :, None] * np.exp(common + own * rng.uniform(-1.0, 1.0, (*context.shape, 1)))
    return with_errors(prefill), with_errors(decode), np.rint(per_token[:, :, 0]).astype(np.int64)
