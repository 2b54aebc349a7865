"""The routing observation: a row a place, the request, and the cluster, with fixed physical scales.

Counts, tokens, seconds and rates are shown as log1p(value / scale), ratios as they are; no running normalisation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.compiled import inlined, int64
from serving_gym.envs.simulator.kernel.desk import (
    ANSWERED_SHORT,
    ENDED_SHORT,
    LATE_SHORT,
    NUM_SCALES,
    PREDICTED_LONG,
    PREDICTED_SHORT,
    PROMPTS_LONG,
    PROMPTS_SHORT,
    REQUESTS_LONG,
    REQUESTS_SHORT,
    SLOW_SHORT,
    Desk,
)
from serving_gym.envs.simulator.kernel.offers import count_held, count_held_of_classes
from serving_gym.envs.simulator.kernel.prefix_index import expected_hit
from serving_gym.envs.simulator.kernel.state import ACTIVE, PS_PER_S, SPECULATIVE, Tables, Traffic, World

PLACE_FEATURES = (
    "can_take",  # in service, of the request's model, and large enough for it
    "in_service",
    "in_flight",  # requests sent there and not done
    "unanswered",  # of these, without a first token
    "waiting",  # gauge
    "running",  # gauge
    "kv_usage",  # gauge, ratio
    "queued_tokens",  # prompt tokens of the unanswered
    "prefill_backlog_s",  # these, at the place's prefill speed
    "remaining_tokens",  # predicted output tokens still to come
    "drain_s",  # these, at the present pace
    "context_usage",  # known context over KV capacity, ratio
    "peak_usage",  # most context of what decodes, and of the request, now and 10, 20, ... 100 iterations ahead, ratio
    "excess_usage",  # what of this is above 0.8
    "iteration_s",  # of a decode iteration with what decodes now and one request more
    "own_prefill_s",  # of the request's prompt, without what is cached there
    "own_decode_s",  # of its predicted output at that iteration
    "prefix_hit",  # share of its prompt that the place's prefix cache holds
    "kv_capacity",  # tokens
    "network_s",  # to the place's region and back
)

REQUEST_FEATURES = (
    "input_tokens",
    "predicted_tokens",
    "max_output_tokens",
    "slack",  # time to the deadline of its first token over its TTFT promise, ratio
    "overdue",  # time since then over its TTFT promise
    "waited_s",
    "held_before",
)  # and a 1 at its class

CLUSTER_FEATURES = (
    "held",  # requests in the router's queue besides the one to be decided
    "unsent_tokens",  # to prefill, of all that have no engine yet, the one to be decided included
    "requests_short",  # arrivals a second, exponential averages
    "requests_long",
    "prompt_tokens_short",  # a second
    "prompt_tokens_long",
    "predicted_tokens_short",  # a second
    "predicted_tokens_long",
    "ttft_misses_short",  # share of first tokens later than promised, or never
    "tpot_misses_short",
    "gauge_age_s",
)

# Where admission is a decision.
ADMISSION_FEATURES = (
    "urgency",  # of the request's priority, 1 / (1 + e^priority): the lower value is served first
    "deferred",  # 1: it has been deferred
    "saturation_mean",  # over the places in service that serve its model: the larger of waiting / 5 and KV usage / 0.8
    "saturation_max",
)
ADMISSION_CLASS_FEATURES = (  # behind them, class by class
    "held_of_class",  # requests in the router's queue besides the one to be decided
    "sent_short",  # requests sent to an engine a second, exponential average
    "refused_short",  # requests refused a second
)
# Defaults of the saturation detector of llm-d and of the Gateway API Inference Extension (`utilization`).
QUEUE_DEPTH_THRESHOLD, KV_CACHE_UTIL_THRESHOLD = 5.0, 0.8

# Their columns.
(
    _CAN_TAKE,
    _IN_SERVICE,
    _IN_FLIGHT,
    _UNANSWERED,
    _WAITING,
    _RUNNING,
    _KV_USAGE,
    _QUEUED,
    _BACKLOG,
    _REMAINING,
    _DRAIN,
    _CONTEXT_USAGE,
    _PEAK_USAGE,
    _EXCESS,
    _ITERATION,
    _OWN_PREFILL,
    _OWN_DECODE,
    _PREFIX_HIT,
    _KV_CAPACITY,
    _NETWORK,
) = range(len(PLACE_FEATURES))
(_INPUT, _PREDICTED, _MAX_OUTPUT, _SLACK, _OVERDUE, _WAITED, _HELD_BEFORE) = range(len(REQUEST_FEATURES))
(
    _HELD,
    _UNSENT,
    _REQUESTS_SHORT,
    _REQUESTS_LONG,
    _PROMPTS_SHORT,
    _PROMPTS_LONG,
    _PREDICTED_SHORT,
    _PREDICTED_LONG,
    _TTFT_MISSES,
    _TPOT_MISSES,
    _GAUGE_AGE,
) = range(len(CLUSTER_FEATURES))

(_URGENCY, _DEFERRED, _SATURATION_MEAN, _SATURATION_MAX) = range(len(ADMISSION_FEATURES))

# Scales, in the order of `envs.routing.config.RoutingScales`.
(
    _REQUESTS,
    _TOKENS,
    _PROMPT_TOKENS,
    _CAPACITY_TOKENS,
    _ITERATION_S,
    _PREFILL_S,
    _DECODE_S,
    _REQUEST_RATE,
    _TOKEN_RATE,
    SHORT_S,
    LONG_S,
) = range(NUM_SCALES)
HIGHEST = 64.0  # of any feature: ratios are cut there, logarithms of 64-bit numbers do not reach it
TARGET_USAGE = 0.8  # PreServe's T_mem, section 4.3.3


@inlined
def _log(value: float, scale: float) -> float:
    return np.log(np.float32(1.0 + max(value, 0.0) / scale))  # log1p costs twice as much


@inlined
def _write_place(world: World, tables: Tables, desk: Desk, e: int, row: NDArray[np.float32]) -> None:
    """What is known of a place, whatever the request."""
    place, gauge, scales = desk.places[e], desk.gauges[e], desk.scales
    kind = tables.kinds[desk.kinds[e]]
    capacity = max(int64(gauge.kv_capacity_tokens), int64(1))
    budget = kind.max_batched_tokens
    prefill_s = tables.mixed_ps[desk.kinds[e], budget] / (budget * PS_PER_S)
    decoding = place.in_flight - place.unanswered
    batch = min(decoding + 1, kind.max_num_seqs)
    iteration_s = (
        tables.decode_ps[desk.kinds[e], batch] + kind.kv_ps * np.float64(place.context_tokens)
    ) / PS_PER_S
    status = world.engines[e].status
    row[_CAN_TAKE] = place.can_take
    row[_IN_SERVICE] = status in (ACTIVE, SPECULATIVE)
    row[_IN_FLIGHT] = _log(place.in_flight, scales[_REQUESTS])
    row[_UNANSWERED] = _log(place.unanswered, scales[_REQUESTS])
    row[_WAITING] = _log(gauge.num_waiting, scales[_REQUESTS])
    row[_RUNNING] = _log(gauge.num_running, scales[_REQUESTS])
    row[_KV_USAGE] = gauge.kv_used_blocks / max(gauge.kv_capacity_blocks, 1)
    row[_QUEUED] = _log(place.queued_tokens, scales[_TOKENS])
    row[_BACKLOG] = _log(place.queued_tokens * prefill_s, scales[_PREFILL_S])
    row[_REMAINING] = _log(place.remaining_tokens, scales[_TOKENS])
    row[_DRAIN] = _log(place.remaining_tokens * iteration_s / max(decoding, 1), scales[_DECODE_S])
    row[_CONTEXT_USAGE] = min(place.context_tokens / capacity, HIGHEST)
    row[_PEAK_USAGE] = min(place.peak_tokens / capacity, HIGHEST)
    row[_EXCESS] = min(max(place.peak_tokens / capacity - TARGET_USAGE, 0.0), HIGHEST)
    row[_ITERATION] = _log(iteration_s, scales[_ITERATION_S])
    row[_KV_CAPACITY] = _log(capacity, scales[_CAPACITY_TOKENS])


@inlined
def _write_request_there(
    world: World, tables: Tables, desk: Desk, e: int, slot: int, row: NDArray[np.float32]
) -> None:
    """What the request would meet at a place."""
    request, scales, kind = world.requests[slot], desk.scales, tables.kinds[desk.kinds[e]]
    budget = kind.max_batched_tokens
    cached = int64(0)
    if world.cluster[0].prefix_caching:
        cached = expected_hit(world, tables, desk, e, slot) * kind.block_size
    prefill_s = (request.prompt - cached) * tables.mixed_ps[desk.kinds[e], budget] / (budget * PS_PER_S)
    batch = min(desk.places[e].in_flight - desk.places[e].unanswered + 1, kind.max_num_seqs)
    context = np.float64(desk.places[e].context_tokens + request.prompt)
    iteration_s = (tables.decode_ps[desk.kinds[e], batch] + kind.kv_ps * context) / PS_PER_S
    predicted = request.predicted
    row[_OWN_PREFILL] = _log(prefill_s, scales[_PREFILL_S])
    row[_OWN_DECODE] = _log(predicted * iteration_s, scales[_DECODE_S])
    row[_PREFIX_HIT] = cached / request.prompt
    row[_NETWORK] = _log(desk.network_s[request.endpoint, e], scales[_PREFILL_S])


@inlined
def _write_request(world: World, tables: Tables, desk: Desk, slot: int, row: NDArray[np.float32]) -> None:
    """The request itself."""
    request, scales = world.requests[slot], desk.scales
    now = world.cluster[0].now_ps
    promise = np.float64(tables.classes[request.class_id].ttft_slo_ps)
    row[_INPUT] = _log(request.prompt, scales[_PROMPT_TOKENS])
    row[_PREDICTED] = _log(request.predicted, scales[_PROMPT_TOKENS])
    row[_MAX_OUTPUT] = _log(request.max_output, scales[_PROMPT_TOKENS])
    row[_SLACK] = max(request.deadline_ps - now, int64(0)) / promise
    row[_OVERDUE] = _log((now - request.deadline_ps) / promise, 1.0)
    row[_WAITED] = _log((now - request.arrival_ps) / PS_PER_S, scales[_DECODE_S])
    row[_HELD_BEFORE] = desk.desk[0].held_before
    row[len(REQUEST_FEATURES) + request.class_id] = 1.0


@inlined
def _write_cluster(world: World, traffic: Traffic, desk: Desk, row: NDArray[np.float32]) -> None:
    """What all places have in common."""
    memory, scales, board = desk.memory, desk.scales, desk.desk[0]
    count_held(world, traffic, desk)
    row[_HELD] = _log(board.held, scales[_REQUESTS])
    row[_UNSENT] = _log(world.cluster[0].pooled_tokens, scales[_TOKENS])
    row[_REQUESTS_SHORT] = _log(memory[REQUESTS_SHORT], scales[_REQUEST_RATE])
    row[_REQUESTS_LONG] = _log(memory[REQUESTS_LONG], scales[_REQUEST_RATE])
    row[_PROMPTS_SHORT] = _log(memory[PROMPTS_SHORT], scales[_TOKEN_RATE])
    row[_PROMPTS_LONG] = _log(memory[PROMPTS_LONG], scales[_TOKEN_RATE])
    row[_PREDICTED_SHORT] = _log(memory[PREDICTED_SHORT], scales[_TOKEN_RATE])
    row[_PREDICTED_LONG] = _log(memory[PREDICTED_LONG], scales[_TOKEN_RATE])
    row[_TTFT_MISSES] = memory[LATE_SHORT] / max(memory[ANSWERED_SHORT], 1e-9)
    row[_TPOT_MISSES] = memory[SLOW_SHORT] / max(memory[ENDED_SHORT], 1e-9)
    row[_GAUGE_AGE] = _log((world.cluster[0].now_ps - board.gauges_ps) / PS_PER_S, scales[_PREFILL_S])


@inlined
def write_observation(
    world: World,
    traffic: Traffic,
    tables: Tables,
    desk: Desk,
    places: NDArray[np.float32],
    request: NDArray[np.float32],
    cluster: NDArray[np.float32],
    mask: NDArray[np.bool_],
) -> None:
    """Writes the observation of a decision; `Desk.places` and the memory are up to date.

    Args:
        world: The world.
        traffic: Its arrivals.
        tables: What its engines cost.
        desk: The router's desk.
        places: (at least E, len(PLACE_FEATURES)), zero.
        request: (len(REQUEST_FEATURES) + C,), zero.
        cluster: (len(CLUSTER_FEATURES),).
        mask: (at least E + 1,), false but for the last one, which holds.
    """
    slot = int64(desk.desk[0].slot)
    for e in range(len(world.engines)):
        _write_place(world, tables, desk, int64(e), places[e])
        if slot >= 0:
            _write_request_there(world, tables, desk, int64(e), slot, places[e])
            mask[e] = desk.places[e].can_take
    if slot >= 0:
        _write_request(world, tables, desk, slot, request)
    _write_cluster(world, traffic, desk, cluster)


@inlined
def _saturation(world: World, desk: Desk, slot: int) -> tuple[float, float]:
    """Mean and most of the saturation of the places in service that serve a request's model; 1 where there is none.

    By the gauges, as of the last poll.
    """
    total, most, count = 0.0, 0.0, 0
    for e in range(len(world.engines)):
        gauge = desk.gauges[e]
        if desk.serves[world.requests[slot].endpoint, e] == 0:
            continue
        if world.engines[e].status != ACTIVE and world.engines[e].status != SPECULATIVE:
            continue
        usage = gauge.kv_used_blocks / max(gauge.kv_capacity_blocks, 1)
        value = max(gauge.num_waiting / QUEUE_DEPTH_THRESHOLD, usage / KV_CACHE_UTIL_THRESHOLD)
        total += value
        most = max(most, value)
        count += 1
    if count == 0:
        return 1.0, 1.0
    return total / count, most


@inlined
def write_admission(world: World, traffic: Traffic, desk: Desk, row: NDArray[np.float32]) -> None:
    """Writes what a decision about admission needs beside the observation.

    Args:
        world: The world.
        traffic: Its arrivals.
        desk: The router's desk.
        row: (len(ADMISSION_FEATURES) + len(ADMISSION_CLASS_FEATURES) C,); written from end to end.
    """
    board, scales, slot = desk.desk[0], desk.scales, int64(desk.desk[0].slot)
    row[:] = 0.0
    if slot >= 0:
        level = int64(world.requests[slot].level)
        mean, most = _saturation(world, desk, slot)
        row[_URGENCY] = desk.urgency[level]
        row[_DEFERRED] = level == board.deferred_level
        row[_SATURATION_MEAN] = min(mean, HIGHEST)
        row[_SATURATION_MAX] = min(most, HIGHEST)
    count_held_of_classes(world, traffic, desk)
    first, each = len(ADMISSION_FEATURES), len(ADMISSION_CLASS_FEATURES)
    for c in range(len(desk.admitted)):
        admitted = desk.admitted[c]
        row[first + each * c] = _log(admitted.held, scales[_REQUESTS])
        row[first + each * c + 1] = _log(admitted.sent_short, scales[_REQUEST_RATE])
        row[first + each * c + 2] = _log(admitted.refused_short, scales[_REQUEST_RATE])
