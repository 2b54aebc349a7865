"""Writes a routing state in the wire form that `runners.serving.wire` reads."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

_TABLES = {"engines": {"status": int(EngineStatus.ACTIVE)}, "in_flight": {"first_token_s": -1.0}}
_LEFT_OUT = ("operations",)  # the wire form has none


def state_to_json(state: RoutingState) -> dict[str, Any]:
    """A state as plain values; columns at their defaults are left out.

    Args:
        state: The state.
    """
    values: dict[str, Any] = {}
    for entry in fields(state):
        value = getattr(state, entry.name)
        if entry.name in _TABLES:
            values[entry.name] = _rows(value, _TABLES[entry.name])
        elif isinstance(value, RoutedRequest):
            values[entry.name] = _request(value)
        elif entry.name not in _LEFT_OUT and not (isinstance(value, np.ndarray) and value.size == 0):
            values[entry.name] = _plain(value)
    return values


def _rows(table: NDArray[np.void], defaults: dict[str, float]) -> list[dict[str, Any]]:
    names = table.dtype.names or ()
    return [
        {
            name: value
            for name, value in zip(names, row, strict=True)
            if name == "place" or value != defaults.get(name, 0)
        }
        for row in table.tolist()
    ]


def _request(request: RoutedRequest) -> dict[str, Any]:
    values = {entry.name: _plain(getattr(request, entry.name)) for entry in fields(request)}
    values["network_s"] = [None if np.isinf(far) else far for far in values["network_s"]]
    if not values["hash_ids"]:
        del values["hash_ids"], values["hash_block_tokens"]
    return values


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
