"""Reads a routing state from JSON, for policies served over HTTP.

A state is an object with the fields of `RoutingState`. `engines` and `in_flight` are lists of objects with the columns
of their dtypes; columns that are left out are zero, an engine without `status` is active. Of the state itself only
`now_s`, `engines`, `in_flight` and `request` are needed, and of the request only `index`, `arrival_s` and
`input_tokens`. Missing values are zero if zero is meaningful (nothing is held, cached or distant), else derived from
the other values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE, IN_FLIGHT_DTYPE, TOTALS, EngineStatus
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

_NEEDED = ("now_s", "engines", "in_flight", "request")
_REQUEST_NEEDED = ("index", "arrival_s", "input_tokens")


def state_from_json(values: Mapping[str, Any], num_places: int, slos: Sequence[SLO]) -> RoutingState:
    """A state from plain values.

    Args:
        values: The fields of a state, or some of them.
        num_places: Replica slots of the fleet.
        slos: SLO of each class.

    Raises:
        ValueError: a required value is missing, or a value is unknown or invalid.
    """
    _check_keys("state", values, _NEEDED, [field.name for field in fields(RoutingState)])
    engines = _table("engines", values["engines"], ENGINE_STATE_DTYPE, {"status": int(EngineStatus.ACTIVE)})
    if len(engines) != num_places:
        raise ValueError(f"state.engines must have a row for each of {num_places} places, got {len(engines)}")
    flights = _table("in_flight", values["in_flight"], IN_FLIGHT_DTYPE, {"first_token_s": -1.0})
    if len(flights) and not (flights["place"].min() >= 0 and flights["place"].max() < num_places):
        raise ValueError(f"state.in_flight.place must lie in [0, {num_places})")
    now_s = _number("state.now_s", values["now_s"])
    request = None if values["request"] is None else _request(values["request"], num_places, slos)
    held_tokens = int(_number("state.held_tokens", values.get("held_tokens", 0)))
    own_tokens = 0 if request is None else request.input_tokens
    in_service = np.isin(engines["status"], (EngineStatus.ACTIVE, EngineStatus.SPECULATIVE))
    return RoutingState(
        now_s=now_s,
        gauges_s=_number("state.gauges_s", values.get("gauges_s", now_s)),
        engines=engines,
        in_flight=flights,
        request=request,
        can_take=_array("state.can_take", values.get("can_take", in_service), np.bool_, (num_places,)),
        num_held=int(_number("state.num_held", values.get("num_held", 0))),
        held_tokens=held_tokens,
        unsent_tokens=int(
            _number("state.unsent_tokens", values.get("unsent_tokens", held_tokens + own_tokens))
        ),
        gpu_seconds=_array(
            "state.gpu_seconds", values.get("gpu_seconds", [0.0] * num_places), np.float64, (num_places,)
        ),
        operations=(),
        totals=_array(
            "state.totals",
            values.get("totals", np.zeros((len(slos), len(TOTALS)))),
            np.float64,
            (len(slos), len(TOTALS)),
        ),
        arrived_predicted_tokens=int(
            _number("state.arrived_predicted_tokens", values.get("arrived_predicted_tokens", 0))
        ),
    )


def _request(values: Any, num_places: int, slos: Sequence[SLO]) -> RoutedRequest:
    _check_keys("state.request", values, _REQUEST_NEEDED, [field.name for field in fields(RoutedRequest)])

    def number(name: str, default: float = 0.0) -> float:
        return _number(f"state.request.{name}", values.get(name, default))

    class_id = int(number("class_id"))
    if not 0 <= class_id < len(slos):
        raise ValueError(f"state.request.class_id must lie in [0, {len(slos)}), got {class_id}")
    input_tokens = int(number("input_tokens"))
    if input_tokens < 1:
        raise ValueError(f"state.request.input_tokens must be at least 1, got {input_tokens}")
    arrival_s, most = number("arrival_s"), number("max_output_tokens", number("predicted_tokens", 1))
    network = [np.inf if far is None else far for far in values.get("network_s", [0.0] * num_places)]
    return RoutedRequest(
        index=int(number("index")),
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        predicted_tokens=int(number("predicted_tokens", most)),
        max_output_tokens=int(most),
        priority=int(number("priority")),
        class_id=class_id,
        deadline_s=number("deadline_s", arrival_s + slos[class_id].ttft_s),
        region=str(values.get("region", "")),
        network_s=_array("state.request.network_s", network, np.float64, (num_places,)),
        hash_ids=_array("state.request.hash_ids", values.get("hash_ids", []), np.int32, None),
        hash_block_tokens=int(number("hash_block_tokens", 1)),
        cached_tokens=_array(
            "state.request.cached_tokens",
            values.get("cached_tokens", [0] * num_places),
            np.int64,
            (num_places,),
        ),
        held_before=bool(values.get("held_before", False)),
    )


def _check_keys(what: str, values: Any, needed: Sequence[str], known: Sequence[str]) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{what} must be an object, got {type(values).__name__}")
    for name in values:
        check_choice(f"key of {what}", str(name), known)
    for name in needed:
        if name not in values:
            raise ValueError(f"{what}.{name} is missing")


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def _array(name: str, values: Any, dtype: type, shape: tuple[int, ...] | None) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.asarray(values, dtype)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a list of numbers, got {str(values)[:80]!r}") from None
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} must have the shape {shape}, got {array.shape}")
    return array


def _table(name: str, rows: Any, dtype: np.dtype[Any], defaults: Mapping[str, float]) -> NDArray[np.void]:
    if not isinstance(rows, list):
        raise ValueError(f"state.{name} must be a list of objects, got {type(rows).__name__}")
    table = np.zeros(len(rows), dtype)
    for column, value in defaults.items():
        table[column] = value
    for number, row in enumerate(rows):
        _check_keys(f"state.{name}", row, (), dtype.names or ())
        for column, value in row.items():
            table[number][column] = _number(f"state.{name}.{column}", value)
    return table
