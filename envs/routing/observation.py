"""From what a router knows to what a policy sees: the routing observation, worked out from the typed state alone.

The simulator's kernel writes the same figures straight from its arrays (`envs.simulator.kernel.features`, where rows
and units are named). Wherever there is no simulator, on live servers for one, they come from here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import TOTALS, EngineStatus
from serving_gym.envs.routing.config import RoutingScales
from serving_gym.envs.routing.state import RoutingState
from serving_gym.envs.simulator.kernel.desk import AHEAD_STEP, NUM_GLANCES, urgency_of
from serving_gym.envs.simulator.kernel.features import (
    ADMISSION_CLASS_FEATURES,
    ADMISSION_FEATURES,
    CLUSTER_FEATURES,
    HIGHEST,
    KV_CACHE_UTIL_THRESHOLD,
    PLACE_FEATURES,
    QUEUE_DEPTH_THRESHOLD,
    REQUEST_FEATURES,
    TARGET_USAGE,
)

Observation = dict[str, NDArray[np.float32]]
Floats = NDArray[np.float64]

_COLUMN = {name: column for column, name in enumerate(TOTALS)}
_IN_SERVICE = (EngineStatus.ACTIVE, EngineStatus.SPECULATIVE)


def shapes_of(num_rows: int, num_classes: int, admission: bool = False) -> dict[str, tuple[int, ...]]:
    """Shapes of the observation's parts; `admission`: whether it is a decision, and has a part of its own."""
    own = len(ADMISSION_FEATURES) + len(ADMISSION_CLASS_FEATURES) * num_classes
    return ({"admission": (own,)} if admission else {}) | {
        "places": (num_rows, len(PLACE_FEATURES)),
        "request": (len(REQUEST_FEATURES) + num_classes,),
        "cluster": (len(CLUSTER_FEATURES),),
    }


class PlaceLoads(NamedTuple):
    """What the requests in flight come to at each place, (P,) each; names as in `PLACE_DTYPE`."""

    in_flight: NDArray[np.int64]
    unanswered: NDArray[np.int64]
    queued_tokens: NDArray[np.int64]
    context_tokens: NDArray[np.int64]
    remaining_tokens: NDArray[np.int64]


