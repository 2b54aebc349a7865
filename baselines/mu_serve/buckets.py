"""Buckets of response length: classes of mu-Serve's predictor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Buckets:
    """Classes of length.

    Attributes:
        edges: (C - 1,), tokens; a length belongs to the first bucket whose edge is above it, else to the last.
        medians: (C,), tokens; what a bucket stands for as a prediction.
        counts: (C,), training samples in each.
    """

    edges: tuple[float, ...]
    medians: tuple[float, ...]
    counts: tuple[int, ...]

    def of(self, lengths: NDArray[np.float64]) -> NDArray[np.int64]:
        """Bucket of each length, (N,), from 0."""
        return np.searchsorted(np.array(self.edges), lengths, side="right")


def percentile_buckets(lengths: NDArray[np.float64], percentiles: Sequence[float]) -> Buckets:
    """Buckets that end at percentiles of the lengths.

    Percentiles that coincide make one edge, and a bucket without any of the lengths becomes part of its neighbour.

    Args:
        lengths: (N,), tokens, at least one.
        percentiles: ascending, above 0 and below 100.
    """
    edges = np.unique(np.percentile(lengths, percentiles))
    bucket = np.searchsorted(edges, lengths, side="right")
    kept = np.unique(bucket)
    edges = edges[kept[1:] - 1]
    bucket = np.searchsorted(edges, lengths, side="right")
    members = [lengths[bucket == number] for number in range(len(kept))]
    return Buckets(
        edges=tuple(float(edge) for edge in edges),
        medians=tuple(float(np.median(held)) for held in members),
        counts=tuple(len(held) for held in members),
    )
