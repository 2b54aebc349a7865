"""What it would cost to send a request to each engine, by the speeds that were learned; and the observation by them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.envs.routing.config import RoutingScales
from serving_gym.envs.simulator.kernel.features import PLACE_FEATURES

Floats = NDArray[np.float64]

_BACKLOG = PLACE_FEATURES.index("prefill_backlog_s")
_DRAIN = PLACE_FEATURES.index("drain_s")
_ITERATION = PLACE_FEATURES.index("iteration_s")
_OWN_PREFILL = PLACE_FEATURES.index("own_prefill_s")
_OWN_DECODE = PLACE_FEATURES.index("own_decode_s")
_AHEAD = 8  # requests over which the growth of an iteration is taken: captured graphs make it a staircase
_LARGEST_SHARE = 0.8  # of its time that an engine is taken to spend on prompts
_SCALES = RoutingScales()
_PREFILL_S, _ITERATION_S, _DECODE_S = _SCALES.prefill_s, _SCALES.iteration_s, _SCALES.decode_s


class Engines(NamedTuple):
    """P engines as they are thought to be."""

    decode_s: Floats  # (P, S + 1) of an iteration, without its context
    kv_s_per_token: Floats  # (P,)
    prefill_s_per_token: Floats  # (P,)
    prompt_rate: Floats  # (P,) prompt tokens a second that each is sent
    kv_capacity_tokens: Floats  # (P,)
    max_num_seqs: NDArray[np.int64]  # (P,)
    max_num_batched_tokens: NDArray[np.int64]  # (P,)


class Asked(NamedTuple):
    """The request to be sent."""

    input_tokens: float
    output_tokens: float  # expected
    ttft_slo_s: float
    left_s: float  # until its first token is late
    tpot_slo_s: float


class Weights(NamedTuple):
    """What counts how much, and how uncertain it is."""

    missed: float  # of the probability of a missed SLO
    others: float  # of what the request costs the others there
    spread_ttft: float  # standard deviation of TTFT, relative
    spread_tpot: float


@njit(cache=True)
def expected_ttft_s(engines: Engines, loads: Any, own_tokens: Floats, asked: Asked) -> Floats:
    """(P,) seconds from sending to the first token by the speeds alone, without the way there.

    The iteration under way, the prompts before the request's and its own, in iterations of the token budget, each as
    much longer as the context that decodes makes it. Where requests, or prompts and expected outputs, exceed what the
    engine holds, the excess share of the mean time that its requests need to end comes on top.
    """
    expected = np.empty(len(loads))
    for p in range(len(loads)):
        load = loads[p]
        most = engines.max_num_seqs[p]
        kv_s = engines.kv_s_per_token[p] * load.context_tokens
        tokens = load.own_tokens + own_tokens[p]
        iterations = np.ceil(tokens / max(engines.max_num_batched_tokens[p] - load.decoding, 1.0))
        number = load.waiting + load.decoding
        base_s = engines.decode_s[p, int(min(load.decoding, most))]
        expected[p] = base_s + tokens * engines.prefill_s_per_token[p] + (1.0 + iterations) * kv_s
        held = load.waiting_tokens + load.context_tokens + load.left_tokens
        held += asked.input_tokens + asked.output_tokens
        fill = max((number + 1.0) / most, held / engines.kv_capacity_tokens[p])
        if fill > 1.0:
            iteration_s = engines.decode_s[p, int(min(number, most))] + kv_s
            expected[p] += (fill - 1.0) * load.left_tokens / max(number, 1.0) * iteration_s
    return expected


@njit(cache=True)
def _late(expected: float, limit: float, spread: float) -> float:
    """Probability that a time exceeds a limit; logistic, of a standard deviation relative to what is expected."""
    if limit <= 0.0:
        return 1.0
    by = (limit - expected) / max(0.55 * spread * expected, 1e-9)  # a logistic deviates by 1.81 of its scale
    return 1.0 / (1.0 + math.exp(min(max(by, -30.0), 30.0)))


@njit(cache=True)
def costs(
    engines: Engines, loads: Any, own_tokens: Floats, ttft_s: Floats, asked: Asked, weights: Weights
) -> Floats:
    """(P,) expected cost of sending the request there, in the units of the latency objective.

    TTFT / SLO + TPOT / SLO and the probabilities of missing either; then what the others there lose: those that decode
    stand still while the prompt is prefilled, and each iteration that they share with it, now and, by as many as come
    later, then, is longer by what it adds.
    """
    cost = np.empty(len(loads))
    for p in range(len(loads)):
        load = loads[p]
        most, capacity = engines.max_num_seqs[p], engines.kv_capacity_tokens[p]
        batch = int(min(load.waiting + load.decoding + 1.0, most))
        context = load.context_tokens + load.waiting_tokens + asked.input_tokens + 0.5 * asked.output_tokens
        busy = min(engines.prompt_rate[p] * engines.prefill_s_per_token[p], _LARGEST_SHARE)
        kv_s = engines.kv_s_per_token[p]
        tpot_s = (engines.decode_s[p, batch] + kv_s * min(context, capacity)) / (1.0 - busy)
        ahead = int(min(batch + _AHEAD, engines.decode_s.shape[1] - 1))
        growth_s = (engines.decode_s[p, ahead] - engines.decode_s[p, batch]) / max(ahead - batch, 1)
        growth_s = (growth_s + kv_s * (asked.input_tokens + 0.5 * asked.output_tokens)) / (1.0 - busy)
        prompt_s = own_tokens[p] * engines.prefill_s_per_token[p]
        own = ttft_s[p] / asked.ttft_slo_s + tpot_s / asked.tpot_slo_s
        own += weights.missed * _late(ttft_s[p], asked.left_s, weights.spread_ttft)
        own += weights.missed * _late(tpot_s, asked.tpot_slo_s, weights.spread_tpot)
        cost[p] = own + weights.others * (prompt_s * load.slowed + 2.0 * growth_s * load.beside)
    return cost


@njit(cache=True)
def _shown(value: float, scale: float) -> float:
    return math.log(1.0 + max(value, 0.0) / scale)


@njit(cache=True)
def show_speeds(
    engines: Engines, loads: Any, own_tokens: Floats, asked: Asked, places: NDArray[np.float32]
) -> None:
    """Writes into an observation's rows what depends on speeds (`envs.routing.observation`), with those learned.

    Args:
        engines: As they are thought to be.
        loads: (P,) LOAD_DTYPE.
        own_tokens: (P,) of the prompt, to prefill there.
        asked: The request.
        places: (at least P, features); five columns of the first P are changed.
    """
    for p in range(len(loads)):
        load = loads[p]
        batch = int(min(load.decoding + 1.0, engines.max_num_seqs[p]))
        kv_s, prefill_s = engines.kv_s_per_token[p], engines.prefill_s_per_token[p]
        iteration_s = engines.decode_s[p, batch] + kv_s * load.context_tokens
        with_own_s = iteration_s + kv_s * asked.input_tokens
        row = places[p]
        row[_BACKLOG] = _shown(load.waiting_tokens * prefill_s, _PREFILL_S)
        row[_ITERATION] = _shown(iteration_s, _ITERATION_S)
        row[_DRAIN] = _shown(load.left_tokens * iteration_s / max(load.decoding, 1.0), _DECODE_S)
        row[_OWN_PREFILL] = _shown(own_tokens[p] * prefill_s, _PREFILL_S)
        row[_OWN_DECODE] = _shown(asked.output_tokens * with_own_s, _DECODE_S)
