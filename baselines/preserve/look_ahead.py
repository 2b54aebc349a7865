"""The load anticipator (section 4.3.1): the load-look-ahead maps of all instances, from the requests in flight.

The text keeps a map of each instance, KV tokens over the next L iterations, which events change: a completed prefill
of P prompt tokens and D predicted ones adds P + i to entry i for i in [0, D), the end of a request subtracts what is
left of it, and each iteration drops the first entry. A request that outlives its prediction is extended. What the
events leave in a map is a function of each request's prompt, predicted length and tokens generated so far, so the maps
are computed from these. Iteration 0 of a request is the one that completes its prefill and yields its first token.

Between being sent and its first token a request is in no map by these events, so that many can be sent to an instance
whose map shows none of them. With `unprefilled` they enter it when they are sent, as if their prefill were next.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

EXTENSION_RATIO = 0.2  # section 4.3.1


@njit(cache=True)
def extended(length: int, extension_ratio: float) -> int:
    """Response length, tokens, that is reckoned with once a request has outlived the one before.

    The text writes 0.2 of the true length, which nobody knows before the end: the present one is meant. Whole tokens
    are rounded up, so that an extension is at least one. Source of the rounding: ours.
    """
    return length + max(1, math.ceil(extension_ratio * length))


class Load(NamedTuple):
    """What is anticipated of P instances over the next l iterations.

    Attributes:
        queued_tokens: (P,) prompt tokens of requests whose prefill is not complete. How far a prefill is cannot be seen
            from outside: it counts whole until its first token.
        remaining_tokens: (P,) tokens yet to be generated, as predicted, of all.
        overflow_tokens: (P,) by how much the most KV tokens over the next iterations, with a request virtually added,
            exceed the ideal; 0 where they do not.
        overloaded: (P,) share of the next iterations in which KV tokens exceed the limit, with that request virtually
            added or without it, as asked.
    """

    queued_tokens: NDArray[np.int64]
    remaining_tokens: NDArray[np.int64]
    overflow_tokens: NDArray[np.float64]
    overloaded: NDArray[np.float64]


@njit(cache=True)
def anticipated_load(
    in_flight: NDArray[np.void],
    lookahead: int,
    extension_ratio: float,
    prompt_tokens: int,
    predicted_tokens: int,
    ideal_tokens: NDArray[np.float64],
    limit_tokens: NDArray[np.float64],
    unprefilled: bool,
    overload_with_request: bool,
) -> Load:
    """What the maps say, made only of instances that could exceed the ideal or the limit.

    No instance holds more than it would if none of its requests ended: where that is little, its map does not matter.

    Args:
        in_flight: (M,) IN_FLIGHT_DTYPE.
        lookahead: l, iterations.
        extension_ratio: Share of the present response length by which a late request is extended.
        prompt_tokens: Prompt of the request that is virtually added.
        predicted_tokens: Its predicted response.
        ideal_tokens: (P,) KV tokens that each instance should not exceed.
        limit_tokens: (P,) KV tokens above which an iteration is overloaded.
        unprefilled: Whether requests without their first token are in the maps.
        overload_with_request: Whether `overloaded` counts the request that is virtually added.
    """
    num_places = len(ideal_tokens)
    queued, remaining, present, decoding, rests = _counted(
        in_flight, num_places, extension_ratio, unprefilled
    )
    overflow = np.zeros(num_places, np.float64)
    overloaded = np.zeros(num_places, np.float64)
    maps = np.full(num_places, -1, np.int64)
    busy = 0
    for place in range(num_places):
        most = present[place] + decoding[place] * (lookahead - 1)
        if most + prompt_tokens + lookahead > min(limit_tokens[place], ideal_tokens[place]):
            maps[place] = busy
            busy += 1
    if busy == 0:
        return Load(queued, remaining, overflow, overloaded)
    ends = _ends(in_flight, rests, maps, busy, lookahead)
    for place in range(num_places):
        m = maps[place]
        if m < 0:
            continue
        limit, tokens, slope = limit_tokens[place], present[place], decoding[place]
        peak, above = tokens, 0
        for i in range(lookahead):
            tokens -= ends[m, i, 0]
            slope -= ends[m, i, 1]
            with_request = tokens + (prompt_tokens + i) * (i < predicted_tokens)
            above += (with_request if overload_with_request else tokens) > limit
            peak = max(peak, with_request)
            tokens += slope
        overflow[place] = max(0.0, peak - ideal_tokens[place])
        overloaded[place] = above / lookahead
    return Load(queued, remaining, overflow, overloaded)


@njit(cache=True)
def _counted(
    in_flight: NDArray[np.void], num_places: int, extension_ratio: float, unprefilled: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """What the requests in flight come to.

    Returns:
        By instance: tokens of prompts that wait, tokens of answers to come, KV tokens now, and requests in the map. By
        request: the iterations that it still decodes; 0 where it is not in the map.
    """
    queued = np.zeros(num_places, np.int64)
    remaining = np.zeros(num_places, np.int64)
    present = np.zeros(num_places, np.int64)
    decoding = np.zeros(num_places, np.int64)
    rests = np.zeros(len(in_flight), np.int64)
    for r in range(len(in_flight)):
        row = in_flight[r]
        place = row.place
        length = max(row.predicted_tokens, 1)
        generated = row.generated_tokens
        if row.first_token_s < 0.0:
            queued[place] += row.input_tokens
            remaining[place] += length
            if unprefilled:
                rests[r] = length
                present[place] += row.input_tokens
                decoding[place] += 1
            continue
        while length <= generated:
            length = extended(length, extension_ratio)
        rests[r] = length - generated
        remaining[place] += length - generated
        present[place] += row.input_tokens + generated
        decoding[place] += 1
    return queued, remaining, present, decoding, rests


@njit(cache=True)
def _ends(
    in_flight: NDArray[np.void],
    rests: NDArray[np.int64],
    maps: NDArray[np.int64],
    busy: int,
    lookahead: int,
) -> NDArray[np.int64]:
    """(busy, lookahead, 2) KV tokens and number of the requests that end in each iteration of each map."""
    ends = np.zeros((busy, lookahead, 2), np.int64)
    for r in range(len(in_flight)):
        rest = rests[r]
        if not 0 < rest < lookahead:
            continue
        row = in_flight[r]
        m = maps[row.place]
        if m >= 0:
            ends[m, rest, 0] += row.input_tokens + row.generated_tokens + rest
            ends[m, rest, 1] += 1
    return ends
