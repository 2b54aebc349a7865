"""Speed of the autoscaling environment: decisions per second, and days and weeks of a whole fleet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.configuration.make import make_env, make_vector_env
from serving_gym.runners.configuration.schema import BenchConfig
from serving_gym.runners.speed.measurement import Measurement

_STEPS = 200
_INTERVAL_S = 300.0
_DAY_S = 86_400.0
_REGIONS = {"east": 0.5, "central": 0.3, "west": 0.2}
_MODELS = {"llama-2-70b": 0.3, "llama-3.1-8b": 0.3, "llama-3.1-70b": 0.2, "llama-2-13b": 0.2}
_COUNT, _PLACES = 4, 20


def _fleet(requests: float, days: float) -> dict[str, Any]:
    """Three regions and four models with up to twenty instances of each."""
    groups = tuple(
        GroupSpec(ReplicaSpec(model, "H100", tp_size=4), _COUNT, _PLACES, region)
        for model in _MODELS
        for region in _REGIONS
    )
    params = {"mean_rps": requests / (days * _DAY_S), "models": _MODELS, "regions": _REGIONS, "start_h": 24.0}
    return {
        "cluster": FleetConfig(
            groups=groups,
            max_model_len=32768,
            order="priority",
            default_round_trip_s=0.3,
            start_fixed_s=300.0,
        ),
        "workload": WorkloadSpec("sageserve_tiers", params=params),
        "episode_s": days * _DAY_S,
        "decision_interval_s": _INTERVAL_S,
        "keep_records": False,
        "split": "test",
    }


def autoscaling_steps(config: BenchConfig) -> Iterator[Measurement]:
    """Decisions that change nothing, in the environment's own setting."""

    def scalar() -> float:
        env: Any = make_env("autoscaling", split="test", keep_records=False)
        env.reset(seed=0)
        begun = time.process_time()
        for _ in range(_STEPS):
            env.step(None)
        return _STEPS / (time.process_time() - begun)

    def batched() -> float:
        env: Any = make_vector_env("autoscaling", config.num_envs, split="test")
        env.reset(seed=0)
        stay = np.stack([episode.levers.nothing(episode.simulator) for episode in env.episodes])
        steps = max(1, _STEPS // config.num_envs)
        begun = time.process_time()
        for _ in range(steps):
            env.step(stay)
        return steps * config.num_envs / (time.process_time() - begun)

    name, unit = "env.steps_per_s", "1/s"
    yield Measurement(name, unit, {"env": "autoscaling", "batched": False, "num_envs": 1}, scalar)
    yield Measurement(
        name, unit, {"env": "autoscaling", "batched": True, "num_envs": config.num_envs}, batched
    )


def scaled_spans(config: BenchConfig) -> Iterator[Measurement]:
    """A day and a week from the first decision to the last, requests drawn and observations made; no policy."""
    for span, days, requests in (
        ("day", 1.0, config.week_requests * 3 // 20),
        ("week", 7.0, config.week_requests),
    ):

        def run(days: float = days, requests: int = requests) -> float:
            env: Any = make_env("autoscaling", **_fleet(requests, days))
            env.reset(seed=0)
            begun = time.process_time()
            while not env.core.done:
                env.step(None)
            return time.process_time() - begun

        params = {
            "span": span,
            "requests": requests,
            "models": len(_MODELS),
            "regions": len(_REGIONS),
            "places": _PLACES * len(_MODELS) * len(_REGIONS),
            "decision_interval_s": _INTERVAL_S,
        }
        yield Measurement("scaled_span.seconds", "s", params, run)
