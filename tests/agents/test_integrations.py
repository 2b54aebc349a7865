"""Environments in the form of other libraries, and policies that were trained there."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import serving_gym
from serving_gym.agents.integrations.masked import (
    ACTION_MASK,
    OBSERVATIONS,
    MaskedPolicy,
    action_of,
    make_masked,
)
from serving_gym.envs.registration import ENVS
from tests.environments.cases import CASES, NAMES, possible

TINY = {"workload.num_requests": 60}


@pytest.mark.parametrize("name", NAMES)
def test_the_mask_is_part_of_the_observation(name):
    env = make_masked(name, **CASES[name])
    rng = np.random.default_rng(0)
    observation, info = env.reset(seed=0)
    over = False
    for _ in range(20):
        assert env.observation_space.contains(observation)
        np.testing.assert_array_equal(observation[ACTION_MASK], info["action_mask"])
        if over:
            break
        action = possible(env.action_space, observation[ACTION_MASK], rng)
        observation, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_sees_what_was_trained_on(name):
    """Its function gets the very vector and mask that the wrapped environment shows, at every decision."""
    masked = make_masked(name, **CASES[name])
    rng, calls = np.random.default_rng(0), []

    def choose(observation, mask):
        calls.append((observation, mask))
        return possible(masked.action_space, mask, rng)

    plain = gym.make(ENVS[name].env_id, **CASES[name])
    env, policy = plain.unwrapped, MaskedPolicy("mine", masked, choose)
    shown, _ = masked.reset(seed=3)
    observation, _ = plain.reset(seed=3)
    policy.reset(env.policy_spec, 3)
    over = False
    for _ in range(15):
        action = policy.act(observation, env.state)
        np.testing.assert_array_equal(calls[-1][0], shown[OBSERVATIONS])
        np.testing.assert_array_equal(calls[-1][1], shown[ACTION_MASK].astype(bool))
        shown, *_ = masked.step(action)
        observation, _, terminated, truncated, _ = plain.step(action)
        over = terminated or truncated
        if over:
            break
    assert calls


def test_a_policy_of_a_vector_environment_is_compared():
    envs = gym.make_vec("Serving/Routing-v1", num_envs=2, vectorization_mode="vector_entry_point", **TINY)
    first = MaskedPolicy("first_free", envs, lambda observation, mask: int(mask.argmax()))
    result = serving_gym.compare("routing", [first, "jsq"], seeds=2, **TINY)
    assert list(result["policies"]) == ["first_free", "jsq"]
    assert result["learned"] == ["first_free"]
    assert result["best_heuristic"] == "jsq"
    assert result["relative_improvement"]["first_free>jsq"]["iqm"] < 0  # all to one place


def test_a_policy_of_another_environment_is_refused():
    policy = MaskedPolicy("mine", make_masked("routing"), lambda observation, mask: 0)
    with pytest.raises(ValueError, match="'mine' does not fit env=dp_tp: it decides in env=routing"):
        serving_gym.compare("dp_tp", [policy], seeds=1)
    with pytest.raises(ValueError, match="'mine' was trained with 99 observed numbers"):
        serving_gym.compare("routing", [policy], seeds=1, cluster="fleet_h100_x16")


def test_actions_are_the_likeliest_or_drawn():
    logits = np.log(np.array([0.2, 0.7, 0.1, 0.25, 0.75], np.float32))
    mask = np.array([True, False, True, True, True])
    assert action_of(logits[:3], mask[:3], gym.spaces.Discrete(3)) == 0
    levers = gym.spaces.MultiDiscrete([3, 2])
    assert action_of(logits, mask, levers).tolist() == [0, 1]
    rng = np.random.default_rng(0)
    drawn = np.array([action_of(logits, mask, levers, rng) for _ in range(4000)])
    np.testing.assert_allclose(np.bincount(drawn[:, 0], minlength=3) / 4000, [2 / 3, 0, 1 / 3], atol=0.03)
    np.testing.assert_allclose(np.bincount(drawn[:, 1], minlength=2) / 4000, [0.25, 0.75], atol=0.03)