class StateEncoder:
    """Writes observations of one episode, decision by decision: it remembers how much had arrived at the last one.

    Args:
        engines: The places.
        slos: SLO of each class.
        scales: Scales of the observation.
        num_rows: Rows for places; at least as many as there are.
        admission: Whether admission is a decision.
    """

    def __init__(
        self,
        engines: NominalEngines,
        slos: tuple[SLO, ...],
        scales: RoutingScales,
        num_rows: int,
        admission: bool = False,
    ) -> None:
        self.engines, self.slos, self.scales, self.num_rows = engines, slos, scales, num_rows
        self.admission = admission
        self.reset()

    def reset(self) -> None:
        """Forgets the past: nothing has arrived, and the clock shows zero."""
        self._before_s = 0.0
        self._counts = np.zeros(
            7
        )  # arrivals, their tokens, predicted ones, promises of TTFT and of TPOT: all, broken
        self._short, self._long = (
            np.zeros(7),
            np.zeros(3),
        )  # exponential averages of these, and of the first three
        self._passed = np.zeros((2, len(self.slos)))  # requests sent and refused so far, by class ...
        self._passed_short = np.zeros((2, len(self.slos)))  # ... and their exponential averages a second

    def encode(self, state: RoutingState) -> tuple[Observation, NDArray[np.bool_]]:
        """The observation of a decision and its mask, (actions,); call it once a decision, in order."""
        self._remember(state)
        loads = place_loads(state, len(self.engines))
        shapes = shapes_of(self.num_rows, len(self.slos))
        places, request = (np.zeros(shapes[name], np.float32) for name in ("places", "request"))
        mask = np.zeros(self.num_rows + (3 if self.admission else 1), np.bool_)
        mask[self.num_rows] = True
        columns = self._places(state, loads)
        if state.request is not None:
            columns |= self._request_there(state, loads)
            request[:] = self._request(state)
            mask[: len(self.engines)] = state.can_take
            if self.admission:
                mask[self.num_rows + 1 :] = True, not state.request.deferred
        for column, name in enumerate(PLACE_FEATURES):
            if name in columns:
                places[: len(self.engines), column] = columns[name]
        observation: Observation = {"places": places, "request": request, "cluster": self._cluster(state)}
        if self.admission:
            observation["admission"] = self._admission(state)
        return observation, mask

    def _remember(self, state: RoutingState) -> None:
        """Lets the averages go on by what has happened since the last decision."""
        sums = state.totals.sum(axis=0)
        lost = sums[_COLUMN["refused"]] + sums[_COLUMN["failed"]]
        first, finished = sums[_COLUMN["first_tokens"]], sums[_COLUMN["finished"]]
        counts = np.array(
            [
                sums[_COLUMN["arrived"]],
                sums[_COLUMN["arrived_tokens"]],
                state.arrived_predicted_tokens,
                first + lost,
                first - sums[_COLUMN["ttft_met"]] + lost,
                finished + lost,
                finished - sums[_COLUMN["tpot_met"]] + lost,
            ]
        )
        new, dt_s = counts - self._counts, state.now_s - self._before_s
        short, long = self.scales.short_s, self.scales.long_s
        over = np.array([short] * 3 + [1.0] * 4)
        self._short = self._short * math.exp(-dt_s / short) + new / over
        self._long = self._long * math.exp(-dt_s / long) + new[:3] / long
        self._counts, self._before_s = counts, state.now_s
        if self.admission:
            passed = np.stack([state.sent_of_class, state.totals[:, _COLUMN["refused"]]])
            self._passed_short = (
                self._passed_short * math.exp(-dt_s / short) + (passed - self._passed) / short
            )
            self._passed = passed

    def _places(self, state: RoutingState, loads: PlaceLoads) -> dict[str, Floats]:
        scales, engines = self.scales, self.engines
        gauges = state.engines
        capacity = np.maximum(gauges["kv_capacity_tokens"], 1)
        decoding = loads.in_flight - loads.unanswered
        iteration_s = self._iteration_s(decoding, loads.context_tokens)
        peak = peak_tokens(state, loads) / capacity
        backlog_s = loads.queued_tokens * engines.prefill_s_per_token
        drain_s = loads.remaining_tokens * iteration_s / np.maximum(decoding, 1)
        return {
            "can_take": state.can_take if state.request is not None else np.zeros(len(engines)),
            "in_service": np.isin(gauges["status"], _IN_SERVICE),
            "in_flight": _log(loads.in_flight, scales.requests),
            "unanswered": _log(loads.unanswered, scales.requests),
            "waiting": _log(gauges["num_waiting"], scales.requests),
            "running": _log(gauges["num_running"], scales.requests),
            "kv_usage": gauges["kv_used_blocks"] / np.maximum(gauges["kv_capacity_blocks"], 1),
            "queued_tokens": _log(loads.queued_tokens, scales.tokens),
            "prefill_backlog_s": _log(backlog_s, scales.prefill_s),
            "remaining_tokens": _log(loads.remaining_tokens, scales.tokens),
            "drain_s": _log(drain_s, scales.decode_s),
            "context_usage": np.minimum(loads.context_tokens / capacity, HIGHEST),
            "peak_usage": np.minimum(peak, HIGHEST),
            "excess_usage": np.clip(peak - TARGET_USAGE, 0.0, HIGHEST),
            "iteration_s": _log(iteration_s, scales.iteration_s),
            "kv_capacity": _log(capacity, scales.capacity_tokens),
        }

    def _request_there(self, state: RoutingState, loads: PlaceLoads) -> dict[str, Floats]:
        request, engines, scales = state.request, self.engines, self.scales
        assert request is not None
        context = loads.context_tokens + request.input_tokens
        iteration_s = self._iteration_s(loads.in_flight - loads.unanswered, context)
        prefill_s = (request.input_tokens - request.cached_tokens) * engines.prefill_s_per_token
        network_s = np.where(np.isfinite(request.network_s), request.network_s, 0.0)
        return {
            "own_prefill_s": _log(prefill_s, scales.prefill_s),
            "own_decode_s": _log(request.predicted_tokens * iteration_s, scales.decode_s),
            "prefix_hit": request.cached_tokens / request.input_tokens,
            "network_s": _log(network_s, scales.prefill_s),
        }

    def _iteration_s(self, decoding: NDArray[np.int64], context_tokens: NDArray[np.int64]) -> Floats:
        """Seconds of a decode iteration with one request more than there are."""
        batch = np.minimum(decoding + 1, self.engines.max_num_seqs)
        return self.engines.decode_iteration_s(batch, context_tokens)

    def _request(self, state: RoutingState) -> Floats:
        request, scales = state.request, self.scales
        assert request is not None
        promise_s = self.slos[request.class_id].ttft_s
        left_s = request.deadline_s - state.now_s
        own = {
            "input_tokens": _log(request.input_tokens, scales.prompt_tokens),
            "predicted_tokens": _log(request.predicted_tokens, scales.prompt_tokens),
            "max_output_tokens": _log(request.max_output_tokens, scales.prompt_tokens),
            "slack": max(left_s, 0.0) / promise_s,
            "overdue": _log(-left_s / promise_s, 1.0),
            "waited_s": _log(state.now_s - request.arrival_s, scales.decode_s),
            "held_before": float(request.held_before),
        }
        of_class = np.zeros(len(self.slos))
        of_class[request.class_id] = 1.0
        return np.concatenate([[own[name] for name in REQUEST_FEATURES], of_class])

    def _cluster(self, state: RoutingState) -> NDArray[np.float32]:
        scales = self.scales
        requests, prompts, predicted, answered, late, ended, slow = self._short
        row = {
            "held": _log(state.num_held, scales.requests),
            "unsent_tokens": _log(state.unsent_tokens, scales.tokens),
            "requests_short": _log(requests, scales.request_rate),
            "requests_long": _log(self._long[0], scales.request_rate),
            "prompt_tokens_short": _log(prompts, scales.token_rate),
            "prompt_tokens_long": _log(self._long[1], scales.token_rate),
            "predicted_tokens_short": _log(predicted, scales.token_rate),
            "predicted_tokens_long": _log(self._long[2], scales.token_rate),
            "ttft_misses_short": late / max(answered, 1e-9),
            "tpot_misses_short": slow / max(ended, 1e-9),
            "gauge_age_s": _log(state.now_s - state.gauges_s, scales.prefill_s),
        }
        return np.array([row[name] for name in CLUSTER_FEATURES], np.float32)

    def _admission(self, state: RoutingState) -> NDArray[np.float32]:
        row = np.zeros(len(ADMISSION_FEATURES))
        if state.request is not None:
            saturation = saturation_of(state)
            row[:] = (
                urgency_of(state.request.priority) * (not state.request.deferred),
                state.request.deferred,
                min(saturation.mean(), HIGHEST) if len(saturation) else 1.0,
                min(saturation.max(), HIGHEST) if len(saturation) else 1.0,
            )
        of_classes = np.stack(
            [
                _log(state.held_of_class, self.scales.requests),
                *_log(self._passed_short, self.scales.request_rate),
            ],
            axis=1,
        )
        return np.concatenate([row, of_classes.reshape(-1)]).astype(np.float32)


