"""Scaling a fleet: endpoints, pools, scaling commands, machines, the queue manager, and traffic in bins.

A machine holds one instance, or is leased to others as a spot instance, or is vacant. An endpoint is a model in a
region. The queue manager and the router between regions send requests to endpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.lookup import check_choice


class Endpoint(NamedTuple):
    """A model in a region."""

    model: str
    region: str


class Pool(IntEnum):
    """Requests that an instance serves."""

    MIXED = 0  # all: the unified pool
    INTERACTIVE = 1
    BATCH = 2


# One row per time bin of an endpoint's traffic. Sums over the bin, except means.
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
        ("violations", np.float64),  # interactive requests known to have missed an SLO
        ("mean_concurrency", np.float64),  # requests in the system, including waiting ones
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
        """The bins of the last seconds; all bins if there are fewer."""
        bins = max(1, round(seconds / self.bin_s))
        return self.rows[-bins:]

    def windows(self, name: str, bin_s: float) -> NDArray[np.float64]:
        """(windows, bins), a column in windows that end with this history; an incomplete first window is dropped.

        Args:
            name: Column of TRAFFIC_DTYPE.
            bin_s: Length of the windows, a multiple of the bins'.

        Raises:
            ValueError: It is not a multiple.
        """
        each = round(bin_s / self.bin_s)
        if each < 1 or abs(each * self.bin_s - bin_s) > 1e-6 * bin_s:
            raise ValueError(f"bin_s must be a multiple of {self.bin_s:g} s, got {bin_s:g}")
        whole = len(self.rows) // each * each
        values = np.asarray(self.rows[name][len(self.rows) - whole :], np.float64)
        return values.reshape(-1, each)

    def rebinned(self, name: str, bin_s: float) -> NDArray[np.float64]:
        """A column summed over longer bins: see `windows`."""
        return np.asarray(self.windows(name, bin_s).sum(axis=1), np.float64)


class Operation(StrEnum):
    """Operations on instances of an endpoint."""

    START = "start"  # cold start on vacant machines
    RECLAIM = "reclaim"  # its own spot instances return
    REDEPLOY = "redeploy"  # takes the machines of spot instances of another model of the region
    DONATE = "donate"  # drained, then leased as spot instances
    STOP = "stop"  # drained, then removed; their machines become vacant


@dataclass(frozen=True, slots=True)
class ScaleChange:
    """A change of the number of instances of an endpoint.

    Attributes:
        endpoint: The endpoint.
        operation: The operation.
        count: Number of instances, at least 1.
        places: Instances to remove (DONATE and STOP); empty: those with the fewest requests.
        donor: Model whose spot instances give up their machines (REDEPLOY).
        gpu: Number of the kind of GPU (START, RECLAIM, REDEPLOY).
        pool: Pool of new instances.
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
        """Change of the number of instances, with sign."""
        return -self.count if self.operation in (Operation.DONATE, Operation.STOP) else self.count


@dataclass(frozen=True, slots=True)
class Release:
    """Sets the release level of an endpoint: how fast non-interactive requests leave the queue manager for it.

    Attributes:
        endpoint: The endpoint.
        level: Number of the release level (`envs.autoscaling.config.QueueSpec`).
    """

    endpoint: Endpoint
    level: int

    def __post_init__(self) -> None:
        if self.level < 0:
            raise ValueError(f"level must not be negative, got {self.level}")


ScalingAction = tuple[ScaleChange | Release, ...]


RELEASES = ("signal", "completion")
PAPERS_LEVEL = 1  # of the default release levels: SageServe's


@dataclass(frozen=True)
class ReleaseLevel:
    """Thresholds at which non-interactive requests leave the queue manager.

    Every `QueueSpec.signal_period_s` each endpoint compares its effective memory utilisation with them.

    Attributes:
        one_below_ratio: Below it, one request of its model is released to the endpoint.
        two_below_ratio: Below it, two.
        requests: Requests released as "one"; SageServe has 1.
    """

    one_below_ratio: float
    two_below_ratio: float
    requests: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.two_below_ratio <= self.one_below_ratio <= 1:
            raise ValueError(
                "release level: 0 <= two_below_ratio <= one_below_ratio <= 1 must hold, got "
                f"{self.two_below_ratio} and {self.one_below_ratio}"
            )
        if self.requests < 1:
            raise ValueError(f"release level: requests must be at least 1, got {self.requests}")


DEFAULT_LEVELS = (
    ReleaseLevel(0.0, 0.0),  # only overdue requests
    ReleaseLevel(0.6, 0.5),  # SageServe, section 6.2
    ReleaseLevel(0.8, 0.7, 4),  # eager; source: ours
)


