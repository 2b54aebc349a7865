"""How long an iteration takes (LLM-Mesh, section 5.2): measured at powers of two, interpolated between them.

A prefill is linear between the two nearest measured lengths, a decode bilinear between the four nearest measured pairs
of batch size and average length. Beyond the largest sample the last two go on in a straight line, which the text leaves
open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def powers_of_two(largest: int) -> FloatArray:
    """1, 2, 4, ... up to the last that does not exceed `largest`.

    Raises:
        ValueError: it is less than 2: there would be nothing to interpolate between.
    """
    if largest < 2:
        raise ValueError(f"the largest sample must be at least 2, got {largest}")
    return np.exp2(np.arange(int(np.floor(np.log2(largest))) + 1))


@dataclass(frozen=True, eq=False)
class Quantification:
    """Iteration times of P profiles (a model on a kind of node) at the same samples.

    Attributes:
        lengths: (S_L,) tokens.
        batches: (S_B,) requests.
        prefill_s: (P, S_L) time to prefill one prompt.
        decode_s: (P, S_B, S_L) time of a decode iteration, by batch size and average length.
    """

    lengths: FloatArray
    batches: FloatArray
    prefill_s: FloatArray
    decode_s: FloatArray

    def prefill(self, profile: int, length: float) -> float:
        """Time to prefill a prompt, seconds."""
        return float(prefill_time(self.lengths, self.prefill_s, profile, length))

    def decode(self, profile: int, batch: float, length: float) -> float:
        """Time of a decode iteration of a batch with an average length, seconds."""
        return float(decode_time(self.batches, self.lengths, self.decode_s, profile, batch, length))


def quantify(
    prefill: Sequence[Callable[[int], float]],
    decode: Sequence[Callable[[int, int], float]],
    max_length: int,
    max_batch: int,
) -> Quantification:
    """Collects the samples of each profile.

    Args:
        prefill: Of each profile, the time to prefill a prompt of so many tokens, seconds.
        decode: Of each profile, the time of a decode iteration of (batch size, average length), seconds.
        max_length: L_max, tokens.
        max_batch: B_max.

    Raises:
        ValueError: a maximum is less than 2, or there are not as many of one as of the other.
    """
    if len(prefill) != len(decode):
        raise ValueError(f"prefill and decode must be as many, got {len(prefill)} and {len(decode)}")
    lengths, batches = powers_of_two(max_length), powers_of_two(max_batch)
    return Quantification(
        lengths=lengths,
        batches=batches,
        prefill_s=np.array([[measure(int(n)) for n in lengths] for measure in prefill]),
        decode_s=np.array(
            [[[measure(int(b), int(n)) for n in lengths] for b in batches] for measure in decode]
        ),
    )


@njit(cache=True)
def cell_below(samples: FloatArray, value: float) -> int:
    """Index of the sample that begins the interval a value is interpolated in."""
    last = len(samples) - 2
    below = 0
    while below < last and samples[below + 1] <= value:
        below += 1
    return below


@njit(cache=True)
def prefill_time(lengths: FloatArray, prefill_s: FloatArray, profile: int, length: float) -> float:
    """Linear interpolation over length."""
    at = cell_below(lengths, length)
    share = (length - lengths[at]) / (lengths[at + 1] - lengths[at])
    return prefill_s[profile, at] + share * (prefill_s[profile, at + 1] - prefill_s[profile, at])


@njit(cache=True)
def decode_time(
    batches: FloatArray,
    lengths: FloatArray,
    decode_s: FloatArray,
    profile: int,
    batch: float,
    length: float,
) -> float:
    """Bilinear interpolation over batch size and average length."""
    at_b, at_l = cell_below(batches, batch), cell_below(lengths, length)
    along = (length - lengths[at_l]) / (lengths[at_l + 1] - lengths[at_l])
    across = (batch - batches[at_b]) / (batches[at_b + 1] - batches[at_b])
    low = decode_s[profile, at_b, at_l]
    low += along * (decode_s[profile, at_b, at_l + 1] - low)
    high = decode_s[profile, at_b + 1, at_l]
    high += along * (decode_s[profile, at_b + 1, at_l + 1] - high)
    return low + across * (high - low)
