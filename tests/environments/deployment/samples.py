"""A small cluster and short episodes that several tests use."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.envs.workload.registry import WorkloadSpec

SMALL = DeploymentSpec(model="llama-3.1-8b", num_machines=2, gpus_per_machine=2, reinit_s=2.0)
MIX = WorkloadSpec(name="type_mix", num_requests=500, params={"mean_rps": 25.0, "hold_s": 20.0})
BASE: dict[str, Any] = {
    "workload": MIX,
    "cluster": SMALL,
    "span_s": 8.0,
    "past_requests": 1500,
    "prediction": PredictionSpec(name="lognormal"),
}


def masked_action(env: Any, rng: np.random.Generator) -> int:
    """A possible action, staying no more often than any other."""
    return int(rng.choice(np.flatnonzero(env.unwrapped.action_masks())))


def play(env: Any, seed: int, choose: Any, most: int = 500):
    """An episode; yields (observation, reward, terminated, truncated, info)."""
    observation, info = env.reset(seed=seed)
    yield observation, 0.0, False, False, info
    for _ in range(most):
        step = env.step(choose(env))
        yield step
        if step[2] or step[3]:
            return
    raise AssertionError("the episode does not end")
