"""Small settings that tests fall back on where they say nothing: a workload and a cluster of each environment."""

from __future__ import annotations

from typing import Any

from serving_gym.agents.learners import learner
from serving_gym.envs import registration
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.machines.shared_nodes import SharingSpec
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.workload.registry import WorkloadSpec

DRIFT = WorkloadSpec(
    name="type_mix",
    num_requests=29_000,
    params={
        "mean_rps": 16.0,
        "mixes": ("generation", "S5", "reading"),
        "rates": (5.0, 20.0, 14.0),
        "hold_s": 480.0,
        "gradual": True,
        "long_answer_factor": 4.0,
    },
)
SWINGING = WorkloadSpec(
    name="sageserve_tiers", params={"mean_rps": 15.0, "slow_noise": 0.4, "slow_memory_s": 1200.0}
)
SCALED = FleetConfig(
    groups=(GroupSpec(ReplicaSpec("llama-2-13b", "H100"), 4, 12),),
    max_model_len=32768,
    order="priority",
    start_fixed_s=600.0,
)
DEFAULTS: dict[str, dict[str, Any]] = {
    "autoscaling": {"workload": SWINGING, "cluster": SCALED},
    "deployment": {"workload": DRIFT, "cluster": DeploymentSpec(disaggregation=True, max_model_len=32768)},
    "dp_tp": {"workload": WorkloadSpec(name="flying_bursty"), "cluster": ClusterSpec()},
    "routing": {
        "workload": WorkloadSpec(name="azure_conv_fitted"),
        "cluster": FleetConfig(groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 4),)),
    },
    "sharing": {"workload": WorkloadSpec(name="functions_fitted"), "cluster": SharingSpec()},
}


def make_env(name: str, **arguments: Any) -> Any:
    """A scalar environment."""
    return registration.make_env(name, **{**DEFAULTS.get(name, {}), **arguments})


def make_vector_env(name: str, num_envs: int, **arguments: Any) -> Any:
    """A vector environment."""
    return registration.make_vector_env(name, num_envs, **{**DEFAULTS.get(name, {}), **arguments})


def Task(env: str, arguments: dict[str, Any], *args: Any, **more: Any) -> learner.Task:
    """What a learner is to learn."""
    return learner.Task(env, {**DEFAULTS.get(env, {}), **arguments}, *args, **more)
