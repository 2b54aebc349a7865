"""State of an autoscaling policy, and its specification.

An endpoint is a model in a region, with instances on GPUs of one kind or several. An instance is one copy of a model on
GPUs of its own. One that is leased to others by the hour is a spot instance: it belongs to its endpoint, serves none of
its requests and can be reclaimed faster than a new one starts (SageServe, section 2.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.fields import check_positive
from serving_gym.envs.interface.scaling import (
    Endpoint,
    Pool,
    Traffic,
)
from serving_gym.envs.interface.slo import SLO


class InstanceStatus(IntEnum):
    """Status of an instance."""

    STARTING = 0  # from any source; serves nothing yet
    RUNNING = 1
    DRAINING = 2  # takes no new requests, finishes its requests, then is removed


# One row per instance that is not a spot instance. All values are available from the engine's gauges and its launcher.
INSTANCE_DTYPE = np.dtype(
    [
        ("place", np.int32),  # which instance: unique in the fleet
        ("status", np.int32),  # InstanceStatus
        ("pool", np.int32),  # Pool
        ("gpu", np.int32),  # index of its kind of GPU: column of the spec's tables
        ("since_s", np.float64),  # time of entering this status
        ("due_s", np.float64),  # of a starting one: expected time to serve; NaN: unknown
        ("num_running", np.int32),
        ("num_waiting", np.int32),  # in its own queue
        ("num_interactive", np.int32),  # interactive requests that it runs or has waiting, by the gateway
        ("waiting_tokens", np.int64),  # tokens to prefill of waiting requests
        ("kv_used_tokens", np.int64),
        ("kv_capacity_tokens", np.int64),  # capacity of its KV pool
    ],
    align=True,
)


@dataclass(frozen=True, slots=True)
class EndpointState:
    """State of an endpoint.

    Attributes:
        endpoint: The endpoint.
        instances: (I,) INSTANCE_DTYPE, spot instances left out.
        spot: (G,) spot instances that can be reclaimed, by kind of GPU.
        num_held: Interactive requests that wait at the gateway because no instance can take them.
        niw_queued: Non-interactive requests that the queue manager holds for it.
        niw_queued_tokens: Their tokens, prompt and predicted answer.
        niw_oldest_s: Age of the oldest of them, seconds; 0 if there is none.
        recent: Traffic in short bins (seconds), over the time window of a fast controller.
        history: Traffic in longer bins (minutes), including days before the episode.
        weights_local: Whether the region's storage holds the model's weights.
        release_level: Release level of non-interactive requests
            (`envs.interface.scaling.QueueSpec.levels`).
    """

    endpoint: Endpoint
    instances: NDArray[np.void]
    spot: NDArray[np.int64]
    num_held: int
    niw_queued: int
    niw_queued_tokens: int
    niw_oldest_s: float
    recent: Traffic
    history: Traffic
    weights_local: bool = True
    release_level: int = 0

    def with_status(self, *status: InstanceStatus) -> NDArray[np.void]:
        """Rows of the instances with one of these statuses, of which there is at least one."""
        own = self.instances["status"]
        wanted = own == status[0]
        for other in status[1:]:
            wanted |= own == other
        return self.instances[wanted]

    @property
    def running(self) -> NDArray[np.void]:
        """Rows of the instances that take requests."""
        return self.with_status(InstanceStatus.RUNNING)

    @property
    def starting(self) -> NDArray[np.void]:
        """Rows of the starting instances."""
        return self.with_status(InstanceStatus.STARTING)

    @property
    def present(self) -> NDArray[np.void]:
        """Rows of running and starting instances, which together are "the number of instances"."""
        return self.with_status(InstanceStatus.RUNNING, InstanceStatus.STARTING)

    def utilization(self, pool: Pool | None = None) -> float:
        """Effective memory utilisation (SageServe, section 6.1): KV in use over KV there is, of running instances.

        Infinite where none runs.

        Args:
            pool: Only instances of this pool; None: all.
        """
        rows = self.running if pool is None else self.running[self.running["pool"] == pool]
        capacity = int(rows["kv_capacity_tokens"].sum())
        return int(rows["kv_used_tokens"].sum()) / capacity if capacity else float("inf")


@dataclass(frozen=True, slots=True)
class AutoscalingState:
    """State that an autoscaling policy may read at a decision. E endpoints, G kinds of GPU, M requests in flight.

    Attributes:
        now_s: Time since the episode began.
        clock_s: Time of day and week on the clock at the fleet: seconds since Monday, 0:00.
        endpoints: (E,) in the order of the spec.
        vacant: By region, (G,) machines of each kind that hold no instance, spot ones included in neither.
        in_flight: (M,) IN_FLIGHT_DTYPE of `envs.interface.state`: requests that the gateway has sent to an instance
            (`place`) and whose answers have not ended.
        coming: (E,) expected requests and tokens in bins from now on, `end_s` being the end of the last: the future,
            for clairvoyant references alone.
    """

    now_s: float
    clock_s: float
    endpoints: tuple[EndpointState, ...]
    vacant: Mapping[str, NDArray[np.int64]]
    in_flight: NDArray[np.void]
    coming: tuple[Traffic, ...] = ()

    def of(self, endpoint: Endpoint) -> EndpointState:
        """An endpoint by name."""
        return next(state for state in self.endpoints if state.endpoint == endpoint)


@dataclass(frozen=True)
class AutoscalingSpec:
    """Specification of an autoscaling environment. E endpoints, L models, G kinds of GPU, C request classes.

    Attributes:
        endpoints: (E,) models and regions.
        gpus: (G,) kinds of machine.
        classes: (C,) names of request classes.
        interactive: (C,) whether each is interactive.
        slos: (C,) SLOs.
        capacity_tps: (L, G) prompt tokens/s that an instance serves within its SLOs, as benchmarked
            (SageServe's theta); 0: the model does not run there. Rows in the order of `models`.
        start_s: (L, G) seconds that a start from the region's storage takes.
        gpu_usd_per_h: (G,) price of a machine.
        min_instances: Fewest instances of an endpoint.
        max_instances: Most.
        decision_interval_s: Time between decisions.
        places: (E, G) most instances of each endpoint on each kind of machine; None: no more than `max_instances`.
        max_change: Most instances by which a vector of the action space changes an endpoint.
        num_levels: Release levels of non-interactive requests.
    """

    decision: ClassVar[str] = "how many instances there are"

    endpoints: tuple[Endpoint, ...]
    gpus: tuple[str, ...]
    classes: tuple[str, ...]
    interactive: tuple[bool, ...]
    slos: tuple[SLO, ...]
    capacity_tps: NDArray[np.float64]
    start_s: NDArray[np.float64]
    gpu_usd_per_h: NDArray[np.float64]
    min_instances: int = 2
    max_instances: int = 20
    decision_interval_s: float = 60.0
    places: NDArray[np.int64] | None = None
    max_change: int = 2
    num_levels: int = 1
    models: tuple[str, ...] = field(init=False)
    regions: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", tuple(dict.fromkeys(e.model for e in self.endpoints)))
        object.__setattr__(self, "regions", tuple(dict.fromkeys(e.region for e in self.endpoints)))
        shape = (len(self.models), len(self.gpus))
        for name in ("capacity_tps", "start_s"):
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} must have the shape {shape}, got {getattr(self, name).shape}")
        if self.gpu_usd_per_h.shape != shape[1:]:
            raise ValueError(f"gpu_usd_per_h must have the shape {shape[1:]}, got {self.gpu_usd_per_h.shape}")
        if not len(self.classes) == len(self.interactive) == len(self.slos):
            raise ValueError("classes, interactive and slos must be equally long")
        if not 0 <= self.min_instances <= self.max_instances:
            raise ValueError(
                f"min_instances must lie between 0 and max_instances ({self.max_instances}), got {self.min_instances}"
            )
        check_positive(self, "decision_interval_s")
