"""Every autoscaler through a short episode of the environment."""

import math

import numpy as np
import pytest

from serving_gym.baselines.common.autoscaler import Autoscaler
from serving_gym.baselines.policy import period_of
from serving_gym.baselines.registry import POLICIES, make_policy
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env

AUTOSCALERS = [name for name in POLICIES if name != "static" and isinstance(make_policy(name), Autoscaler)]
SMALL_NETWORK = {"mlstm": {"history": 4, "hidden": 2, "epochs": 2}}
QUICK = {
    "sageserve": {"forecaster": "moving_mean"},
    "dynamo_throughput": {"forecaster": "moving_mean"},
    "pass": {"forecasters": ["last_value", "moving_mean"]},
    **{
        f"preserve_{name}": {"predictor": SMALL_NETWORK}
        for name in ("scaling", "reactive", "proactive", "hybrid")
    },
    "chiron": {"interactive_instances": 1, "mixed_instances": 2, "batch_instances": 1},
}


@pytest.fixture(scope="module")
def env():
    """Two models in two regions for twenty minutes of a Tuesday noon."""
    regions = ("east", "west")
    groups = tuple(
        GroupSpec(ReplicaSpec(model, "H100"), 2, 6, region)
        for model in ("llama-3.1-8b", "qwen2.5-7b")
        for region in regions
    )
    return make_env(
        "autoscaling",
        cluster=FleetConfig(groups=groups, order="priority", default_round_trip_s=0.05),
        workload=WorkloadSpec(
            name="week",
            params={
                "requests_per_week": 3e6,
                "start_h": 36.0,
                "models": {"llama-3.1-8b": {}, "qwen2.5-7b": {"share": 2.0}},
                "regions": {"east": {}, "west": {}},
            },
        ),
        episode_s=1200.0,
        decision_interval_s=60.0,
        history_s=4 * 3600.0,
        min_instances=1,
    )


@pytest.mark.parametrize("name", AUTOSCALERS)
def test_an_episode(env, name):
    policy = make_policy(name, **QUICK.get(name, {}))
    episode = run_episode(env, policy, 3)
    assert len(episode.decisions) == math.ceil(1200 / (period_of(policy) or 60.0))
    assert np.isfinite(episode.metrics["return"])
    assert len(episode.records.arrival_s) > 3000
    hours = {held: table.sum() for held, table in env.unwrapped.core.instance_hours.items()}
    assert hours["running"] > 4 * 1200 / 3600 / 2
    refused = [decision["refused"] for decision in episode.decisions if decision["refused"]]
    assert len(refused) <= 3, refused
