"""Configuration of the autoscaling environment."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.interface.fleet import FleetConfig
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.randomise import NO_GAUGES, RandomiseSpec
from serving_gym.envs.interface.scaling import MachineSpec, QueueSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.envs.workload.registry import WorkloadSpec

DEFAULT_SLOS = {
    "standard": SLO(ttft_s=1.0, tpot_s=0.1),
    "normal": SLO(ttft_s=1.0, tpot_s=0.1),
    "priority": SLO(ttft_s=0.5, tpot_s=0.1),
    "long": SLO(ttft_s=20.0, tpot_s=0.1),
    "iw_f": SLO(ttft_s=1.0, tpot_s=0.1),  # SageServe's tiers, section 2.2; time per token: ours
    "iw_n": SLO(ttft_s=60.0, tpot_s=0.1),
    "niw": SLO(ttft_s=86_400.0, tpot_s=1.0),
}


@dataclass(frozen=True)
class AutoscalingScales:
    """Scales of the observation: log(1 + value / scale).

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


def _default_objective() -> Objective:
    return Objective(
        latency=0.0,
        ttft_attainment=0.01,
        tpot_attainment=0.01,
        switch=0.0,
        abandoned=0.05,
        gpu_usd=1.0,
        startup_usd=0.0,
        backlog_usd=1.0,
        spot_rent_usd=1.0,
        spot_revenue_usd=1.0,
        scale=0.1,
    )


@dataclass(frozen=True)
class AutoscalingConfig:
    """Configuration of the autoscaling environment.

    The default load swings by some 40 % within twenty minutes, in addition to the daily and weekly pattern. Under the
    smooth load of the fitted generator a policy that follows the rate of the last minutes is within three percent of
    one that knows the future, so there is nothing to learn.

    Attributes:
        workload: Requests of an episode. A workload whose generator streams is drawn hour by hour and lasts
            `episode_s`.
        cluster: The fleet. Its replica slots are the most instances of each endpoint, `count` the initial instances.
            Within an endpoint requests go to the least loaded instance; the fleet's `router` is not used.
        slos: SLO of each request class.
        objective: Weights of the reward terms.
        machines: Machines, their prices, and start-up times of instances.
        queue: The queue manager and the router between regions.
        scales: Scales of the observation.
        prediction: How output lengths are predicted, for policies that read requests in flight and in the queue.
        randomise: Ranges within which the world of an episode differs from the profile that policies know.
        decision_interval_s: Time between decisions, seconds.
        episode_s: Time for which requests arrive, seconds.
        min_instances: Fewest instances of an endpoint after an action of the action space.
        max_change: Most instances by which an action of the action space changes an endpoint.
        history_s: Traffic known from before the episode, seconds.
        history_bin_s: Length of its bins, seconds.
        recent_s: Time that the short bins cover, seconds.
        recent_bin_s: Length of the short bins, seconds.
        keep_records: Whether to keep a record of each request, some 30 bytes per request.
        drain_limit_s: Time from the last arrival to truncation of the episode, seconds.
        split: Part of the workload that episodes are drawn from; None: the workload's own.
        capacity_tps: By model, prompt tokens/s that an instance of it serves within its SLOs on any kind of machine,
            as benchmarked elsewhere; others are measured by simulation (`envs.autoscaling.capacity`).
    """

    workload: WorkloadSpec
    cluster: FleetConfig
    slos: dict[str, SLO] = field(default_factory=lambda: dict(DEFAULT_SLOS))
    objective: Objective = field(default_factory=_default_objective)
    machines: MachineSpec = field(default_factory=MachineSpec)
    queue: QueueSpec = field(default_factory=QueueSpec)
    scales: AutoscalingScales = field(default_factory=AutoscalingScales)
    prediction: PredictionSpec = field(default_factory=PredictionSpec)
    randomise: RandomiseSpec = field(default_factory=RandomiseSpec)
    decision_interval_s: float = 60.0
    episode_s: float = 86_400.0
    min_instances: int = 1
    max_change: int = 2
    history_s: float = 7 * 86_400.0
    history_bin_s: float = 60.0
    recent_s: float = 600.0
    recent_bin_s: float = 5.0
    keep_records: bool = True
    drain_limit_s: float = 3600.0
    split: str | None = None
    capacity_tps: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.cluster, FleetConfig):
            raise ValueError("autoscaling needs a fleet: choose a cluster with groups of replicas")
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
        check_positive(
            self,
            "decision_interval_s",
            "episode_s",
            "history_bin_s",
            "recent_bin_s",
            "drain_limit_s",
            finite=True,
        )
        for name in ("history_s", "recent_s"):
            if not getattr(self, name) >= getattr(self, name.replace("_s", "_bin_s")):
                raise ValueError(
                    f"{name} must be at least {name.replace('_s', '_bin_s')}, got {getattr(self, name)}"
                )
        check_not_negative(self, "min_instances")
        check_at_least(self, 1, "max_change")
        models = {group.replica.model for group in self.cluster.groups}
        for name, value in self.capacity_tps.items():
            check_choice("key of capacity_tps", name, models)
            if not 0 < value < math.inf:
                raise ValueError(f"capacity_tps.{name} must be positive and finite, got {value}")
        self.randomise.check_possible(gauge_age_s=NO_GAUGES, prediction=self.prediction.why_exact)
