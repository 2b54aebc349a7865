"""A guard in front of a score of places: those where the first token would be much later than need be are left out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.compiled import entry, inlined
from serving_gym.envs.simulator.kernel.features import CLUSTER_FEATURES, PLACE_FEATURES, REQUEST_FEATURES

GUARD = (  # what a guard's numbers are
    "times_least",
    "times_usual",
    "soon_s",
    "soon_of_age",
    "soon_of_slow",
    "slots",
    "requests",  # scales of the observation from here on
    "iteration_s",
    "prefill_s",
    "decode_s",
    "prompt_tokens",
    "request_rate",
    "token_rate",
)
(
    _LEAST,
    _USUAL,
    _SOON,
    _OF_AGE,
    _OF_SLOW,
    _SLOTS,
    _REQUESTS_SCALE,
    _ITERATION_S,
    _PREFILL_S,
    _DECODE_S,
    _PROMPT_TOKENS,
    _REQUEST_RATE,
    _TOKEN_RATE,
) = range(len(GUARD))

_IN_FLIGHT = PLACE_FEATURES.index("in_flight")
_BACKLOG = PLACE_FEATURES.index("prefill_backlog_s")
_DRAIN = PLACE_FEATURES.index("drain_s")
_ITERATION = PLACE_FEATURES.index("iteration_s")
_OWN_PREFILL = PLACE_FEATURES.index("own_prefill_s")
_PREFIX_HIT = PLACE_FEATURES.index("prefix_hit")
_INPUT = REQUEST_FEATURES.index("input_tokens")
_REQUESTS = CLUSTER_FEATURES.index("requests_long")
_PROMPTS = CLUSTER_FEATURES.index("prompt_tokens_long")
_SLOW = CLUSTER_FEATURES.index("tpot_misses_short")
_AGE = CLUSTER_FEATURES.index("gauge_age_s")


@inlined
def _value(feature: float, scale: float) -> float:
    """What a feature shows as log1p(value / scale)."""
    return (np.exp(feature) - 1.0) * scale


@inlined
def _first_token_s(guard: NDArray[np.float64], place: NDArray[np.float32]) -> float:
    """When the first token is to be expected there, seconds from now."""
    prefill_s = _value(place[_BACKLOG], guard[_PREFILL_S]) + _value(place[_OWN_PREFILL], guard[_PREFILL_S])
    first_s = prefill_s + _value(place[_ITERATION], guard[_ITERATION_S])
    slots = guard[_SLOTS]
    ahead = _value(place[_IN_FLIGHT], guard[_REQUESTS_SCALE]) + 1.0 - slots
    if ahead > 0.0:
        first_s += ahead / slots * _value(place[_DRAIN], guard[_DECODE_S])
    return first_s


@inlined
def narrow(
    guard: NDArray[np.float64],
    places: NDArray[np.float32],
    request: NDArray[np.float32],
    cluster: NDArray[np.float32],
    mask: NDArray[np.bool_],
) -> None:
    """Takes the places that the guard leaves out from those that can take the request; the best first token stays.

    Args:
        guard: (len(GUARD),).
        places: (R, F).
        request: (features,).
        cluster: (features,).
        mask: (at least R,), the places that can take the request; changed.
    """
    least_s, speeds, squares = np.inf, 0.0, 0.0
    prompt = _value(request[_INPUT], guard[_PROMPT_TOKENS])
    for e in range(len(places)):
        if mask[e]:
            least_s = min(least_s, _first_token_s(guard, places[e]))
            own_s = _value(places[e, _OWN_PREFILL], guard[_PREFILL_S])
            if own_s > 0.0:
                speed = prompt * (1.0 - places[e, _PREFIX_HIT]) / own_s
                speeds += speed
                squares += speed * speed
    requests = _value(cluster[_REQUESTS], guard[_REQUEST_RATE])
    soon_s = guard[_SOON] + guard[_OF_AGE] * _value(cluster[_AGE], guard[_PREFILL_S])
    soon_s += guard[_OF_SLOW] * cluster[_SLOW]
    latest_s = max(guard[_LEAST] * least_s, soon_s)
    if requests > 0.0 and speeds > 0.0:
        usual_s = _value(cluster[_PROMPTS], guard[_TOKEN_RATE]) / requests * speeds / squares
        latest_s = max(latest_s, guard[_USUAL] * usual_s)
    for e in range(len(places)):
        if mask[e] and _first_token_s(guard, places[e]) > latest_s:
            mask[e] = False


@entry
def narrow_many(
    guard: NDArray[np.float64],
    places: NDArray[np.float32],
    request: NDArray[np.float32],
    cluster: NDArray[np.float32],
    masks: NDArray[np.bool_],
) -> None:
    """`narrow` in each of N episodes.

    Args:
        guard: (len(GUARD),).
        places: (N, R, F).
        request: (N, features).
        cluster: (N, features).
        masks: (N, at least R); changed.
    """
    for i in range(len(places)):
        narrow(guard, places[i], request[i], cluster[i], masks[i])
