"""Discounting by elapsed time, worked by hand and against Stable-Baselines3."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer

from serving_gym.agents.learners.semi_mdp import (
    SemiMDPMaskableRolloutBuffer,
    SemiMDPReplayBuffer,
    SemiMDPRolloutBuffer,
    discounted_advantages,
)

OBSERVATION = spaces.Dict({"engines": spaces.Box(0, 64, (2, 3), np.float32)})
ACTION = spaces.Discrete(4)


def filled(buffer, rewards, values, starts, intervals=None):
    for step in range(len(rewards)):
        if intervals is not None:
            buffer.set_intervals(intervals[step])
        buffer.add(
            {"engines": np.zeros((buffer.n_envs, 2, 3), np.float32)},
            np.zeros((buffer.n_envs, 1)),
            rewards[step],
            starts[step],
            torch.as_tensor(values[step]),
            torch.zeros(buffer.n_envs),
        )
    return buffer


def test_by_hand():
    """Two steps of 1 and 2 intervals, gamma 0.5, lambda 0.8."""
    advantages = discounted_advantages(
        rewards=np.array([[1.0], [2.0]], np.float32),
        values=np.array([[10.0], [20.0]], np.float32),
        episode_starts=np.array([[1.0], [0.0]], np.float32),
        last_values=np.array([40.0], np.float32),
        dones=np.array([False]),
        discounts=np.array([[0.5], [0.25]], np.float32),
        decays=np.array([[0.8], [0.64]], np.float32),
    )
    last = 2.0 + 0.25 * 40.0 - 20.0
    first = 1.0 + 0.5 * 20.0 - 10.0 + 0.5 * 0.8 * last
    np.testing.assert_allclose(advantages, [[first], [last]])


def test_nothing_passes_from_one_episode_to_the_one_before():
    advantages = discounted_advantages(
        rewards=np.array([[1.0], [100.0]], np.float32),
        values=np.array([[3.0], [50.0]], np.float32),
        episode_starts=np.array([[1.0], [1.0]], np.float32),
        last_values=np.array([7.0], np.float32),
        dones=np.array([True]),
        discounts=np.full((2, 1), 0.9, np.float32),
        decays=np.full((2, 1), 0.9, np.float32),
    )
    np.testing.assert_allclose(advantages, [[-2.0], [50.0]])


@pytest.mark.parametrize("ours", [SemiMDPRolloutBuffer, SemiMDPMaskableRolloutBuffer])
def test_equal_intervals_give_what_stable_baselines_computes(ours):
    rng = np.random.default_rng(0)
    shape = (16, 3)
    rewards, values = rng.normal(size=shape), rng.normal(size=shape).astype(np.float32)
    starts = rng.random(shape) < 0.2
    arguments = (16, OBSERVATION, ACTION, "cpu", 0.9, 0.95, 3)
    plain = filled(DictRolloutBuffer(*arguments), rewards, values, starts)
    timed = filled(ours(*arguments), rewards, values, starts, np.ones(shape))
    last, dones = torch.as_tensor(rng.normal(size=3).astype(np.float32)), np.array([True, False, False])
    plain.compute_returns_and_advantage(last, dones)
    timed.compute_returns_and_advantage(last, dones)
    np.testing.assert_allclose(timed.returns, plain.returns, rtol=1e-5, atol=1e-5)
    normal = (plain.advantages - plain.advantages.mean()) / plain.advantages.std()
    np.testing.assert_allclose(timed.advantages, normal, rtol=1e-4, atol=1e-5)


def test_longer_intervals_count_for_less():
    buffer = SemiMDPRolloutBuffer(2, OBSERVATION, ACTION, "cpu", 1.0, 0.5, 1)
    filled(buffer, [[0.0], [8.0]], [[0.0], [0.0]], [[1.0], [0.0]], [[3.0], [1.0]])
    buffer.compute_returns_and_advantage(torch.zeros(1), np.array([True]))
    np.testing.assert_allclose(buffer.returns, [[1.0], [8.0]])


def test_rounding_errors_are_not_blown_up():
    """Members of a group that do the same have nothing in common but rounding errors."""
    buffer = SemiMDPRolloutBuffer(4, OBSERVATION, ACTION, "cpu", 1.0, 0.5, 2, group_size=2)
    rewards = np.repeat(np.arange(4.0)[:, None], 2, axis=1)
    rewards[2, 1] += 1e-6
    filled(buffer, rewards, np.zeros((4, 2), np.float32), np.eye(4)[:, :1].repeat(2, axis=1))
    buffer.compute_returns_and_advantage(torch.zeros(2), np.array([True, True]))
    assert np.abs(buffer.advantages).max() < 1e-3


def test_replayed_steps_carry_their_discounts():
    arguments = (8, OBSERVATION, ACTION, "cpu", 1)
    memory = SemiMDPReplayBuffer(*arguments, discount=0.5, interval_s=2.0)
    plain = DictReplayBuffer(*arguments)
    observation = {"engines": np.ones((1, 2, 3), np.float32)}
    step = (observation, observation, np.array([[1]]), np.array([2.0]), np.array([1.0]))
    for buffer in (memory, plain):
        buffer.add(*step, [{"dt": 4.0, "TimeLimit.truncated": True}])
    ours, theirs = memory.sample(3), plain.sample(3)
    np.testing.assert_allclose(ours.discounts, 0.25)
    for name in ("actions", "rewards", "dones"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    np.testing.assert_array_equal(ours.observations["engines"], theirs.observations["engines"])
