"""Agents of the autoscaling environment: what a baseline says as numbers, a network's policy, a copy of a baseline."""

from __future__ import annotations

import numpy as np
import pytest

from agents.adapter import adapter_of
from agents.config import NetworkConfig, PPOConfig
from agents.learner import Budget, Task, make_learner
from baselines.registry import make_policy
from envs.registration import make_env
from runners.rollout import run_episode

SHORT = {"episode_s": 1800.0}


@pytest.fixture(scope="module")
def env():
    return make_env("autoscaling", **SHORT)


def test_numbers_stand_for_what_an_autoscaler_says(env):
    """Its changes, cut to what is possible, and nothing for an autoscaler that changes nothing."""
    adapter, policy = adapter_of("autoscaling"), make_policy("queue_proportional")
    observation, info = env.reset(seed=0)
    policy.reset(env.policy_spec, 0)
    done, changed = False, 0
    while not done:
        mask = adapter.mask(observation, env.state, env.policy_spec)
        np.testing.assert_array_equal(mask, info["action_mask"])
        said = policy.act(observation, env.state)
        numbers = adapter.index_of(said, env.state, mask, env.policy_spec)
        assert env.action_space.contains(numbers)
        still = adapter.index_of(None, env.state, mask, env.policy_spec)
        changed += not np.array_equal(numbers, still)
        observation, _, terminated, truncated, info = env.step(numbers)
        done = terminated or truncated
    assert changed


@pytest.mark.parametrize("name", ["maskable_ppo"])
def test_a_learner_trains_and_its_policy_runs(env, name):
    network = NetworkConfig(row_width=8, hidden_widths=(16,))
    config = PPOConfig(rollout_steps=4, batch_size=8, epochs=1, group_size=2, network=network)
    learner = make_learner(config, Task("autoscaling", SHORT, num_envs=2))
    budget = Budget(16)
    while not budget.over:
        learner.improve(budget)
    episode = run_episode(env, learner.policy(), 1)
    assert episode.metrics["commands_refused"] == 0
    assert np.isfinite(episode.metrics["return"])
