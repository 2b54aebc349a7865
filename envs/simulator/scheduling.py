"""Scheduling and routing settings common to the specs of all simulated clusters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.engines import FRONT_ENDS, Frontend
from serving_gym.calibration.fields import check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.calibration.profile import Profile
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetSpec
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.simulator.kernel.state import (
    DPA,
    EDF,
    FCFS,
    FRONT_DTYPE,
    PRIORITY,
    PS_PER_S,
    ROUTER_NAMES,
    rows_of,
)

Scheduling = ClusterSpec | FleetSpec | DeploymentSpec
QUEUE_ORDERS = {"fcfs": FCFS, "priority": PRIORITY, "edf": EDF, "dpa": DPA}


def to_ps(seconds: float) -> int:
    """Seconds as the kernel's integer picoseconds."""
    return round(seconds * PS_PER_S)


def front_rows(spec: Scheduling, front_ends: Sequence[Frontend]) -> NDArray[np.void]:
    """What lies between engines of some kinds and their clients, (K,) FRONT_DTYPE, or none."""
    if spec.front_end == "none" or all(front_end == Frontend() for front_end in front_ends):
        return np.zeros(0, FRONT_DTYPE)
    return rows_of(
        FRONT_DTYPE,
        fixed_ps=[to_ps(front_end.fixed_s) for front_end in front_ends],
        token_ps=[to_ps(front_end.token_s) for front_end in front_ends],
        request_ps=[to_ps(front_end.request_s) for front_end in front_ends],
        iterations=[front_end.pipeline_iterations for front_end in front_ends],
    )


def check_scheduling(spec: Scheduling, name: str) -> None:
    """Raises ValueError if scheduling settings are invalid; `name`: name of the spec in messages."""
    if isinstance(spec, DeploymentSpec):
        routers = [spec.router]
    else:
        others = ("weighted",) if isinstance(spec, ClusterSpec) else ("weighted", "affinity")
        routers = [router for router in ROUTER_NAMES if router not in others]
    if spec.router not in routers:
        raise ValueError(f"{name}.router must be one of {', '.join(routers)}, got {spec.router!r}")
    if spec.order not in QUEUE_ORDERS:
        raise ValueError(f"{name}.order must be one of {', '.join(QUEUE_ORDERS)}, got {spec.order!r}")
    check_choice(f"{name}.front_end", spec.front_end, FRONT_ENDS)
    for field in ("dpa_expired_s", "dpa_urgent_s"):
        if getattr(spec, field) < 0:
            raise ValueError(f"{name}.{field} must not be negative, got {getattr(spec, field)}")
    check_positive(spec, "request_timeout_s", prefix=f"{name}.", finite=True)
    if spec.long_prefill_token_threshold < 0:
        raise ValueError(f"{name}.long_prefill_token_threshold must be 0 (none) or positive")


def schedules_async(asked: bool | None, order: str, profile: Profile) -> bool:
    """Whether engines schedule asynchronously: as configured, else as the engine of the profile, but for order=dpa.

    Raises:
        ValueError: asynchronous scheduling is not possible with deadline orders.
    """
    asynchronous = profile.async_scheduling and order != "dpa" if asked is None else asked
    if asynchronous and order == "dpa":
        raise ValueError("order=dpa needs async_scheduling=false: it is no order of vLLM's")
    return asynchronous
