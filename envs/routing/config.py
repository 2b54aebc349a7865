"""Configuration of the routing environment."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.interface.fleet import FleetConfig
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.randomise import RandomiseSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.envs.workload.registry import WorkloadSpec

PREFIX_INDEXES = EXACT, SENT = ("exact", "sent")

DEFAULT_SLOS = {
    "standard": SLO(ttft_s=1.0, tpot_s=0.05),
    "normal": SLO(ttft_s=1.0, tpot_s=0.05),
    "priority": SLO(ttft_s=0.5, tpot_s=0.03),
    "long": SLO(ttft_s=20.0, tpot_s=0.05),
    "critical": SLO(ttft_s=1.0, tpot_s=0.05),
    "sheddable": SLO(ttft_s=5.0, tpot_s=0.1),
    "iw_f": SLO(ttft_s=1.0, tpot_s=0.05),  # SageServe's tiers, section 2.2
    "iw_n": SLO(ttft_s=60.0, tpot_s=0.05),
    "niw": SLO(ttft_s=86_400.0, tpot_s=1.0),
}


@dataclass(frozen=True)
class RoutingScales:
    """Scales of the observation, log1p(value / scale), and time constants of its moving averages.

    Attributes:
        requests: Requests.
        tokens: Tokens of many requests.
        prompt_tokens: Tokens of one request.
        capacity_tokens: Tokens of a KV pool.
        iteration_s: Seconds of an iteration.
        prefill_s: Seconds of prefill work, network or gauge age.
        decode_s: Seconds of decoding or of waiting.
        request_rate: Requests per second.
        token_rate: Tokens per second.
        short_s: Time constant of the short averages, seconds.
        long_s: Time constant of the long averages, seconds.
    """

    requests: float = 8.0
    tokens: float = 2_000.0
    prompt_tokens: float = 200.0
    capacity_tokens: float = 100_000.0
    iteration_s: float = 0.02
    prefill_s: float = 0.1
    decode_s: float = 1.0
    request_rate: float = 2.0
    token_rate: float = 2_000.0
    short_s: float = 5.0
    long_s: float = 60.0

    def __post_init__(self) -> None:
        for item in fields(self):
            if not getattr(self, item.name) > 0:
                raise ValueError(f"scales.{item.name} must be positive, got {getattr(self, item.name)}")


@dataclass(frozen=True)
class FaultRates:
    """Rates of random faults, drawn for each episode from its seed.

    Attributes:
        crashes_per_hour: Crashes of a replica; it restarts cold.
        slow_downs_per_hour: Slow-downs of a replica, which the router does not observe.
        slow_factor: Factor on iteration times during a slow-down.
        slow_s: Duration of a slow-down, seconds.
    """

    crashes_per_hour: float = 0.0
    slow_downs_per_hour: float = 0.0
    slow_factor: float = 2.0
    slow_s: float = 60.0

    def __post_init__(self) -> None:
        check_not_negative(self, "crashes_per_hour", "slow_downs_per_hour", prefix="faults.")
        check_at_least(self, 1, "slow_factor", prefix="faults.")
        check_positive(self, "slow_s", prefix="faults.")


@dataclass(frozen=True)
class RoutingConfig:
    """Configuration of the routing environment.

    Attributes:
        workload: Requests of an episode.
        cluster: The fleet; its `router` is not used.
        slos: SLO of each request class.
        objective: Weights of the reward terms.
        scales: Scales of the observation.
        prediction: How output lengths are predicted.
        gauge_interval_s: Time between two readings of the engines' gauges, seconds; 0: read at every decision.
        retry_s: Time after which held requests are offered again, seconds.
        queue_capacity: Most requests that may be held; further ones are refused.
        prefix_index: How the router knows what prefixes a place has cached: "exact" (engines tell it, as with KV
            events) or "sent" (it remembers what it has sent where, whatever has been evicted since).
        prefix_index_ttl_s: Of "sent": time for which a prompt is taken to be cached, seconds. Source: Dynamo's
            approximate index.
        admission: Whether a policy may also refuse a request at once, or defer it: two more actions, and the part
            `admission` of the observation.
        max_places: Rows of the observation; None: the fleet's number of replica slots.
        faults: Rates of random faults.
        randomise: Ranges within which the world of an episode differs from the profile that policies know.
        drain_limit_s: Time from the last arrival to truncation of the episode, seconds.
        split: Part of the workload that episodes are drawn from; None: the workload's own.
    """

    workload: WorkloadSpec
    cluster: FleetConfig
    slos: dict[str, SLO] = field(default_factory=lambda: dict(DEFAULT_SLOS))
    objective: Objective = field(default_factory=Objective)
    scales: RoutingScales = field(default_factory=RoutingScales)
    prediction: PredictionSpec = field(default_factory=PredictionSpec)
    gauge_interval_s: float = 0.0
    retry_s: float = 0.1
    queue_capacity: int = 512
    prefix_index: str = EXACT
    prefix_index_ttl_s: float = 120.0
    admission: bool = False
    max_places: int | None = None
    faults: FaultRates = field(default_factory=FaultRates)
    randomise: RandomiseSpec = field(default_factory=RandomiseSpec)
    drain_limit_s: float = 300.0
    split: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cluster, FleetConfig):
            raise ValueError("routing needs a fleet: choose a cluster with groups of replicas")
        check_positive(self, "retry_s", "drain_limit_s", "prefix_index_ttl_s", finite=True)
        check_choice("prefix_index", self.prefix_index, PREFIX_INDEXES)
        self.randomise.check_possible(prediction=self.prediction.why_exact)
        check_within(self, "[0, 60]", "gauge_interval_s")
        check_not_negative(self, "queue_capacity")
        if self.workload.num_clients:
            raise ValueError(
                "routing needs requests that arrive when the workload says; workload.num_clients must be 0"
            )
        if self.max_places is not None and self.max_places < self.cluster.num_places:
            raise ValueError(
                f"max_places must be at least the fleet's {self.cluster.num_places} places, got {self.max_places}"
            )

    @property
    def num_rows(self) -> int:
        """Rows of the observation."""
        return self.cluster.num_places if self.max_places is None else self.max_places

    @property
    def num_actions(self) -> int:
        """Places, to hold the request, and where admission is a decision to refuse and to defer it."""
        return self.num_rows + (3 if self.admission else 1)
