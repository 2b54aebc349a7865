"""Request rates of models: their statistics and features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.compiled import compiled, entry
from serving_gym.envs.simulator.sharing.arrays import DEMAND_S

_LEAST_RATE = 1e-4  # 1/s, of requests of a model


@compiled
def log_of(value: float, scale: float) -> float:
    """log(1 + value / scale), of what is not negative.

    Args:
        value: Of any unit.
        scale: In the same unit.
    """
    return np.log(np.float32(1.0 + max(value, 0.0) / scale))


@compiled
def note_demand(demand: NDArray[np.float64], now_s: float) -> None:
    """Another request of a model has come.

    Args:
        demand: (2 + len(DEMAND_S),), of `SharingWorld.demand`.
        now_s: When.
    """
    if demand[2] == 0:
        demand[0] = now_s
    for k in range(len(DEMAND_S)):
        demand[2 + k] = demand[2 + k] * np.exp((demand[1] - now_s) / DEMAND_S[k]) + 1.0
    demand[1] = now_s


@compiled
def write_demand(
    demand: NDArray[np.float64],
    now_s: float,
    scale: float,
    asked: int,
    known: int,
    gap: int,
    row: NDArray[np.float32],
) -> None:
    """How often a model is asked for, from the columns given on; those below 0 are left out.

    Args:
        demand: (2 + len(DEMAND_S),), of `SharingWorld.demand`.
        now_s: Time.
        scale: Of seconds.
        asked: Column of the time since the last request.
        known: Column of the time since the first.
        gap: First column of the mean times between requests.
        row: (columns,), zero.
    """
    since = now_s - demand[1]
    if demand[2] > 0:
        if asked >= 0:
            row[asked] = log_of(since, scale)
            row[known] = log_of(now_s - demand[0], scale)
        for k in range(len(DEMAND_S)):
            rate = demand[2 + k] * np.exp(-since / DEMAND_S[k]) / DEMAND_S[k]
            row[gap + k] = log_of(1.0 / max(rate, _LEAST_RATE), scale)


@entry
def demand_at(
    arrival_s: NDArray[np.float64],
    at_s: NDArray[np.float64],
    end_s: float,
    scale: float,
    demand: NDArray[np.float64],
    seen: NDArray[np.float32],
    until_s: NDArray[np.float64],
    asked: NDArray[np.bool_],
) -> None:
    """Looks at one model at several moments.

    Args:
        arrival_s: (A,), its requests.
        at_s: (K,), in order of time, none before its first request.
        end_s: After which nobody asks.
        scale: Of seconds.
        demand: (2 + len(DEMAND_S),), zero; what is kept at the last moment.
        seen: (K, 2 + len(DEMAND_S)), zero; as the last columns of a row of the observation.
        until_s: (K,), until its next request, or until the end if there is none.
        asked: (K,), whether there is one.
    """
    k = 0
    for j in range(len(at_s)):
        while k < len(arrival_s) and arrival_s[k] <= at_s[j]:
            note_demand(demand, arrival_s[k])
            k += 1
        write_demand(demand, at_s[j], scale, 0, 1, 2, seen[j])
        asked[j] = k < len(arrival_s)
        until_s[j] = (arrival_s[k] if k < len(arrival_s) else end_s) - at_s[j]
