"""Speed of the sharing environment: decisions per second, one by one and batched, and a whole half hour."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.envs.simulator.sharing.features import PLACE_FEATURES
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.configuration.make import make_env, make_vector_env
from serving_gym.runners.configuration.schema import BenchConfig
from serving_gym.runners.speed.measurement import Measurement

_STEPS, _WARM_UP_STEPS = 100, 50
_SCALAR_STEPS = 1500
_MODELS = (64, 128)
_CYCLE = PLACE_FEATURES.index("node_cycle_s")
_BACKLOG = PLACE_FEATURES.index("node_backlog_s")


@njit(cache=True)
def _place(places: NDArray[np.float32], masks: NDArray[np.bool_], actions: NDArray[np.int64]) -> None:
    """A compiled policy: the place whose node has the shortest cycle and backlog, by the observation."""
    for i in range(len(places)):
        best, least = places.shape[1], np.inf
        for p in range(places.shape[1]):
            work = places[i, p, _CYCLE] + places[i, p, _BACKLOG]
            if masks[i, p] and work < least:
                best, least = p, work
        actions[i] = best


def _arguments(models: int) -> dict[str, Any]:
    return {"workload": WorkloadSpec("functions_fitted", params={"num_models": models}), "split": "test"}


def sharing_steps(config: BenchConfig) -> Iterator[Measurement]:
    """Decisions per second, episode after episode."""
    for models in _MODELS:

        def scalar(models: int = models) -> float:
            env: Any = make_env("sharing", **_arguments(models))
            observation, info = env.reset(seed=0)
            action, begun = np.zeros(1, np.int64), time.process_time()
            for _ in range(_SCALAR_STEPS):
                _place(observation["places"][None], info["action_mask"][None], action)
                observation, _, terminated, truncated, info = env.step(int(action[0]))
                if terminated or truncated:
                    observation, info = env.reset()
            return _SCALAR_STEPS / (time.process_time() - begun)

        def batched(models: int = models) -> float:
            env: Any = make_vector_env("sharing", config.num_envs, **_arguments(models))
            observation, info = env.reset(seed=0)
            actions = np.zeros(config.num_envs, np.int64)
            begun = time.process_time()
            for step in range(_WARM_UP_STEPS + _STEPS):
                if step == _WARM_UP_STEPS:
                    begun = time.process_time()
                _place(observation["places"], info["action_mask"], actions)
                observation, _, _, _, info = env.step(actions)
            return _STEPS * config.num_envs / (time.process_time() - begun)

        name, unit = "env.steps_per_s", "1/s"
        params = {"env": "sharing", "models": models}
        yield Measurement(name, unit, {**params, "batched": False, "num_envs": 1}, scalar)
        yield Measurement(name, unit, {**params, "batched": True, "num_envs": config.num_envs}, batched)


def half_hour(config: BenchConfig) -> Iterator[Measurement]:
    """Thirty minutes under a compiled policy, the environment's state and observation included."""
    for models in _MODELS:

        def run(models: int = models) -> float:
            env: Any = make_env("sharing", **_arguments(models))
            observation, info = env.reset(seed=0)
            action, over, begun = np.zeros(1, np.int64), False, time.process_time()
            while not over:
                _place(observation["places"][None], info["action_mask"][None], action)
                observation, _, terminated, truncated, info = env.step(int(action[0]))
                over = terminated or truncated
            return time.process_time() - begun

        params = {"env": "sharing", "models": models, "minutes": 30}
        yield Measurement("half_hour.seconds", "s", params, run)
