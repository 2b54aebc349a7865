"""Headroom of requests, and which instance computes next (LLM-Mesh, section 5.1, equation 1).

    headroom = ST + TTFT_SLO + TPOT_SLO * O - CT

is how long the next token of a request may still be delayed. Without CT it is a deadline, which changes only when a
token is generated; the compiled parts keep that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def next_token_deadline_s(
    start_s: FloatArray, ttft_slo_s: FloatArray, tpot_slo_s: float, generated: IntArray
) -> FloatArray:
    """When the next token of each request is due, (R,).

    Args:
        start_s: (R,) ST, when the request arrived.
        ttft_slo_s: (R,) TTFT_SLO.
        tpot_slo_s: TPOT_SLO.
        generated: (R,) O, tokens generated so far.
    """
    return np.asarray(start_s + ttft_slo_s + tpot_slo_s * generated, np.float64)


def headroom_s(
    start_s: FloatArray, ttft_slo_s: FloatArray, tpot_slo_s: float, generated: IntArray, now_s: float
) -> FloatArray:
    """Equation 1: how long the next token of each request may be delayed, (R,); negative: the SLO is violated.

    Args:
        start_s: (R,) ST.
        ttft_slo_s: (R,) TTFT_SLO.
        tpot_slo_s: TPOT_SLO.
        generated: (R,) O.
        now_s: CT.
    """
    return next_token_deadline_s(start_s, ttft_slo_s, tpot_slo_s, generated) - now_s


def shortest_headroom(instance: IntArray, headroom: FloatArray) -> int | None:
    """The instance that computes the next iteration: that of the request with the shortest headroom.

    Args:
        instance: (R,) instance of each request that could be computed now.
        headroom: (R,) of each of them.

    Returns:
        The instance, the lowest where several are equally urgent (ours); None where there is nothing to compute.
    """
    if not len(instance):
        return None
    most_urgent = np.flatnonzero(headroom == headroom.min())
    return int(instance[most_urgent].min())


def longest_headroom(headroom: FloatArray) -> int:
    """Row of the request that can wait longest, the last of equals (ours: the newest); section 6.4 evicts it.

    Args:
        headroom: (R,), R at least 1.
    """
    return int(len(headroom) - 1 - np.argmax(headroom[::-1]))