def saturation_of(
    state: RoutingState,
    queue_depth_threshold: float = QUEUE_DEPTH_THRESHOLD,
    kv_cache_util_threshold: float = KV_CACHE_UTIL_THRESHOLD,
) -> Floats:
    """Saturation of the places in service that serve the request's model, as of the last poll.

    The larger of waiting requests and KV usage, each over its threshold: the `utilization` saturation detector of
    llm-d and of the Gateway API Inference Extension, whose defaults these are.

    Args:
        state: A state with a request.
        queue_depth_threshold: Waiting requests at which an engine is saturated.
        kv_cache_util_threshold: Share of KV blocks in use at which it is.

    Returns:
        (places that serve it,).
    """
    assert state.request is not None
    gauges = state.engines
    there = np.isin(gauges["status"], _IN_SERVICE) & np.isfinite(state.request.network_s)
    usage = gauges["kv_used_blocks"] / np.maximum(gauges["kv_capacity_blocks"], 1)
    saturation = np.maximum(gauges["num_waiting"] / queue_depth_threshold, usage / kv_cache_util_threshold)
    of_places: Floats = saturation[there]
    return of_places


def _log(value: Floats | NDArray[np.int64] | float, scale: float) -> Floats:
    result: Floats = np.log1p(np.maximum(value, 0.0) / scale)
    return result


def place_loads(state: RoutingState, num_places: int) -> PlaceLoads:
    """Sums over the requests that were sent to each place."""
    rows = state.in_flight
    answered = rows["first_token_s"] >= 0
    generated = rows["generated_tokens"].astype(np.int64)
    remaining = np.where(
        answered, expected_output(rows["predicted_tokens"], generated) - generated, rows["predicted_tokens"]
    )

    def total(values: NDArray[np.int64] | NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.bincount(rows["place"], values, num_places).astype(np.int64)

    return PlaceLoads(
        in_flight=np.bincount(rows["place"], minlength=num_places),
        unanswered=total(~answered),
        queued_tokens=total(np.where(answered, 0, rows["input_tokens"])),
        context_tokens=total(np.where(answered, rows["input_tokens"] + generated, 0)),
        remaining_tokens=total(remaining),
    )


def peak_tokens(state: RoutingState, loads: PlaceLoads) -> NDArray[np.int64]:
    """(P,), most tokens of context now and every few iterations ahead, if the request came; 0 where there is none."""
    if state.request is None:
        return np.zeros(len(loads.in_flight), np.int64)
    rows = state.in_flight[state.in_flight["first_token_s"] >= 0]
    generated = rows["generated_tokens"].astype(np.int64)
    remaining = expected_output(rows["predicted_tokens"], generated) - generated
    context = rows["input_tokens"] + generated
    peak = np.zeros(len(loads.in_flight), np.int64)
    for glance in range(NUM_GLANCES):
        ahead = glance * AHEAD_STEP
        stays = remaining > ahead if glance else np.ones(len(rows), bool)
        own = state.request.input_tokens + ahead if ahead < state.request.predicted_tokens else 0
        held = np.bincount(rows["place"], np.where(stays, context + ahead, 0), len(peak)).astype(np.int64)
        peak = np.maximum(peak, held + own)
    return peak


def expected_output(predicted: NDArray[np.int32], generated: NDArray[np.int64]) -> NDArray[np.int64]:
    """Output lengths expected of requests that have come so far: a fifth more whenever one outlives it, (M,).

    Source: PreServe, section 4.3.1.
    """
    expected = np.maximum(predicted.astype(np.int64), 1)
    while (outlived := expected <= generated).any():
        expected = np.where(outlived, expected + np.maximum(expected // 5, 1), expected)
    return expected
