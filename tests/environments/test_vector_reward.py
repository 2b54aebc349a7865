"""Rewards as vectors: their product with the weights is the reward, in every environment."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import serving_gym
from serving_gym.envs.base.vector_reward import VectorReward
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.registration import make_env
from tests.environments.cases import CASES, NAMES, possible

ODD = Objective(
    latency=0.7,
    ttft_attainment=1.3,
    tpot_attainment=0.9,
    goodput=0.4,
    switch=0.03,
    abandoned=7.0,
    gpu_usd=1.1,
    startup_usd=0.2,
    backlog_usd=1.7,
    spot_rent_usd=0.6,
    spot_revenue_usd=0.5,
    scale=0.25,
)


def rewards(env: VectorReward, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Vectors and scalars of an episode of random actions."""
    rng = np.random.default_rng(seed)
    _, info = env.reset(seed=seed)
    vectors, scalars, over = [], [], False
    while not over:
        action = possible(env.action_space, info["action_mask"], rng)
        _, vector, terminated, truncated, info = env.step(action)
        vectors.append(vector)
        scalars.append(info["scalar_reward"])
        over = terminated or truncated
    return np.array(vectors), np.array(scalars)


def weighted(name: str) -> Objective:
    """Every weight at an odd value, and of one class twice as high."""
    classes = make_env(name, **CASES[name]).unwrapped.core.classes
    return dataclasses.replace(ODD, class_weights={classes[0]: 2.0})


@pytest.mark.parametrize("name", NAMES)
def test_the_product_with_the_weights_is_the_reward(name):
    env = VectorReward(make_env(name, **{**CASES[name], "objective": weighted(name)}))
    vectors, scalars = rewards(env)
    assert vectors.shape[1] == env.reward_dim == len(env.reward_names)
    assert scalars.any()
    np.testing.assert_allclose(vectors @ env.reward_weights, scalars, rtol=1e-12, atol=1e-12)
    assert {name for name, total in zip(env.reward_names, np.abs(vectors).sum(axis=0), strict=True) if total}


@pytest.mark.parametrize("name", NAMES)
def test_objectives_add_up_weighted_terms(name):
    env = VectorReward(
        make_env(name, **{**CASES[name], "objective": weighted(name)}),
        {"latency": ["latency"], "lost": ["abandoned", "switch"], "rest": ["*"]},
    )
    vectors, scalars = rewards(env)
    assert env.reward_names == ("latency", "lost", "rest")
    np.testing.assert_array_equal(env.reward_weights, np.ones(3))
    np.testing.assert_allclose(vectors.sum(axis=1), scalars, rtol=1e-12, atol=1e-12)


def test_refusals_are_a_term_where_admission_is_a_decision():
    arguments = {**CASES["routing"], "objective": dataclasses.replace(ODD, refused=3.0)}
    env = VectorReward(make_env("routing", **arguments, admission=True))
    vectors, scalars = rewards(env)
    assert "refused/standard" in env.reward_names
    np.testing.assert_allclose(vectors @ env.reward_weights, scalars, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"objective\.refused must be 0 .* got 3"):
        VectorReward(make_env("routing", **arguments))


@pytest.mark.parametrize(
    ("objectives", "said"),
    [
        ({"a": ["latencies"]}, r"reward term 'latencies'; did you mean 'latency'"),
        ({"a": ["latency", "*"], "b": ["latency"]}, r"'latency' more than once"),
        ({"a": ["latency"]}, r"exactly one objective must have '\*'"),
        ({"a": ["*"], "b": ["*"]}, r"exactly one objective must have '\*'.* got 2"),
    ],
)
def test_objectives_that_do_not_add_up_to_the_reward_are_refused(objectives, said):
    with pytest.raises(ValueError, match=said):
        VectorReward(make_env("routing", **CASES["routing"]), objectives)


def test_other_environments_are_refused():
    with pytest.raises(ValueError, match="for environments of serving-gym, got CartPoleEnv"):
        VectorReward(gym.make("CartPole-v1"))


def test_gymnasium_makes_it_by_a_word():
    words: dict[str, Any] = {"workload.num_requests": 20, "disable_env_checker": True}
    env = gym.make("Serving/Routing-v1", vector_reward=True, **words)
    env.reset(seed=0)
    _, reward, _, _, info = env.step(0)
    assert reward.shape == env.unwrapped.reward_space.shape == (env.unwrapped.reward_dim,)
    assert reward @ env.get_wrapper_attr("reward_weights") == pytest.approx(info["scalar_reward"])
    two = serving_gym.make("routing", vector_reward={"late": ["latency"], "rest": ["*"]}, **words)
    two.reset(seed=0)
    assert two.step(0)[1].shape == (2,)


def test_wrappers_of_mo_gymnasium():
    mo = pytest.importorskip("mo_gymnasium")
    env = mo.make("Serving/Routing-v1", vector_reward=True, **{"workload.num_requests": 20})
    weights = env.get_wrapper_attr("reward_weights")
    counted = mo.wrappers.MORecordEpisodeStatistics(env)
    scalar = mo.wrappers.LinearReward(counted, weight=weights)
    scalar.reset(seed=0)
    total, over, info = 0.0, False, {}
    while not over:
        _, reward, terminated, truncated, info = scalar.step(0)
        assert reward == pytest.approx(info["scalar_reward"], rel=1e-12)
        assert info["vector_reward"].shape == weights.shape
        total += reward
        over = terminated or truncated
    assert info["episode"]["r"] @ weights == pytest.approx(total, rel=1e-4)  # summed in float32 there
    clipped = mo.wrappers.MOClipReward(env, idx=0, min_r=-0.01, max_r=0.0)
    clipped.reset(seed=0)
    assert clipped.step(0)[1][0] >= -0.01
