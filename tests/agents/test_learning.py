"""An agent finds the optimum of a tiny instance where it is known."""

from __future__ import annotations

import pytest

from serving_gym.agents.config import NetworkConfig, PPOConfig
from serving_gym.agents.learners.learner import Budget, make_learner
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import Task, make_env

# Two base engines and a request every other second: one wide engine serves each of them faster and nobody waits, so to
# merge at once and stay merged is best. Episodes begin apart.
LIGHT = {
    "workload": WorkloadSpec(
        name="flying_bursty",
        num_requests=30,
        params={
            "low_rate_rps": [0.5, 0.5],
            "burst_rate_rps": None,
            "input_tokens": [2048, 2048],
            "output_tokens": [128, 128],
        },
    ),
    "cluster": ClusterSpec(num_gpus=2),
}


def mean_return(policy, seeds):
    env = make_env("dp_tp", **LIGHT, split="test")
    return sum(run_episode(env, policy, seed).metrics["return"] for seed in seeds) / len(seeds)


@pytest.mark.full
def test_maskable_ppo_finds_the_layout_that_dominates():
    seeds = range(3)
    apart, merged = (mean_return(make_policy(name), seeds) for name in ("static_dp", "static_tp"))
    assert merged > 0.9 * apart  # less cost
    config = PPOConfig(
        rollout_steps=64,
        batch_size=128,
        learning_rate=3e-3,
        group_size=4,
        network=NetworkConfig(row_width=16, hidden_widths=(32,), stay_probability=0.8),
    )
    learner = make_learner(config, Task("dp_tp", LIGHT, num_envs=8))
    budget = Budget(16_384)
    while not budget.over:
        learner.improve(budget)
    learned = mean_return(learner.policy(), seeds)
    assert learned == pytest.approx(merged, rel=0.02)
