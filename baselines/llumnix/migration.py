"""Which requests Llumnix moves, and where to (section 4.4.3)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray


def pairs(
    freeness: NDArray[np.float64],
    sources: NDArray[np.bool_],
    destinations: NDArray[np.bool_],
    endpoints: NDArray[np.int64],
) -> list[tuple[int, int]]:
    """Pairs of a source and a destination: again and again the least free of the one and the freest of the other.

    Requests stay within their endpoint (model and region), so that each has pairs of its own.

    Args:
        freeness: (P,) iterations.
        sources: (P,) whose freeness is below the threshold.
        destinations: (P,) whose freeness is above it.
        endpoints: (P,) number of each instance's endpoint.
    """
    found = []
    for endpoint in np.unique(endpoints[sources]):
        here = endpoints == endpoint
        givers = np.flatnonzero(sources & here)
        takers = np.flatnonzero(destinations & here)
        givers = givers[np.argsort(freeness[givers], kind="stable")]
        takers = takers[np.argsort(-freeness[takers], kind="stable")]
        found += list(zip(givers.tolist(), takers.tolist(), strict=False))
    return found


def request_to_move(
    in_flight: NDArray[np.void],
    source: int,
    free_tokens: int,
    high_priority: NDArray[np.bool_],
    moving: Collection[int],
) -> int | None:
    """The request that leaves an instance next: of lower priority first, then the shorter sequence.

    Args:
        in_flight: (M,) IN_FLIGHT_DTYPE.
        source: The instance.
        free_tokens: KV tokens that are free at the destination, in whole blocks: what does not fit is not sent.
        high_priority: (C,) whether a class is of high priority.
        moving: Rows of the workload that are on the way already.

    Returns:
        Its row of the workload; None: no running request there can move.
    """
    here = in_flight[(in_flight["place"] == source) & (in_flight["first_token_s"] >= 0.0)]
    tokens = here["input_tokens"] + here["generated_tokens"]
    allowed = (tokens <= free_tokens) & ~np.isin(here["index"], list(moving))
    here, tokens = here[allowed], tokens[allowed]
    if len(here) == 0:
        return None
    order = np.lexsort((here["index"], tokens, -here["priority"], high_priority[here["class_id"]]))
    return int(here["index"][order[0]])
