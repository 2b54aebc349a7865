"""Scheduling and routing settings common to the specs of all simulated clusters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.engines import FRONT_ENDS, SCHEDULERS, Frontend
from serving_gym.calibration.engines import scheduler_of as scheduler_of_engine
from serving_gym.calibration.fields import check_not_negative, check_positive
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
    V0,
    V0_SWAP,
    V1,
    Tables,
    rows_of,
)

Scheduling = ClusterSpec | FleetSpec | DeploymentSpec
QUEUE_ORDERS = {"fcfs": FCFS, "priority": PRIORITY, "edf": EDF, "dpa": DPA}
PREEMPTIONS = ("recompute", "swap")


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


def with_factors(tables: Tables, factors: Sequence[float]) -> Tables:
    """Tables with all rows of `tables` for each of the factors on iteration times, those of the first factor first."""
    if tuple(factors) == (1.0,):
        return tables
    kinds = np.concatenate([tables.kinds] * len(factors))
    for name in ("sequence_ps", "kv_ps", "attn_fs"):
        kinds[name] = _stretched(tables.kinds[name], factors)
    return tables._replace(
        decode_ps=_stretched(tables.decode_ps, factors),
        mixed_ps=_stretched(tables.mixed_ps, factors),
        kinds=kinds,
        fronts=np.concatenate([tables.fronts] * len(factors)),
    )


def _stretched(times: NDArray[np.int64], factors: Sequence[float]) -> NDArray[np.int64]:
    return np.concatenate([np.rint(times * factor).astype(np.int64) for factor in factors])


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
    if spec.scheduler is not None:
        check_choice(f"{name}.scheduler", spec.scheduler, SCHEDULERS)
    check_choice(f"{name}.preemption", spec.preemption, PREEMPTIONS)
    check_not_negative(spec, "swap_gib", prefix=f"{name}.", finite=True)


def schedules_async(asked: bool | None, order: str, profile: Profile) -> bool:
    """Whether engines schedule asynchronously: as configured, else as the engine of the profile, but for order=dpa.

    Raises:
        ValueError: asynchronous scheduling is not possible with deadline orders.
    """
    asynchronous = profile.async_scheduling and order != "dpa" if asked is None else asked
    if asynchronous and order == "dpa":
        raise ValueError("order=dpa needs async_scheduling=false: it is no order of vLLM's")
    return asynchronous


def scheduler_of(spec: Scheduling, profile: Profile, max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """The kernel's scheduler of an engine: as configured, else that of the profile's engine.

    Args:
        spec: The cluster.
        profile: Where the engine's latency comes from.
        max_num_seqs: Most running requests of the engine.
        max_num_batched_tokens: Token budget of its iterations.

    Raises:
        ValueError: The scheduler does not do what the cluster asks of it.
    """
    name = "fleet" if isinstance(spec, FleetSpec) else "cluster"
    chosen = spec.scheduler
    if chosen is None:
        chosen = "v1" if spec.chunked_prefill else scheduler_of_engine(profile.engine)
    if chosen == "v1":
        if spec.preemption != "recompute":
            raise ValueError(f"{name}.preemption={spec.preemption} needs {name}.scheduler=v0: V1 recomputes")
        return V1
    lacking = _lacking_in_v0(spec)
    if max_num_seqs > max_num_batched_tokens:
        lacking.append(f"max_num_batched_tokens of at least max_num_seqs ({max_num_seqs})")
    if lacking:
        whose = "" if spec.scheduler else f" (the scheduler of {profile.engine})"
        raise ValueError(f"{name}.scheduler=v0{whose} needs {lacking[0]}; or choose {name}.scheduler=v1")
    return V0 if spec.preemption == "recompute" else V0_SWAP


def _lacking_in_v0(spec: Scheduling) -> list[str]:
    """What vLLM's default mode before V1 needs and a cluster does not have."""
    if isinstance(spec, FleetSpec):
        split = any(group.replica.role != "mixed" for group in spec.groups)
    else:
        split = isinstance(spec, DeploymentSpec) and spec.disaggregation
    asynchronous = not isinstance(spec, DeploymentSpec) and bool(spec.async_scheduling)
    needs = (
        (spec.order == "fcfs", f"order=fcfs, got {spec.order}"),
        (not spec.chunked_prefill, "chunked_prefill=false, or null"),
        (not spec.prefix_caching, "prefix_caching=false"),
        (not asynchronous, "async_scheduling=false"),
        (spec.long_prefill_token_threshold == 0, "long_prefill_token_threshold=0"),
        (not split, "replicas that prefill and decode"),
    )
    return [what for given, what in needs if not given]
