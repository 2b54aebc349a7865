"""Scheduling and routing settings common to the specs of all simulated clusters."""

from __future__ import annotations

from serving_gym.calibration.fields import check_positive
from serving_gym.calibration.profile import Profile
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetSpec
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.simulator.kernel.state import DPA, EDF, FCFS, PRIORITY, PS_PER_S, ROUTER_NAMES

Scheduling = ClusterSpec | FleetSpec | DeploymentSpec
QUEUE_ORDERS = {"fcfs": FCFS, "priority": PRIORITY, "edf": EDF, "dpa": DPA}


def to_ps(seconds: float) -> int:
    """Seconds as the kernel's integer picoseconds."""
    return round(seconds * PS_PER_S)


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
    for field in ("dpa_expired_s", "dpa_urgent_s"):
        if getattr(spec, field) < 0:
            raise ValueError(f"{name}.{field} must not be negative, got {getattr(spec, field)}")
    check_positive(spec, "request_timeout_s", prefix=f"{name}.", finite=True)
    if spec.long_prefill_token_threshold < 0:
        raise ValueError(f"{name}.long_prefill_token_threshold must be 0 (none) or positive")


def schedules_async(asked: bool | None, order: str, profile: Profile) -> bool:
    """Whether engines schedule asynchronously: as configured, else as the engine of the profile.

    Raises:
        ValueError: asynchronous scheduling is not possible with deadline orders.
    """
    asynchronous = profile.async_scheduling if asked is None else asked
    if asynchronous and order == "dpa":
        raise ValueError("order=dpa needs async_scheduling=false: it is no order of vLLM's")
    return asynchronous
