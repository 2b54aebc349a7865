"""Hand-made routing states.

state = routing_state(
    [engine(kv_usage=0.5), engine(num_waiting=3)],
    in_flight=[sent(to=0), sent(to=1, input_tokens=900)],
    request=arriving(hash_ids=[1, 2, 3]),
)
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE, IN_FLIGHT_DTYPE, TOTALS, EngineStatus
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

KV_BLOCKS = 1000  # of an engine
BLOCK_SIZE = 16  # tokens
MAX_NUM_SEQS = 256
CLASSES = ("chat", "batch")


def engine(kv_usage: float = 0.0, **gauges: int) -> dict[str, int]:
    """What an engine shows: an active, idle one, save for what is said.

    Args:
        kv_usage: Share of its KV blocks in use.
        gauges: Columns of ENGINE_STATE_DTYPE.
    """
    return {
        "status": EngineStatus.ACTIVE,
        "width": 1,
        "kv_capacity_blocks": KV_BLOCKS,
        "kv_capacity_tokens": KV_BLOCKS * BLOCK_SIZE,
        "kv_used_blocks": round(kv_usage * KV_BLOCKS),
        **gauges,
    }


def sent(to: int, **columns: float) -> dict[str, float]:
    """A request in flight: one of 100 tokens whose first token has not come, save for what is said.

    Args:
        to: Place it was sent to.
        columns: Columns of IN_FLIGHT_DTYPE.
    """
    return {
        "place": to,
        "first_token_s": -1.0,
        "input_tokens": 100,
        "predicted_tokens": 100,
        "max_output_tokens": 1000,
        **columns,
    }


def arriving(hash_ids: Sequence[int] = (), **fields: Any) -> RoutedRequest:
    """A request to be decided: one of 100 tokens that shares nothing, save for what is said.

    Args:
        hash_ids: Ids of its prompt's prefix blocks.
        fields: Fields of RoutedRequest; `cached_tokens` and `network_s` may be left to `routing_state`.
    """
    known = {
        "index": 0,
        "arrival_s": 10.0,
        "input_tokens": 100,
        "predicted_tokens": 100,
        "max_output_tokens": 1000,
        "priority": 0,
        "class_id": 0,
        "deadline_s": 11.0,
        "region": "local",
        "network_s": np.zeros(0),
        "hash_ids": np.asarray(hash_ids, np.int32),
        "hash_block_tokens": BLOCK_SIZE,
        "cached_tokens": np.zeros(0, np.int64),
        "held_before": False,
    } | fields
    known["cached_tokens"] = np.asarray(known["cached_tokens"], np.int64)
    return RoutedRequest(**known)


SOME_REQUEST = arriving()


def routing_state(
    engines: int | Sequence[Mapping[str, int]] = 4,
    *,
    in_flight: Sequence[int] | Sequence[Mapping[str, float]] = (),
    request: RoutedRequest | None = SOME_REQUEST,
    can_take: Sequence[bool] | None = None,
    now_s: float = 10.0,
    gauges_s: float | None = None,
) -> RoutingState:
    """What a router knows.

    Args:
        engines: What each shows (`engine`); a number: so many idle ones.
        in_flight: Requests in flight (`sent`); numbers: how many each engine has.
        request: The one to be decided (`arriving`); without: some; None: the episode has ended.
        can_take: (P,); without: all can.
        now_s: Now.
        gauges_s: When gauges were read; without: now.
    """
    shown = [engine()] * engines if isinstance(engines, int) else engines
    flights: list[Mapping[str, float]] = []
    for place, given in enumerate(in_flight):
        flights += [given] if isinstance(given, Mapping) else [sent(place)] * given
    if request is not None and not len(request.cached_tokens):
        request = replace(request, cached_tokens=np.zeros(len(shown), np.int64))
    if request is not None and not len(request.network_s):
        request = replace(request, network_s=np.zeros(len(shown)))
    return RoutingState(
        now_s=now_s,
        gauges_s=now_s if gauges_s is None else gauges_s,
        engines=_table(ENGINE_STATE_DTYPE, shown),
        in_flight=_table(IN_FLIGHT_DTYPE, [{"index": i, **row} for i, row in enumerate(flights)]),
        request=request,
        can_take=np.ones(len(shown), bool) if can_take is None else np.asarray(can_take, bool),
        num_held=0,
        held_tokens=0,
        unsent_tokens=0,
        gpu_seconds=np.zeros(len(shown)),
        operations=(),
        totals=np.zeros((len(CLASSES), len(TOTALS))),
        arrived_predicted_tokens=0,
    )


def routing_spec(num_places: int = 4, slo: SLO | None = None, **columns: Any) -> PolicySpec:
    """The setting: engines that are alike (1 ms a prompt token, 10 ms an iteration, 1 us a token of context).

    Args:
        num_places: P.
        slo: Of every class; without: 1 s and 50 ms.
        columns: Fields of NominalEngines that differ.
    """

    def each(value: float, dtype: type = np.int64) -> np.ndarray:
        return np.full(num_places, value, dtype)

    nominal = {
        "models": ("m",) * num_places,
        "regions": ("local",) * num_places,
        "gpus": ("H100",) * num_places,
        "num_gpus": each(1),
        "block_size": each(BLOCK_SIZE),
        "kv_capacity_tokens": each(KV_BLOCKS * BLOCK_SIZE),
        "max_num_seqs": each(MAX_NUM_SEQS),
        "max_num_batched_tokens": each(8192),
        "prefill_s_per_token": each(1e-3, np.float64),
        "decode_s": np.full((num_places, MAX_NUM_SEQS + 1), 0.01),
        "kv_s_per_token": each(1e-6, np.float64),
    } | columns
    return PolicySpec(
        FleetSpec((GroupSpec(ReplicaSpec("m", "H100"), num_places),)),
        (slo or SLO(1.0, 0.05),) * len(CLASSES),
        CLASSES,
        0.05,
        NominalEngines(**nominal),
        queue_capacity=1000,
    )


def busy_state(
    rng: np.random.Generator, num_places: int = 16, num_in_flight: int = 400, **kwargs: Any
) -> RoutingState:
    """A drawn state of many engines and many requests in flight."""
    engines = [
        engine(
            rng.random(),
            num_running=int(rng.integers(1, 100)),
            num_waiting=int(rng.integers(10)),
            pending_prefill_tokens=int(rng.integers(5000)),
            context_tokens=int(rng.integers(100_000)),
        )
        for _ in range(num_places)
    ]
    flights = [
        sent(
            int(rng.integers(num_places)),
            arrival_s=float(rng.uniform(0, 10)),
            first_token_s=float(rng.choice([-1.0, 10.0])),
            input_tokens=int(rng.integers(1, 4000)),
            generated_tokens=int(rng.integers(150)),
            class_id=int(rng.integers(len(CLASSES))),
        )
        for _ in range(num_in_flight)
    ]
    return routing_state(engines, in_flight=flights, **kwargs)


def state_to_json(state: RoutingState) -> dict[str, Any]:
    """A state as plain values."""
    values = {field.name: _plain(getattr(state, field.name)) for field in fields(state)}
    values["request"] = None
    if state.request is not None:
        values["request"] = {
            field.name: _plain(getattr(state.request, field.name)) for field in fields(state.request)
        }
    values["operations"] = []
    return values


def _plain(value: Any) -> Any:
    """A field as JSON knows it; what is infinite becomes null."""
    if isinstance(value, np.ndarray):
        if value.dtype.names is not None:
            return [dict(zip(value.dtype.names, row, strict=True)) for row in value.tolist()]
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _table(dtype: np.dtype, rows: Sequence[Mapping[str, float]]) -> np.ndarray:
    table = np.zeros(len(rows), dtype)
    for i, row in enumerate(rows):
        for name, value in row.items():
            table[name][i] = value
    return table
