"""Configuration of the DP/TP environment."""

from __future__ import annotations

from dataclasses import dataclass, field

from serving_gym.envs.dp_tp.observation import ObservationScales
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.randomise import NO_GAUGES, NO_PREDICTOR, RandomiseSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.workload.registry import WorkloadSpec

DEFAULT_SLOS = {
    "standard": SLO(ttft_s=0.5, tpot_s=0.02),
    "normal": SLO(ttft_s=0.5, tpot_s=0.02),
    "priority": SLO(ttft_s=0.2, tpot_s=0.01),
    "long": SLO(ttft_s=20.0, tpot_s=0.02),
}


@dataclass(frozen=True)
class DPTPConfig:
    """Configuration of the DP/TP environment.

    Attributes:
        workload: Requests of an episode.
        cluster: The node.
        slos: SLO of each request class.
        objective: Weights of the reward terms.
        scales: Scales of the observation.
        decision_interval_s: Time between decisions, seconds.
        decide_on: Request classes whose arrival triggers a decision at once.
        drain_limit_s: Time from the last arrival to truncation of the episode, seconds.
        faults_per_gpu_hour: Rate of GPU failures.
        randomise: Ranges within which the world of an episode differs from the profile that policies know.
        split: Part of the workload that episodes are drawn from; None: the workload's own.
    """

    workload: WorkloadSpec
    cluster: ClusterSpec
    slos: dict[str, SLO] = field(default_factory=lambda: dict(DEFAULT_SLOS))
    objective: Objective = field(default_factory=Objective)
    scales: ObservationScales = field(default_factory=ObservationScales)
    decision_interval_s: float = 1.0
    decide_on: tuple[str, ...] = ()
    drain_limit_s: float = 300.0
    faults_per_gpu_hour: float = 0.0
    randomise: RandomiseSpec = field(default_factory=RandomiseSpec)
    split: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cluster, ClusterSpec):
            raise ValueError("dp_tp needs a node: choose a cluster without groups of replicas")
        for name in ("decision_interval_s", "drain_limit_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.workload.num_clients:
            raise ValueError(
                "dp_tp needs requests that arrive when the workload says; workload.num_clients must be 0"
            )
        num_base = self.cluster.num_base
        if num_base < 1 or num_base & (num_base - 1) or self.cluster.max_group not in (None, num_base):
            raise ValueError(
                f"dp_tp needs a power of two of base engines that may all be merged (cluster.max_group null); "
                f"got {num_base} with cluster.max_group {self.cluster.max_group}"
            )
        self.randomise.check_possible(gauge_age_s=NO_GAUGES, prediction=NO_PREDICTOR)
        if not self.faults_per_gpu_hour >= 0:
            raise ValueError(f"faults_per_gpu_hour must not be negative, got {self.faults_per_gpu_hour}")
