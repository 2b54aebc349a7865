"""A small configuration of each environment, for tests that run over all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from tests.environments.sharing.samples import SMALL as SHARED_NODES

REPLICA = ReplicaSpec("llama-3.1-8b", "H100")
CASES: dict[str, dict[str, Any]] = {
    "autoscaling": {
        "workload": WorkloadSpec("sageserve_tiers", params={"mean_rps": 4.0, "start_h": 14.0}),
        "cluster": FleetConfig((GroupSpec(REPLICA, 2, 4),), order="priority", start_fixed_s=100.0),
        "decision_interval_s": 300.0,
        "episode_s": 1200.0,
        "history_s": 7200.0,
        "drain_limit_s": 900.0,
    },
    "deployment": {
        "workload": WorkloadSpec(
            name="type_mix", num_requests=300, params={"mean_rps": 25.0, "hold_s": 20.0}
        ),
        "cluster": DeploymentSpec(model="llama-3.1-8b", num_machines=2, gpus_per_machine=2, reinit_s=2.0),
        "span_s": 4.0,
        "past_requests": 1500,
        "prediction": PredictionSpec(name="lognormal"),
    },
    "dp_tp": {"workload": WorkloadSpec(name="flying_bursty", num_requests=40), "cluster": ClusterSpec()},
    "routing": {
        "workload": WorkloadSpec(name="azure_conv_fitted", num_requests=25),
        "cluster": FleetConfig((GroupSpec(REPLICA, 3),)),
    },
    "sharing": {
        "workload": WorkloadSpec(name="functions_fitted", num_requests=25),
        "cluster": SHARED_NODES,
    },
}
NAMES = sorted(CASES)


def entries(space: Any) -> list[int]:
    """Entries of each lever of an action space; of a single one, its actions."""
    return [int(n) for n in np.atleast_1d(getattr(space, "nvec", getattr(space, "n", None)))]


def possible(space: Any, mask: np.ndarray, rng: np.random.Generator) -> Any:
    """A random possible action."""
    widths = entries(space)
    chosen = [
        rng.choice(np.flatnonzero(own)) for own in np.split(np.asarray(mask, bool), np.cumsum(widths)[:-1])
    ]
    return np.array(chosen) if hasattr(space, "nvec") else int(chosen[0])