@dataclass(frozen=True)
class QueueSpec:
    """The queue manager of non-interactive requests and the router between regions (SageServe, section 6).

    Attributes:
        classes: Names of the request classes that are not interactive.
        levels: Release levels to choose from.
        level: Number of the initial level.
        signal_period_s: Period at which queue manager and router read utilisation. Source: ours; the paper
            says "periodically".
        deadline_s: Deadline of non-interactive requests. Source: section 6.2, 24 h.
        deadline_margin_s: A request with at most this time left leaves the queue without a signal. Source: ours.
        aged_s: Age from which a request has the priority of interactive ones. Source: section 6.2, 10 h.
        region_threshold_ratio: Utilisation under which a region is preferred for interactive requests. Source:
            section 6.1, 70 %.
        hold: Whether there is a queue manager; without it these requests are routed like interactive ones.
        release: When an endpoint with room pulls requests: "signal", once a signal, or "completion", once for every
            request that its instances have completed since the last signal, and at least once. Source: section 6.1 says
            "periodically"; the authors' public simulator looks at the queue when a request completes.
    """

    classes: tuple[str, ...] = ("niw", "batch")
    levels: tuple[ReleaseLevel, ...] = DEFAULT_LEVELS
    level: int = PAPERS_LEVEL
    signal_period_s: float = 0.25
    deadline_s: float = 24 * 3600.0
    deadline_margin_s: float = 3600.0
    aged_s: float = 10 * 3600.0
    region_threshold_ratio: float = 0.7
    hold: bool = True
    release: str = "signal"

    def __post_init__(self) -> None:
        check_choice("queue.release", self.release, RELEASES)
        if not self.levels:
            raise ValueError("queue.levels must have at least one release level")
        if not 0 <= self.level < len(self.levels):
            raise ValueError(f"queue.level must be 0 to {len(self.levels) - 1}, got {self.level}")
        if not self.signal_period_s > 0:
            raise ValueError(f"queue.signal_period_s must be positive, got {self.signal_period_s}")
        for name in ("deadline_s", "deadline_margin_s", "aged_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"queue.{name} must not be negative, got {getattr(self, name)}")
        if not 0 < self.region_threshold_ratio <= 1:
            raise ValueError(
                f"queue.region_threshold_ratio must lie in (0, 1], got {self.region_threshold_ratio}"
            )


@dataclass(frozen=True)
class MachineSpec:
    """Machines, their prices, and start-up times of instances.

    A machine holds one instance; its kind is its number and kind of GPUs, as `4xH100`.

    Attributes:
        per_region: Machines of each kind in every region; other kinds: as many as the fleet has slots for.
        spot: Spot instances of each endpoint at the start, on machines of the first kind that its model runs on.
        start_s: Start on a vacant machine, seconds; None: from the model's weights, `cluster.storage_bytes_per_s` and
            `cluster.start_fixed_s`.
        reclaim_median_s: Median time until a spot instance serves its own model again. Source: SageServe, section 7.1.
        reclaim_max_s: Its maximum. Source: section 7.1.
        redeploy_s: Time until a machine of another model's spot instance serves this, weights in the region. Source:
            section 7.1.
        remote_s: Time of a redeployment or a start if the region's storage lacks the weights. Source: section 7.1.
        without_weights: Endpoints whose region lacks the model's weights, as `model@region`.
        gpu_usd_per_h: Price by name of GPU; others: `calibration.hardware`, or 1 if it has none.
        spot_revenue_ratio: Revenue of a spot instance per machine price. Source: ours, of the order of cloud
            providers' discounts on spot machines (60 to 90 % off).
    """

    per_region: dict[str, int] = field(default_factory=dict)
    spot: int = 0
    start_s: float | None = None
    reclaim_median_s: float = 60.0
    reclaim_max_s: float = 300.0
    redeploy_s: float = 600.0
    remote_s: float = 7200.0
    without_weights: tuple[str, ...] = ()
    gpu_usd_per_h: dict[str, float] = field(default_factory=dict)
    spot_revenue_ratio: float = 0.3

    def __post_init__(self) -> None:
        for name, count in self.per_region.items():
            if count < 0:
                raise ValueError(f"machines.per_region.{name} must not be negative, got {count}")
        if self.spot < 0:
            raise ValueError(f"machines.spot must not be negative, got {self.spot}")
        if self.start_s is not None and not 0 <= self.start_s < math.inf:
            raise ValueError(f"machines.start_s must be finite and not negative, got {self.start_s}")
        if not 0 < self.reclaim_median_s <= self.reclaim_max_s:
            raise ValueError(
                f"machines.reclaim_median_s must lie in (0, reclaim_max_s = {self.reclaim_max_s}], "
                f"got {self.reclaim_median_s}"
            )
        for name in ("redeploy_s", "remote_s", "spot_revenue_ratio"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"machines.{name} must not be negative, got {getattr(self, name)}")


class Held(IntEnum):
    """Use of a machine that is not vacant."""

    STARTING = 0
    RUNNING = 1
    DRAINING = 2
    SPOT = 3
