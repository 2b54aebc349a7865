"""llm-d's filter of engines that hold a prompt."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def with_prefix(
    able: NDArray[np.intp],
    share: NDArray[np.float64],
    least_share: float,
    cost: NDArray[np.float64],
    most_penalty: float,
) -> NDArray[np.intp]:
    """Those that hold the prompt, unless they cost too much; all where none does (`prefix-cache-affinity-filter`).

    Args:
        able: (N,) places that can take the request.
        share: (P,) of the prompt that each place is thought to hold.
        least_share: From which it is preferred; 0: none is.
        cost: (P,) of each place: tokens in flight, or predicted TTFT.
        most_penalty: By how much the cheapest of the preferred may cost more than the cheapest of the others; 0:
            whatever it costs.
    """
    if len(able) == 1 or least_share <= 0:
        return able
    sticks = share[able] >= least_share
    sticky, others = able[sticks], able[~sticks]
    if not len(sticky):
        return able
    if most_penalty > 0 and len(others) and cost[sticky].min() - cost[others].min() > most_penalty:
        return able
    return sticky
