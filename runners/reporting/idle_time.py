"""Idle time that a trace has and its simulation leaves out: results count it whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from serving_gym.envs.interface.metrics import RequestRecords
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.schema import Workload

_HOUR_S = 3600.0
_TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")


def skipped_s(workload: Workload) -> float:
    """Idle time between the first and the last request that is left out, seconds."""
    return workload.whole_duration_s - workload.duration_s if len(workload) else 0.0


def whole_records(records: RequestRecords, workload: Workload) -> RequestRecords:
    """The same records with times that count the idle time."""
    if workload.skipped_s is None:
        return records
    later_s = (workload.skipped_s - workload.skipped_s[0])[records.index]
    return replace(records, **{name: np.asarray(getattr(records, name)) + later_s for name in _TIMES})


def whole_usage(simulator: Simulator | FleetSimulator, workload: Workload) -> dict[str, float]:
    """Resources that a cluster has used, those of the idle time among them: measured over an idle hour at its end."""
    used = simulator.usage().totals()
    hours = skipped_s(workload) / _HOUR_S
    if hours == 0.0:
        return used
    idle = simulator.fork()
    idle.advance(idle.now_s + _HOUR_S)
    an_hour = idle.usage().totals()
    return {name: value + hours * (an_hour[name] - value) for name, value in used.items()}
