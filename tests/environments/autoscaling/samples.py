"""Small autoscaling environments and ways to play them."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.scaling import MachineSpec, QueueSpec
from serving_gym.envs.workload.registry import WorkloadSpec

SMALL_MODEL = ReplicaSpec("llama-3.1-8b", "H100")
LARGE_MODEL = ReplicaSpec("llama-2-13b", "H100", max_model_len=32768)

ONE = {
    "workload": WorkloadSpec("sageserve_tiers", params={"mean_rps": 4.0, "start_h": 14.0}),
    "cluster": FleetConfig((GroupSpec(SMALL_MODEL, 2, 4),), order="priority", start_fixed_s=100.0),
    "machines": MachineSpec(),
    "decision_interval_s": 300.0,
    "episode_s": 1800.0,
    "history_s": 7200.0,
    "drain_limit_s": 900.0,
}
REGIONS = {
    **ONE,
    "workload": WorkloadSpec(
        "sageserve_tiers",
        params={
            "mean_rps": 6.0,
            "start_h": 14.0,
            "models": {"llama-3.1-8b": 0.6, "llama-2-13b": 0.4},
            "regions": {"east": 0.7, "west": 0.3},
        },
    ),
    "cluster": FleetConfig(
        tuple(
            GroupSpec(replica, 2, 4, region)
            for replica in (SMALL_MODEL, LARGE_MODEL)
            for region in ("east", "west")
        ),
        order="priority",
        start_fixed_s=100.0,
        default_round_trip_s=0.3,
    ),
    "machines": MachineSpec(per_region={"1xH100": 8}, spot=1),
    "min_instances": 0,
}
SILENT = {**ONE, "queue": QueueSpec(hold=False), "decision_interval_s": 60.0, "history_s": 3600.0}
BATCH = {**ONE, "workload": WorkloadSpec("azure_conv_fitted", num_requests=1500)}
VARIANTS: dict[str, dict[str, Any]] = {"one": ONE, "regions": REGIONS, "no_queue": SILENT, "whole": BATCH}


def masked_action(env: Any, rng: np.random.Generator) -> np.ndarray:
    """A random vector of possible entries."""
    masks = np.split(env.action_masks(), np.cumsum(env.action_space.nvec)[:-1])
    return np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])


def play(env: Any, seed: int, choose: Any):
    """An episode; yields (observation, reward, terminated, truncated, info)."""
    observation, info = env.reset(seed=seed)
    yield observation, 0.0, False, False, info
    while True:
        step = env.step(choose(env))
        yield step
        if step[2] or step[3]:
            return
