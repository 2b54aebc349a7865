"""Speed of environments and policies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.configuration.make import make_env, make_vector_env
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.configuration.schema import BenchConfig
from serving_gym.runners.rollouts.rollout import run_episode
from serving_gym.runners.speed.measurement import Measurement

_STEPS = 200
_POLICY_REQUESTS = 500
_POLICIES = ("static_dp", "load_threshold", "flying_serving")


def env_steps(config: BenchConfig) -> Iterator[Measurement]:
    """Steps that change nothing, episode after episode."""

    def scalar() -> float:
        env: Any = make_env("dp_tp", split="test")
        env.reset(seed=0)
        stay = np.flatnonzero(env.action_masks())[-1]
        begun = time.process_time()
        for _ in range(_STEPS):
            if env.step(stay)[2]:
                env.reset()
        return _STEPS / (time.process_time() - begun)

    def batched() -> float:
        env: Any = make_vector_env("dp_tp", config.num_envs, split="test")
        env.reset(seed=0)
        stay = np.full(config.num_envs, env.single_action_space.n - 1)
        begun = time.process_time()
        for _ in range(_STEPS):
            env.step(stay)
        return _STEPS * config.num_envs / (time.process_time() - begun)

    name, unit = "env.steps_per_s", "1/s"
    yield Measurement(name, unit, {"env": "dp_tp", "batched": False, "num_envs": 1}, scalar)
    yield Measurement(name, unit, {"env": "dp_tp", "batched": True, "num_envs": config.num_envs}, batched)


def policies(config: BenchConfig) -> Iterator[Measurement]:
    """Time a policy takes to decide."""
    workload = WorkloadSpec("flying_bursty", num_requests=_POLICY_REQUESTS)
    for name in _POLICIES:

        def decide(name: str = name) -> float:
            env = make_env("dp_tp", workload=workload, split="test")
            return run_episode(env, load_policy(name), seed=0).us_per_decision

        yield Measurement("policy.us_per_decision", "us", {"env": "dp_tp", "policy": name}, decide)
