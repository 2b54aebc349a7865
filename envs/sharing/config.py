"""Configuration of the sharing environment."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from serving_gym.calibration.fields import check_not_negative, check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.randomise import NO_GAUGES, NO_PREDICTOR, RandomiseSpec
from serving_gym.envs.interface.sharing import TokenScheduler
from serving_gym.envs.interface.slo import LengthSLO
from serving_gym.envs.machines.shared_nodes import SharingSpec
from serving_gym.envs.simulator.sharing.build import ManagerSpec
from serving_gym.envs.workload.registry import WorkloadSpec

_SLO = LengthSLO(ttft_s=2.0, tpot_s=0.25, ttft_s_per_token=1 / 512)
DEFAULT_SLOS = dict.fromkeys(("standard", "normal", "priority", "long"), _SLO)


@dataclass(frozen=True)
class SharingScales:
    """Scales of the observation: log1p(value / scale).

    Attributes:
        requests: Requests and instances.
        tokens: Tokens of one request.
        latency_s: Seconds of waiting, headroom and operations.
        iteration_s: Seconds of an iteration.
    """

    requests: float = 4.0
    tokens: float = 200.0
    latency_s: float = 0.5
    iteration_s: float = 0.05

    def __post_init__(self) -> None:
        for item in fields(self):
            if not getattr(self, item.name) > 0:
                raise ValueError(f"scales.{item.name} must be positive, got {getattr(self, item.name)}")


@dataclass(frozen=True)
class SharingConfig:
    """Configuration of the sharing environment.

    Attributes:
        workload: Requests of an episode.
        cluster: The nodes.
        slos: SLO of each request class. Source: LLM-Mesh, section 8.1.
        objective: Weights of the reward terms common to all environments. Source: ours; as in the paper, SLO attainment
            and nodes used count most, the distance of a latency below its SLO hardly counts.
        node_hours: Weight of minus the hours for which nodes of a kind have instances, by kind. Source: ours; CPUs are
            otherwise idle beside GPUs (LLM-Mesh, section 3) and cost little.
        ooms: Weight of minus the number of instances killed by an allocation; their failed requests count separately.
        token_scheduler: Which instance of a node runs the next iteration, unless a policy changes it: one of
            `envs.interface.sharing.TokenScheduler`; "policy": the policy decides each time.
        manager: The environment's memory manager and its gateway.
        randomise: Ranges within which the world of an episode differs from the profile that policies know.
        scales: Scales of the observation.
        drain_limit_s: Time from the last arrival to truncation of the episode, seconds.
        split: Part of the workload that episodes are drawn from; None: the workload's own.
    """

    workload: WorkloadSpec
    cluster: SharingSpec
    slos: dict[str, LengthSLO] = field(default_factory=lambda: dict(DEFAULT_SLOS))
    objective: Objective = field(default_factory=lambda: Objective(latency=0.1, abandoned=10.0))
    node_hours: dict[str, float] = field(default_factory=lambda: {"cpu": 10.0, "gpu": 120.0})
    ooms: float = 10.0
    token_scheduler: str = TokenScheduler.SHORTEST_HEADROOM.value
    manager: ManagerSpec = field(default_factory=ManagerSpec)
    randomise: RandomiseSpec = field(default_factory=RandomiseSpec)
    scales: SharingScales = field(default_factory=SharingScales)
    drain_limit_s: float = 300.0
    split: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cluster, SharingSpec):
            raise ValueError("sharing needs shared nodes: choose a cluster with nodes")
        check_choice("token_scheduler", self.token_scheduler, [entry.value for entry in TokenScheduler])
        check_positive(self, "drain_limit_s")
        self.randomise.check_possible(gauge_age_s=NO_GAUGES, prediction=NO_PREDICTOR)
        for node in self.cluster.nodes:
            weight = self.node_hours.get(node.kind)
            if weight is None or not 0 <= weight < float("inf"):
                raise ValueError(
                    f"node_hours must have a weight of at least 0 for kind {node.kind!r}, got {weight}"
                )
        check_not_negative(self, "ooms", finite=True)
        if self.workload.num_clients:
            raise ValueError(
                "sharing needs requests that arrive when the workload says; workload.num_clients must be 0"
            )
