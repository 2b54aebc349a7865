"""What an autoscaling environment is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from envs.backend import SLO
from envs.fleet import FleetConfig, GroupSpec, ReplicaSpec
from envs.objective import Objective
from envs.workload.registry import WorkloadSpec

DEFAULT_SLOS = {
    "standard": SLO(ttft_s=1.0, tpot_s=0.1),
    "normal": SLO(ttft_s=1.0, tpot_s=0.1),
    "priority": SLO(ttft_s=0.5, tpot_s=0.1),
    "long": SLO(ttft_s=20.0, tpot_s=0.1),
    "iw_f": SLO(ttft_s=1.0, tpot_s=0.1),  # SageServe's tiers, section 2.2; time per token: ours
    "iw_n": SLO(ttft_s=60.0, tpot_s=0.1),
    "niw": SLO(ttft_s=86_400.0, tpot_s=1.0),
}
PAPERS_LEVEL = 1  # of the default release levels: SageServe's


@dataclass(frozen=True)
class ReleaseLevel:
    """How freely non-interactive requests leave the queue manager.

    Every `QueueSpec.signal_period_s` each endpoint looks at its effective memory utilisation.

    Attributes:
        one_below_ratio: Below it one request of its model is released to it.
        two_below_ratio: Below it, two.
        requests: Requests that "one" stands for; SageServe has 1.
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
    ReleaseLevel(0.0, 0.0),  # only what is overdue
    ReleaseLevel(0.6, 0.5),  # SageServe, section 6.2
    ReleaseLevel(0.8, 0.7, 4),  # eager; source: ours
)


