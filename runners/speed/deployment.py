"""Speed of the deployment environment: spans per second that change nothing, one by one and batched."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from serving_gym.runners.configuration.make import make_env, make_vector_env
from serving_gym.runners.configuration.schema import BenchConfig
from serving_gym.runners.speed.measurement import Measurement

_STEPS, _BATCH_STEPS, _NUM_ENVS = 60, 20, 4


def deployment_steps(config: BenchConfig) -> Iterator[Measurement]:
    """Steps of the default task, each a minute of some 1000 requests on 16 GPUs, with observations and candidates."""

    def scalar() -> float:
        env: Any = make_env("deployment", split="test")
        env.reset(seed=0)
        env.step(0)
        begun = time.process_time()
        for _ in range(_STEPS):
            _, _, terminated, truncated, _ = env.step(0)
            if terminated or truncated:
                env.reset()
        return _STEPS / (time.process_time() - begun)

    def batched() -> float:
        env: Any = make_vector_env("deployment", _NUM_ENVS, split="test")
        env.reset(seed=0)
        stay = np.zeros(_NUM_ENVS, np.int64)
        env.step(stay)
        begun = time.process_time()
        for _ in range(_BATCH_STEPS):
            env.step(stay)
        return _BATCH_STEPS * _NUM_ENVS / (time.process_time() - begun)

    name, unit = "env.steps_per_s", "1/s"
    yield Measurement(name, unit, {"env": "deployment", "batched": False, "num_envs": 1}, scalar)
    yield Measurement(name, unit, {"env": "deployment", "batched": True, "num_envs": _NUM_ENVS}, batched)
