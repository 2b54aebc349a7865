"""What an autoscaler knows at a decision, and what it can say.

An endpoint is a model in a region, with instances on GPUs of one kind or several. An instance is one copy of a model on
GPUs of its own. One that is leased to others by the hour is a spot instance: it belongs to its endpoint, serves none of
its requests and can be had back faster than a new one starts (SageServe, section 2.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.backend import SLO


class Endpoint(NamedTuple):
    """A model in a region."""

    model: str
    region: str


class InstanceStatus(IntEnum):
    """What an instance is doing."""

    STARTING = 0  # it comes, from wherever: it serves nothing yet
    RUNNING = 1
    DRAINING = 2  # gets no new requests, finishes those it has, then goes


class Pool(IntEnum):
    """Which requests an instance is for."""

    MIXED = 0  # all: the unified pool
    INTERACTIVE = 1
    BATCH = 2


# One row an instance that is not a spot instance. All of it can be read off the engine's gauges and its launcher.
INSTANCE_DTYPE = np.dtype(
    [
        ("place", np.int32),  # which instance: unique in the fleet
        ("status", np.int32),  # InstanceStatus
        ("pool", np.int32),  # Pool
        ("gpu", np.int32),  # number of its kind of GPU: column of the spec's tables
        ("since_s", np.float64),  # when it took this status
        ("due_s", np.float64),  # of a starting one: when it is expected to serve; NaN: unknown
        ("num_running", np.int32),
        ("num_waiting", np.int32),  # in its own queue
        ("num_interactive", np.int32),  # interactive requests that it runs or has waiting: the gateway knows
        ("waiting_tokens", np.int64),  # tokens to prefill of those that wait
        ("kv_used_tokens", np.int64),
        ("kv_capacity_tokens", np.int64),  # what weights leave of its memory
    ],
    align=True,
)

# One row a time bin of an endpoint's traffic. Sums over the bin, save for those called mean.
TRAFFIC_DTYPE = np.dtype(
    [
        ("requests", np.float64),  # interactive ones that arrived
        ("input_tokens", np.float64),  # their prompts
        ("output_tokens", np.float64),  # answers of interactive requests, counted where the request arrived
        ("niw_requests", np.float64),  # the same of non-interactive ones
        ("niw_input_tokens", np.float64),
        ("niw_output_tokens", np.float64),
        ("first_tokens", np.float64),  # interactive first tokens that came
        ("ttft_sum_s", np.float64),
        ("finished", np.float64),  # interactive requests that ended
        ("tpot_sum_s", np.float64),
        ("violations", np.float64),  # interactive requests that missed a promise, as far as known
        ("mean_concurrency", np.float64),  # requests inside, waiting ones included
        ("mean_instances", np.float64),  # running instances
    ],
    align=True,
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """A history in bins of equal length, the oldest first; the last one ends at or just before the decision.

    Attributes:
        bin_s: Length of a bin, seconds.
        end_s: End of the last bin.
        rows: (T,) TRAFFIC_DTYPE.
    """

    bin_s: float
    end_s: float
    rows: NDArray[np.void]

    def __len__(self) -> int:
        """Number of bins."""
        return len(self.rows)

    def last(self, seconds: float) -> NDArray[np.void]:
        """The bins of the last seconds, all there are if it is fewer."""
        bins = max(1, round(seconds / self.bin_s))
        return self.rows[-bins:]

    def rebinned(self, name: str, bin_s: float) -> NDArray[np.float64]:
        """A column summed over longer bins that end where this history ends; what is left over at its start is dropped.

        Args:
            name: Column of TRAFFIC_DTYPE.
            bin_s: Length of the new bins, a multiple of the present one.

        Raises:
            ValueError: It is not a multiple.
        """
        each = round(bin_s / self.bin_s)
        if each < 1 or abs(each * self.bin_s - bin_s) > 1e-6 * bin_s:
            raise ValueError(f"bin_s must be a multiple of {self.bin_s:g} s, got {bin_s:g}")
        whole = len(self.rows) // each * each
        values = np.asarray(self.rows[name][len(self.rows) - whole :], np.float64)
        return np.asarray(values.reshape(-1, each).sum(axis=1), np.float64)


@dataclass(frozen=True, slots=True)
class EndpointState:
    """What is known of an endpoint.

    Attributes:
        endpoint: Which one.
        instances: (I,) INSTANCE_DTYPE, spot instances left out.
        spot: (G,) spot instances by kind of GPU that can be had back.
        num_held: Interactive requests that wait at the gateway because no instance took them.
        niw_queued: Non-interactive requests that the queue manager holds for it.
        niw_queued_tokens: Their tokens, prompt and predicted answer.
        niw_oldest_s: Age of the oldest of them, seconds; 0 where there is none.
        recent: Traffic in short bins (seconds), for as long as a quick controller looks back.
        history: Traffic in longer bins (minutes) since the first that is known, days before the episode included.
        weights_local: Whether the region's storage holds the model's weights.
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

    def with_status(self, *status: InstanceStatus) -> NDArray[np.void]:
        """Rows of the instances with one of these statuses."""
        return self.instances[np.isin(self.instances["status"], status)]

    @property
    def running(self) -> NDArray[np.void]:
        """Rows of the instances that take requests."""
        return self.with_status(InstanceStatus.RUNNING)

    @property
    def starting(self) -> NDArray[np.void]:
        """Rows of those that come."""
        return self.with_status(InstanceStatus.STARTING)

    @property
    def present(self) -> NDArray[np.void]:
        """Rows of those that serve or are about to: what "the number of instances" means to a policy."""
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
    """What an autoscaler may know at a decision. E endpoints, G kinds of GPU, M requests in flight.

    Attributes:
        now_s: Time since the episode began.
        clock_s: Time of day and week on the clock at the fleet: seconds since Monday, 0:00.
        endpoints: (E,) in the order of the spec.
        vacant: By region, (G,) machines of each kind that hold no instance, spot ones included in neither.
        in_flight: (M,) IN_FLIGHT_DTYPE of `envs.routing.state`: requests that the gateway has sent to an instance
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


class Operation(StrEnum):
    """What happens to instances of an endpoint."""

    START = "start"  # on vacant machines, from nothing
    RECLAIM = "reclaim"  # its own spot instances come back
    REDEPLOY = "redeploy"  # spot instances of another model of the region give up their machines to it
    DONATE = "donate"  # get no new requests, finish what they have, and become spot instances
    STOP = "stop"  # get no new requests, finish what they have, and leave their machines vacant


@dataclass(frozen=True, slots=True)
class ScaleChange:
    """A change of the number of instances of an endpoint.

    Attributes:
        endpoint: Whose.
        operation: What happens.
        count: To how many, at least 1.
        places: Which ones go (DONATE and STOP); empty: the environment takes those with the fewest requests.
        donor: Model whose spot instances give up their machines (REDEPLOY).
        gpu: Number of the kind of GPU (START, RECLAIM, REDEPLOY).
        pool: What those that come are for.
    """

    endpoint: Endpoint
    operation: Operation
    count: int
    places: tuple[int, ...] = ()
    donor: str = ""
    gpu: int = 0
    pool: Pool = Pool.MIXED

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")
        if self.places and len(self.places) != self.count:
            raise ValueError(f"places must name all {self.count} instances or none, got {len(self.places)}")
        if (self.operation is Operation.REDEPLOY) != bool(self.donor):
            raise ValueError("donor must be named for redeploy, and for nothing else")

    @property
    def signed(self) -> int:
        """What it adds to the number of instances."""
        return -self.count if self.operation in (Operation.DONATE, Operation.STOP) else self.count


@dataclass(frozen=True, slots=True)
class Release:
    """How freely non-interactive requests leave the queue manager for an endpoint from now on.

    Attributes:
        endpoint: Which.
        level: Number of the release level (`envs.autoscaling.config.QueueSpec`).
    """

    endpoint: Endpoint
    level: int

    def __post_init__(self) -> None:
        if self.level < 0:
            raise ValueError(f"level must not be negative, got {self.level}")


ScalingAction = tuple[ScaleChange | Release, ...]


@dataclass(frozen=True)
class AutoscalingSpec:
    """The setting an autoscaler decides in. E endpoints, L models, G kinds of GPU, C request classes.

    Attributes:
        endpoints: (E,) models and regions.
        gpus: (G,) kinds of machine.
        classes: (C,) names of request classes.
        interactive: (C,) whether each is interactive.
        slos: (C,) latency promises.
        capacity_tps: (L, G) prompt tokens/s that an instance serves within its promises, as benchmarked
            (SageServe's theta); 0: the model does not run there. Rows in the order of `models`.
        start_s: (L, G) seconds that a start from the region's storage takes.
        gpu_usd_per_h: (G,) price of a machine.
        min_instances: Fewest instances of an endpoint.
        max_instances: Most.
        decision_interval_s: Time between decisions.
    """

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
        if not self.decision_interval_s > 0:
            raise ValueError(f"decision_interval_s must be positive, got {self.decision_interval_s}")
