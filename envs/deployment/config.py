"""Configuration of the deployment environment."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from serving_gym.calibration.fields import check_not_negative, check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.deployment.profiling import METHODS
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.randomise import NO_GAUGES, RandomiseSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.envs.workload.registry import WorkloadSpec

DEFAULT_SLOS = {
    "standard": SLO(ttft_s=5.0, tpot_s=0.1),
    "normal": SLO(ttft_s=5.0, tpot_s=0.1),
    "priority": SLO(ttft_s=2.0, tpot_s=0.1),
    "long": SLO(ttft_s=20.0, tpot_s=0.1),
}
# OServe minimises tail latency: `p99` replaces the sum of latencies. Other weights are those of all environments.
OBJECTIVE = Objective(latency=0.0)
BY_KMEANS, BY_CLASS = "kmeans", "classes"


@dataclass(frozen=True)
class DeploymentScales:
    """Scales of the observation: log1p(value / scale).

    Attributes:
        requests: Requests.
        tokens: Tokens of many requests.
        type_tokens: Tokens of one request.
        request_rate: Requests per second.
        latency_s: End-to-end latency of a request, seconds.
        switch_s: Seconds of a switch.
        switch_bytes: Bytes of a switch.
    """

    requests: float = 16.0
    tokens: float = 20_000.0
    type_tokens: float = 200.0
    request_rate: float = 2.0
    latency_s: float = 5.0
    switch_s: float = 5.0
    switch_bytes: float = 50e9

    def __post_init__(self) -> None:
        for item in fields(self):
            if not getattr(self, item.name) > 0:
                raise ValueError(f"scales.{item.name} must be positive, got {getattr(self, item.name)}")


@dataclass(frozen=True)
class DeploymentConfig:
    """Configuration of the deployment environment.

    Attributes:
        workload: Requests of an episode.
        cluster: The cluster.
        slos: SLO of each request class.
        objective: Weights of the reward terms common to all environments.
        p99: Weight of minus the 99th percentile of the latency of requests that ended in the span, seconds.
        throughput: Weight of the number of requests that ended in the span.
        scales: Scales of the observation.
        prediction: How output lengths are predicted; the prediction determines a request's type on arrival.
        randomise: Ranges within which the world of an episode differs from the profile that policies know.
        span_s: Time between decisions, seconds. Source: OServe, section 3.
        types: "kmeans" (input and output length) or "classes" (of the workload).
        num_types: Workload types of k-means. Source: OServe, Table 1.
        profiling: How capacities are computed: "measured", "mixed" or "closed_form" (`envs.deployment.profiling`).
        profiling_precision: Half of the 95 % interval of a measured capacity, share of it, at which profiling ends;
            policies may profile longer. Source: ours.
        past_requests: Requests of the training split from which types and capacities are estimated. Source: ours.
        past_spans: Most spans of the training split whose counts are known. Source: ours; OServe trains on 50 or more.
        forecast_spans: Spans whose mean is the environment's own forecast. Source: ours; more spans lag behind a drift.
        history: Past spans in the observation.
        num_candidates: Number of actions: deployments, each with two assignments, and divisions into prefill and decode
            workers. Source: ours.
        drain_limit_s: Time from the last arrival to truncation of the episode, seconds.
        split: Part of the workload that episodes are drawn from; None: the workload's own.
    """

    workload: WorkloadSpec
    cluster: DeploymentSpec
    slos: dict[str, SLO] = field(default_factory=lambda: dict(DEFAULT_SLOS))
    objective: Objective = field(default_factory=lambda: OBJECTIVE)
    p99: float = 1.0
    throughput: float = 0.0
    scales: DeploymentScales = field(default_factory=DeploymentScales)
    prediction: PredictionSpec = field(default_factory=PredictionSpec)
    randomise: RandomiseSpec = field(default_factory=RandomiseSpec)
    span_s: float = 60.0
    types: str = BY_KMEANS
    num_types: int = 4
    profiling: str = "mixed"
    profiling_precision: float = 0.03
    past_requests: int = 12_000
    past_spans: int = 120
    forecast_spans: int = 1
    history: int = 8
    num_candidates: int = 16
    drain_limit_s: float = 300.0
    split: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cluster, DeploymentSpec):
            raise ValueError("deployment needs a cluster of machines: choose a cluster with num_machines")
        check_choice("types", self.types, (BY_KMEANS, BY_CLASS))
        check_choice("profiling", self.profiling, METHODS)
        check_positive(self, "span_s", "drain_limit_s", "profiling_precision")
        for name, least in (
            ("num_types", 1),
            ("past_requests", 100),
            ("past_spans", 1),
            ("forecast_spans", 1),
            ("history", 1),
            ("num_candidates", 2),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        check_not_negative(self, "p99", "throughput")
        by_class = "types=classes uses no predicted lengths" if self.types == BY_CLASS else ""
        self.randomise.check_possible(gauge_age_s=NO_GAUGES, prediction=by_class or self.prediction.why_exact)
        if self.workload.num_clients:
            raise ValueError(
                "deployment needs requests that arrive when the workload says; workload.num_clients must be 0"
            )
