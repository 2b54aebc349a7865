"""The load-look-ahead maps of all instances, from the requests in flight.

What the events of `load_anticipator` leave in a map is a function of each request's prompt, predicted length and tokens
generated so far: the extensions of a late one follow from the latter two. So a router needs no record of events; the
tests hold the two equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from baselines.preserve.load_anticipator import extended


class LookAhead(NamedTuple):
    """What is anticipated of P instances over the next l iterations.

    Attributes:
        tokens: (P, l) KV tokens of the requests whose prefill is complete.
        queued_tokens: (P,) prompt tokens of those whose prefill is not. How far a prefill is cannot be seen from
            outside: it counts whole until its first token.
        remaining_tokens: (P,) tokens yet to be generated, as predicted, of all.
    """

    tokens: NDArray[np.int64]
    queued_tokens: NDArray[np.int64]
    remaining_tokens: NDArray[np.int64]


@njit(cache=True)
def look_ahead(
    in_flight: NDArray[np.void], num_places: int, lookahead: int, extension_ratio: float
) -> LookAhead:
    """The maps of all instances.

    A request's line P + i over iterations is entered where it begins and where it ends; a running sum over iterations
    then fills the map, whatever the number of requests.

    Args:
        in_flight: (M,) IN_FLIGHT_DTYPE.
        num_places: P.
        lookahead: l, iterations.
        extension_ratio: Share of the present response length by which a late request is extended.
    """
    tokens = np.zeros((num_places, lookahead), np.int64)
    slopes = np.zeros((num_places, lookahead), np.int64)
    queued = np.zeros(num_places, np.int64)
    remaining = np.zeros(num_places, np.int64)
    for r in range(len(in_flight)):
        row = in_flight[r]
        place = row.place
        length = max(row.predicted_tokens, 1)
        generated = row.generated_tokens
        if row.first_token_s < 0.0:
            queued[place] += row.input_tokens
            remaining[place] += length
            continue
        while length <= generated:
            length = extended(length, extension_ratio)
        rest = length - generated
        remaining[place] += rest
        tokens[place, 0] += row.input_tokens + generated
        slopes[place, 0] += 1
        if rest < lookahead:  # what the running sum has reached there is taken off again
            tokens[place, rest] -= row.input_tokens + length
            slopes[place, rest] -= 1
    for place in range(num_places):
        slope = slopes[place, 0]
        for i in range(1, lookahead):
            tokens[place, i] += tokens[place, i - 1] + slope
            slope += slopes[place, i]
    return LookAhead(tokens, queued, remaining)


@njit(cache=True)
def peak_tokens(tokens: NDArray[np.int64], prompt_tokens: int, predicted_tokens: int) -> NDArray[np.int64]:
    """Most KV tokens over the next iterations with a request virtually added to each instance, (P,).

    Args:
        tokens: (P, l) maps.
        prompt_tokens: Prompt of the request, whose prefill is taken to be complete with the next iteration.
        predicted_tokens: Its predicted response.
    """
    peaks = np.zeros(len(tokens), np.int64)
    for place in range(len(tokens)):
        for i in range(tokens.shape[1]):
            added = prompt_tokens + i if i < predicted_tokens else 0
            peaks[place] = max(peaks[place], tokens[place, i] + added)
    return peaks


@njit(cache=True)
def share_above(tokens: NDArray[np.int64], limit_tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of the next iterations in which each instance's KV tokens exceed its limit, (P,).

    Args:
        tokens: (P, l) maps.
        limit_tokens: (P,).
    """
    shares = np.zeros(len(tokens), np.float64)
    for place in range(len(tokens)):
        above = 0
        for i in range(tokens.shape[1]):
            above += tokens[place, i] > limit_tokens[place]
        shares[place] = above / tokens.shape[1]
    return shares
