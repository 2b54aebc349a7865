"""Workload types by k-means over input and output lengths (section 5.1, S1), and how many of each arrive in a span.

Readings. The text gives neither the number of types nor the scale of lengths: four are shown in Table 1 (short or long
input, short or long output), and lengths that range from 1 to 7999 are clustered by their logarithms (source: ours; on
the plain scale the longest prompts decide alone). Each feature is divided by its standard deviation. Beginnings are
drawn as k-means++ does it, and the best of several counts. Types are numbered by their centroids, short inputs first
and short outputs first among them, so that a seed gives the same types whatever the order of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.cluster.vq import kmeans2, vq

from serving_gym.envs.deployment.profiling import SPAN_S
from serving_gym.envs.workload.seeding import stream

FloatArray = NDArray[np.float64]

NUM_TYPES = 4  # Table 1
BEGINNINGS = 8  # source: ours
ITERATIONS = 50  # of Lloyd's algorithm in each, enough to stand still; source: ours


@dataclass(frozen=True, eq=False)
class WorkloadTypes:
    """Clusters of requests.

    Attributes:
        centroids: (J, 2), mean input and output length in the scaled space.
        scale: (2,), standard deviations that features were divided by.
        logarithmic: Whether lengths are taken by their logarithms.
    """

    centroids: FloatArray
    scale: FloatArray
    logarithmic: bool = True

    def __len__(self) -> int:
        """J."""
        return len(self.centroids)

    def features(self, input_tokens: ArrayLike, output_tokens: ArrayLike) -> FloatArray:
        """(N, 2), scaled lengths."""
        return _features(input_tokens, output_tokens, self.logarithmic) / self.scale

    def classify(self, input_tokens: ArrayLike, output_tokens: ArrayLike) -> NDArray[np.int64]:
        """(N,), type of each request: its nearest centroid.

        Args:
            input_tokens: (N,), tokens.
            output_tokens: (N,), tokens: true ones of the past, predicted ones of a request that has just arrived.
        """
        return np.asarray(vq(self.features(input_tokens, output_tokens), self.centroids)[0], np.int64)

    @property
    def mean_tokens(self) -> FloatArray:
        """(J, 2), input and output length at each centroid, tokens."""
        lengths = self.centroids * self.scale
        return np.asarray(np.exp(lengths) if self.logarithmic else lengths, np.float64)

    @property
    def names(self) -> tuple[str, ...]:
        """As in Table 1: SILO is short input, long output; short is below the mean of the centroids."""
        long = self.centroids > self.centroids.mean(axis=0)
        return tuple(f"{'LS'[not i]}I{'LS'[not o]}O" for i, o in long)


def _features(input_tokens: ArrayLike, output_tokens: ArrayLike, logarithmic: bool) -> FloatArray:
    lengths = np.stack([np.asarray(input_tokens, np.float64), np.asarray(output_tokens, np.float64)], axis=1)
    return np.log(np.maximum(lengths, 1.0)) if logarithmic else lengths


def find_types(
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    num_types: int = NUM_TYPES,
    logarithmic: bool = True,
    seed: int = 0,
) -> WorkloadTypes:
    """Clusters past requests.

    Args:
        input_tokens: (N,), tokens.
        output_tokens: (N,), tokens.
        num_types: J.
        logarithmic: Whether lengths are clustered by their logarithms.
        seed: Of the beginnings.

    Raises:
        ValueError: There are fewer distinct requests than types.
    """
    raw = _features(input_tokens, output_tokens, logarithmic)
    raw = raw[np.lexsort(raw.T)]
    if num_types < 1 or len(np.unique(raw, axis=0)) < num_types:
        raise ValueError(
            f"num_types must lie between 1 and the {len(np.unique(raw, axis=0))} different requests, got {num_types}"
        )
    spread = raw.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    data, random = raw / scale, stream(seed, "oserve", "types")
    tries: list[tuple[int, float, FloatArray]] = []
    for _ in range(BEGINNINGS):
        centroids, labels = kmeans2(data, num_types, ITERATIONS, minit="++", rng=random)
        error = float(((data - centroids[labels]) ** 2).sum())
        tries.append((num_types - len(np.unique(labels)), error, centroids))
    best = min(tries, key=lambda entry: entry[:2])[2]  # those without an empty cluster first
    long_inputs = best[:, 0] > best[:, 0].mean()
    return WorkloadTypes(best[np.lexsort((best[:, 1], long_inputs))], scale, logarithmic)


def count_by_span(
    arrival_s: ArrayLike,
    labels: ArrayLike,
    num_types: int,
    span_s: float = SPAN_S,
    until_s: float | None = None,
) -> FloatArray:
    """(T, J), requests of each type in each span from time zero.

    Args:
        arrival_s: (N,), seconds.
        labels: (N,), type of each.
        num_types: J.
        span_s: Length of a span, s.
        until_s: End of the last span, s, which is left out unless complete; None: behind the last arrival.
    """
    spans = np.floor_divide(np.asarray(arrival_s, np.float64), span_s).astype(np.int64)
    total = int(spans.max(initial=-1)) + 1 if until_s is None else int(until_s // span_s)
    counts = np.zeros((total, num_types))
    seen = spans < total
    np.add.at(counts, (spans[seen], np.asarray(labels, np.int64)[seen]), 1.0)
    return counts
