"""Hand-made states of an autoscaler."""

from collections.abc import Mapping, Sequence

import numpy as np

from serving_gym.envs.autoscaling.state import (
    INSTANCE_DTYPE,
    AutoscalingSpec,
    AutoscalingState,
    EndpointState,
    InstanceStatus,
)
from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE, Endpoint, Traffic
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import IN_FLIGHT_DTYPE

HERE = Endpoint("llama", "east")
CAPACITY = 1000  # KV tokens of an instance


def spec(endpoints: Sequence[Endpoint] = (HERE,), **values) -> AutoscalingSpec:
    """Endpoints whose models serve 100 prompt tokens/s on one kind of GPU and start within 600 s."""
    models = len({endpoint.model for endpoint in endpoints})
    gpus = values.pop("gpus", ("H100",))
    defaults = {
        "endpoints": tuple(endpoints),
        "gpus": gpus,
        "classes": ("chat", "batch"),
        "interactive": (True, False),
        "slos": (SLO(1.0, 0.05), SLO(60.0, 1.0)),
        "capacity_tps": np.full((models, len(gpus)), 100.0),
        "start_s": np.full((models, len(gpus)), 600.0),
        "gpu_usd_per_h": np.full(len(gpus), 10.0),
        "min_instances": 1,
        "max_instances": 20,
    }
    return AutoscalingSpec(**{**defaults, **values})


def instances(rows: Sequence[Mapping] | int) -> np.ndarray:
    """Instances that run and have nothing to do, save for what the rows say."""
    given = [{}] * rows if isinstance(rows, int) else rows
    table = np.zeros(len(given), INSTANCE_DTYPE)
    table["status"] = InstanceStatus.RUNNING
    table["kv_capacity_tokens"] = CAPACITY
    table["due_s"] = np.nan
    for number, values in enumerate(given):
        for name, value in {"place": number, **values}.items():
            table[number][name] = value
    return table


def at(usage: float, count: int = 2) -> np.ndarray:
    """Instances whose KV is used to this share."""
    return instances([{"kv_used_tokens": round(usage * CAPACITY)}] * count)


def traffic(bin_s: float = 60.0, end_s: float = 0.0, **columns) -> Traffic:
    """A history with these columns; the others are zero."""
    lengths = {len(values) for values in columns.values()} or {0}
    rows = np.zeros(lengths.pop(), TRAFFIC_DTYPE)
    for name, values in columns.items():
        rows[name] = values
    return Traffic(bin_s, end_s, rows)


def endpoint(rows: Sequence[Mapping] | int | np.ndarray = 2, **values) -> EndpointState:
    """An endpoint without spot instances, queue or past."""
    table = rows if isinstance(rows, np.ndarray) else instances(rows)
    defaults = {
        "endpoint": HERE,
        "instances": table,
        "spot": np.zeros(1, np.int64),
        "num_held": 0,
        "niw_queued": 0,
        "niw_queued_tokens": 0,
        "niw_oldest_s": 0.0,
        "recent": traffic(),
        "history": traffic(),
    }
    return EndpointState(**{**defaults, **values})


def state(*endpoints: EndpointState, now_s: float = 0.0, **values) -> AutoscalingState:
    """A state with a hundred vacant machines in every region."""
    regions = {own.endpoint.region for own in endpoints}
    defaults = {
        "now_s": now_s,
        "clock_s": now_s,
        "endpoints": tuple(endpoints),
        "vacant": {region: np.full(1, 100) for region in regions},
        "in_flight": np.zeros(0, IN_FLIGHT_DTYPE),
    }
    return AutoscalingState(**{**defaults, **values})


def net(changes) -> int:
    """What changes add to the number of instances."""
    return sum(change.signed for change in changes)