@dataclass(frozen=True)
class QueueSpec:
    """The queue manager of non-interactive requests and the router between regions (SageServe, section 6).

    Attributes:
        classes: Names of the request classes that are not interactive.
        levels: Release levels to choose from; the one a policy has not chosen otherwise is `level`.
        level: Number of the level at the start.
        signal_period_s: Between two looks at utilisation, by queue manager and router alike. Source: ours; the paper
            says "periodically".
        deadline_s: When a non-interactive request must be done. Source: section 6.2, 24 h.
        deadline_margin_s: One with no more than this left leaves the queue without a signal. Source: ours.
        aged_s: Age from which one is on a par with interactive ones. Source: section 6.2, 10 h.
        region_threshold_ratio: Utilisation under which a region takes interactive requests by preference. Source:
            section 6.1, 70 %.
        hold: Whether there is a queue manager at all; without it these requests are routed as interactive ones.
    """

    classes: tuple[str, ...] = ("niw", "batch")
    levels: tuple[ReleaseLevel, ...] = DEFAULT_LEVELS
    level: int = PAPERS_LEVEL
    signal_period_s: float = 1.0
    deadline_s: float = 24 * 3600.0
    deadline_margin_s: float = 3600.0
    aged_s: float = 10 * 3600.0
    region_threshold_ratio: float = 0.7
    hold: bool = True

    def __post_init__(self) -> None:
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
    """Machines, what they cost, and how long instances take to come.

    A machine holds one instance; its kind is its number and kind of GPUs, as `4xH100`.

    Attributes:
        per_region: Machines of each kind in every region; a kind not named: as many as the fleet has places for.
        spot: Spot instances of each endpoint at the start, on machines of the first kind that its model runs on.
        start_s: A start on a vacant machine, seconds; None: from the model's weights, `cluster.storage_bytes_per_s` and
            `cluster.start_fixed_s`.
        reclaim_median_s: Until a spot instance serves its own model again. Source: SageServe, section 7.1.
        reclaim_max_s: At most. Source: section 7.1.
        redeploy_s: Until a machine of another model's spot instance serves this one, weights in the region. Source:
            section 7.1.
        remote_s: The same, and a start, where the region's storage lacks the weights. Source: section 7.1.
        without_weights: Endpoints whose region lacks the model's weights, as `model@region`.
        gpu_usd_per_h: Price by name of GPU; one not named: `calibration.hardware`, or 1 where that has none.
        spot_revenue_ratio: What a spot instance earns, of its machine's price. Source: ours, of the order of cloud
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


@dataclass(frozen=True)
class AutoscalingScales:
    """Where each kind of quantity becomes noticeable in the observation: log(1 + value / scale).

    Attributes:
        instances: Instances.
        requests: Requests.
        request_rate: Requests per second.
        token_rate: Tokens per second.
        tokens: Tokens.
        seconds: Waiting and start-up times, seconds.
    """

    instances: float = 2.0
    requests: float = 16.0
    request_rate: float = 1.0
    token_rate: float = 1_000.0
    tokens: float = 10_000.0
    seconds: float = 60.0

    def __post_init__(self) -> None:
        for item in fields(self):
            if not getattr(self, item.name) > 0:
                raise ValueError(f"scales.{item.name} must be positive, got {getattr(self, item.name)}")


def _default_cluster() -> FleetConfig:
    return FleetConfig(
        groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 4, 12),),
        order="priority",
        start_fixed_s=300.0,
    )


def _default_workload() -> WorkloadSpec:
    return WorkloadSpec(name="sageserve_tiers", params={"mean_rps": 20.0})


def _default_objective() -> Objective:
    return Objective(
        latency=0.0,
        ttft_attainment=0.02,
        tpot_attainment=0.02,
        switch=0.0,
        abandoned=0.1,
        gpu_usd=1.0,
        startup_usd=0.0,
        spot_rent_usd=1.0,
        spot_revenue_usd=1.0,
        scale=0.1,
    )


@dataclass(frozen=True)
class AutoscalingConfig:
    """What an autoscaling environment is made of.

    Attributes:
        workload: Requests of an episode; one whose generator streams is drawn hour by hour and lasts `episode_s`.
        cluster: The fleet: places are the most instances, `count` those at the start; routers within an endpoint send
            to the least loaded instance, whatever its `router`.
        slos: Latency promise by request class.
        objective: Weights of the reward terms.
        machines: Machines and how long instances take to come.
        queue: The queue manager and the router between regions.
        scales: Scales of the observation.
        decision_interval_s: Time between decisions, seconds.
        episode_s: Time for which requests arrive, seconds.
        min_instances: Fewest instances of an endpoint that an index of the action space may leave.
        max_change: Most instances by which an index changes an endpoint.
        history_s: Traffic that is known from before the episode, seconds.
        history_bin_s: Its bins.
        recent_s: How far the short bins look back, seconds.
        recent_bin_s: Their length.
        drain_limit_s: How long after the last arrival requests may take to end, seconds.
        split: Part of the workload that episodes are drawn from; None: the workload's own.
    """

    workload: WorkloadSpec = field(default_factory=_default_workload)
    cluster: FleetConfig = field(default_factory=_default_cluster)
    slos: dict[str, SLO] = field(default_factory=lambda: dict(DEFAULT_SLOS))
    objective: Objective = field(default_factory=_default_objective)
    machines: MachineSpec = field(default_factory=MachineSpec)
    queue: QueueSpec = field(default_factory=QueueSpec)
    scales: AutoscalingScales = field(default_factory=AutoscalingScales)
    decision_interval_s: float = 300.0
    episode_s: float = 86_400.0
    min_instances: int = 1
    max_change: int = 2
    history_s: float = 7 * 86_400.0
    history_bin_s: float = 300.0
    recent_s: float = 600.0
    recent_bin_s: float = 5.0
    drain_limit_s: float = 3600.0
    split: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cluster, FleetConfig):
            raise ValueError("autoscaling decides about a fleet: choose a cluster with groups of replicas")
        if any(group.replica.role != "mixed" for group in self.cluster.groups):
            raise ValueError("autoscaling needs replicas that prefill and decode: replica.role must be mixed")
        if self.cluster.prefix_caching:
            raise ValueError(
                "autoscaling draws its requests hour by hour: cluster.prefix_caching must be false"
            )
        if self.workload.num_clients:
            raise ValueError(
                "autoscaling needs requests that arrive when the workload says; workload.num_clients must be 0"
            )
        for name in ("decision_interval_s", "episode_s", "history_bin_s", "recent_bin_s", "drain_limit_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")
        for name in ("history_s", "recent_s"):
            if not getattr(self, name) >= getattr(self, name.replace("_s", "_bin_s")):
                raise ValueError(
                    f"{name} must be at least {name.replace('_s', '_bin_s')}, got {getattr(self, name)}"
                )
        if self.min_instances < 0:
            raise ValueError(f"min_instances must not be negative, got {self.min_instances}")
        if self.max_change < 1:
            raise ValueError(f"max_change must be at least 1, got {self.max_change}")
