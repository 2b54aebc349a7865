"""Learners of several numbers a decision."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from serving_gym.agents.config import (
    CMAESConfig,
    LagrangianConfig,
    NetworkConfig,
    PPOConfig,
    QRDQNConfig,
    RecurrentPPOConfig,
    SACConfig,
)
from serving_gym.agents.environments import adapter
from serving_gym.agents.environments.spaces import entries, highest, one_hot, read_spaces, spaces_to_json
from serving_gym.agents.learners.learner import Budget, make_learner
from serving_gym.envs import registration
from serving_gym.envs.registration import EnvEntry
from tests.agents.levers import LENGTH, SPACES, LeversEnv
from tests.defaults import Task
from tests.tiers import full_except

ON_POLICY = {
    "rollout_steps": 32, "batch_size": 256, "epochs": 5, "learning_rate": 1e-2, "discount": 0.1,
    "advantage_floor": None, "group_size": 1, "network": NetworkConfig(row_width=16, hidden_widths=(16,)),
}  # fmt: skip
SEARCH = {"episodes": 4, "sigma": 0.5, "network": NetworkConfig(row_width=4, hidden_widths=(4,))}
LEARNERS = {
    "maskable_ppo": (PPOConfig(**ON_POLICY), 10_000),
    "recurrent_ppo": (RecurrentPPOConfig(**ON_POLICY, memory_width=4), 10_000),
    "ppo_lagrangian": (LagrangianConfig(**ON_POLICY), 10_000),
    "cma_es": (CMAESConfig(**SEARCH), 40_000),
}


class LeversAdapter(adapter.Adapter):
    rows = "levers"

    def mask(self, observation, state, spec):
        return LeversEnv().action_masks()


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    entry = EnvEntry(
        "Test/Levers-v0",
        "tests.agents.levers:LeversEnv",
        "tests.agents.levers:LeversVectorEnv",
        "tests.agents.levers:LeversEnv",
        (),
        package="",
    )
    monkeypatch.setitem(registration.ENVS, "levers", entry)
    if entry.env_id not in gym.registry:
        gym.register(entry.env_id, entry.entry_point, vector_entry_point=entry.vector_entry_point)
    monkeypatch.setitem(adapter.ADAPTERS, "levers", "tests.agents.test_levers:LeversAdapter")


def share_right(policy):
    env, right, total = LeversEnv(), 0.0, 0
    for seed in range(8):
        observation, _ = env.reset(seed=seed)
        policy.reset(env.policy_spec, seed)
        done = False
        while not done:
            observation, reward, done, _, _ = env.step(policy.act(observation, env.state))
            right, total = right + 2.0 + reward, total + 2
    return right / total


@pytest.mark.parametrize("name", full_except(LEARNERS, "maskable_ppo"))
def test_it_learns_where_every_lever_is_to_stand(name):
    config, steps = LEARNERS[name]
    learner, budget = make_learner(config, Task("levers", {}, num_envs=8)), Budget(steps)
    assert share_right(learner.policy()) < 0.8
    while not budget.over:
        learner.improve(budget)
    assert share_right(learner.policy()) > 0.95


@pytest.mark.parametrize("config", [QRDQNConfig(), SACConfig()])
def test_learners_of_one_number_are_refused(config):
    with pytest.raises(ValueError, match=f"agent={config.name} takes one number a decision"):
        make_learner(config, Task("levers", {}, num_envs=2))


def test_entries_by_hand(tmp_path):
    _, action = SPACES
    assert entries(action) == (3, 3)
    scores = np.array([[1.0, 3.0, 2.0, 0.0, -1.0, 5.0]], np.float32)
    np.testing.assert_array_equal(highest(scores, None, action), [[1, 2]])
    masks = np.array([[True, False, True, True, True, False]])
    np.testing.assert_array_equal(highest(scores, masks, action), [[2, 0]])
    np.testing.assert_array_equal(one_hot(np.array([[2, 0]]), action), [[0, 0, 1, 1, 0, 0]])
    (tmp_path / "spaces.json").write_text(spaces_to_json(*SPACES))
    assert read_spaces(tmp_path) == SPACES


def test_promises_are_counted_over_whole_episodes():
    from serving_gym.agents.learners.serial_env import SerialVectorEnv

    env = SerialVectorEnv("levers", 2, {})
    env.reset(seed=[0, 1])
    for _ in range(LENGTH):
        *_, infos = env.step(np.zeros((2, 2), np.int64))
    assert np.isfinite(infos["missed_share"]).all()
    assert (infos["missed_share"] <= 1.0).all()
