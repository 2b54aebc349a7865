"""Speed of the routing environment: decisions per second, one by one and batched, and what a router's own takes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.routing.batch import RoutingBatch
from serving_gym.envs.routing.config import RoutingConfig
from serving_gym.envs.routing.episode import RoutingEpisode
from serving_gym.envs.simulator.kernel.features import PLACE_FEATURES
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.configuration.make import make_env, make_vector_env
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.configuration.schema import BenchConfig
from serving_gym.runners.rollouts.rollout import run_episode
from serving_gym.runners.speed.measurement import Measurement
from serving_gym.runners.speed.simulation import saturation_rps

_STEPS, _WARM_UP_STEPS = 200, 100
_SCALAR_STEPS = 3000
_ENGINES = (4, 16)
_IN_KERNEL = ("linear_score_tuned", "zoo/routing")  # what can decide inside the kernel
_ROLLED = 8  # episodes
_COPIES = 64
_POLICY_ENGINES, _POLICY_REQUESTS = (16, 64), 1500
_POLICIES = (
    "round_robin",
    "least_request",
    "jsq",
    "llm_d",
    "preserve",
    "llumnix",
    "sia",
    "linear_score_tuned",
    "zoo/routing",
)
_BACKLOG, _DRAIN = PLACE_FEATURES.index("prefill_backlog_s"), PLACE_FEATURES.index("drain_s")


@njit(cache=True)
def _route(places: NDArray[np.float32], masks: NDArray[np.bool_], actions: NDArray[np.int64]) -> None:
    """A compiled router: the place with the least work ahead of it, by the observation."""
    for i in range(len(places)):
        best, least = places.shape[1], np.inf
        for e in range(places.shape[1]):
            work = places[i, e, _BACKLOG] + places[i, e, _DRAIN]
            if masks[i, e] and work < least:
                best, least = e, work
        actions[i] = best


def _arguments(config: BenchConfig, engines: int, requests: int = 4000) -> dict[str, Any]:
    replica = ReplicaSpec(config.cluster.model, config.cluster.gpu, config.cluster.base_width)
    rate_rps = config.load * engines * saturation_rps(config)
    return {
        "cluster": FleetConfig(groups=(GroupSpec(replica, engines),)),
        "workload": WorkloadSpec("azure_conv_fitted", num_requests=requests, rate_rps=rate_rps),
        "split": "test",
    }


def routing_steps(config: BenchConfig) -> Iterator[Measurement]:
    """Decisions per second at a share of what the engines can serve, episode after episode."""
    for engines in _ENGINES:
        arguments = _arguments(config, engines)

        def scalar(arguments: dict[str, Any] = arguments, engines: int = engines) -> float:
            env: Any = make_env("routing", **arguments)
            env.reset(seed=0)
            begun = time.process_time()
            for step in range(_SCALAR_STEPS):
                if env.step(step % engines)[2]:
                    env.reset()
            return _SCALAR_STEPS / (time.process_time() - begun)

        def batched(arguments: dict[str, Any] = arguments) -> float:
            env: Any = make_vector_env("routing", config.num_envs, **arguments)
            observation, info = env.reset(seed=0)
            actions = np.zeros(config.num_envs, np.int64)
            for step in range(_WARM_UP_STEPS + _STEPS):
                if step == _WARM_UP_STEPS:
                    begun = time.process_time()
                _route(observation["places"], info["action_mask"], actions)
                observation, *_, info = env.step(actions)
            return _STEPS * config.num_envs / (time.process_time() - begun)

        params = {"env": "routing", "engines": engines, "load": config.load}
        yield Measurement("env.steps_per_s", "1/s", {**params, "batched": False, "num_envs": 1}, scalar)
        wide = {**params, "batched": True, "num_envs": config.num_envs, "router": "compiled"}
        yield Measurement("env.steps_per_s", "1/s", wide, batched)

        for router in _IN_KERNEL:

            def rolled(arguments: dict[str, Any] = arguments, router: str = router) -> float:
                policy: Any = load_policy(router)
                batch = RoutingBatch([RoutingEpisode(RoutingConfig(**arguments)) for _ in range(_ROLLED)])
                batch.reset(range(_ROLLED), range(_ROLLED))
                first, forever = np.zeros(_ROLLED, np.int64), np.full(_ROLLED, np.inf)
                batch.roll(first, policy.in_kernel, forever, _WARM_UP_STEPS)
                begun = time.process_time()
                _, decisions = batch.roll(first, policy.in_kernel, forever, _SCALAR_STEPS)
                return decisions / (time.process_time() - begun)

            inside = {**params, "batched": True, "num_envs": _ROLLED, "router": router, "in_kernel": True}
            yield Measurement("env.steps_per_s", "1/s", inside, rolled)


def routing_forks(config: BenchConfig) -> Iterator[Measurement]:
    """Copies of episodes inside the kernel, each with the one decision that it is made for."""
    for engines in _ENGINES:
        arguments = _arguments(config, engines)

        def copies(arguments: dict[str, Any] = arguments) -> float:
            policy: Any = load_policy(_IN_KERNEL[0])
            batch = RoutingBatch([RoutingEpisode(RoutingConfig(**arguments)) for _ in range(_ROLLED)])
            batch.reset(range(_ROLLED), range(_ROLLED))
            first, forever = np.zeros(_ROLLED, np.int64), np.full(_ROLLED, np.inf)
            batch.roll(first, policy.in_kernel, forever, _SCALAR_STEPS)
            owners = np.repeat(np.arange(_ROLLED), _COPIES // _ROLLED).tolist()
            branch = (owners, np.zeros(_COPIES, np.int64), policy.in_kernel, np.full(_COPIES, np.inf), 1)
            batch.roll_branches(*branch)
            begun = time.process_time()
            for _ in range(_STEPS):
                batch.roll_branches(*branch)
            return (time.process_time() - begun) / (_STEPS * _COPIES) * 1e6

        params = {
            "env": "routing",
            "engines": engines,
            "load": config.load,
            "in_kernel": True,
            "decisions": 1,
        }
        yield Measurement("fork.us", "us", params, copies)


def routers(config: BenchConfig) -> Iterator[Measurement]:
    """Time a router takes to decide."""
    for engines, name in itertools.product(_POLICY_ENGINES, _POLICIES):
        arguments = _arguments(config, engines, _POLICY_REQUESTS)

        def decide(arguments: dict[str, Any] = arguments, name: str = name) -> float:
            return run_episode(make_env("routing", **arguments), load_policy(name), seed=0).us_per_decision

        params = {"env": "routing", "policy": name, "engines": engines, "load": config.load}
        yield Measurement("policy.us_per_decision", "us", params, decide)
