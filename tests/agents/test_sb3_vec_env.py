"""The adapter hands on what the batched environment says, in Stable-Baselines3's way."""

from __future__ import annotations

import numpy as np
import pytest
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.vec_env import VecNormalize

from serving_gym.agents.config import PPOConfig
from serving_gym.agents.environments.dp_tp.adapter import DPTPAdapter
from serving_gym.agents.learners.learner import make_learner
from serving_gym.agents.learners.sb3_vec_env import SB3VecEnv
from serving_gym.envs.workload.registry import WorkloadSpec
from tests.defaults import Task, make_env, make_vector_env

BURSTY = WorkloadSpec(name="flying_bursty", num_requests=60)
STAY = 75


@pytest.fixture
def venv():
    return SB3VecEnv(make_vector_env("dp_tp", 2, workload=BURSTY))


def test_ends_of_episodes_are_told_as_stable_baselines_expects(venv):
    venv.seed(40)
    observation = venv.reset()
    scalar = make_env("dp_tp", workload=BURSTY)
    scalar.reset(seed=40)
    assert venv.observation_space.contains({key: value[0] for key, value in observation.items()})
    total, length = 0.0, 0
    while True:
        observation, rewards, dones, infos = venv.step(np.array([STAY, STAY]))
        own, reward, *_ = scalar.step(STAY)
        total, length = total + reward, length + 1
        assert rewards.dtype == np.float32
        assert rewards[0] == np.float32(reward)
        if dones[0]:
            break
        assert infos[0] == {"dt": 1.0}
    for key in own:
        np.testing.assert_array_equal(infos[0]["terminal_observation"][key], own[key])
    assert venv.env.episodes[0].state.now_s == 0.0  # the next episode has begun
    assert infos[0]["TimeLimit.truncated"] is False
    assert infos[0]["episode"]["r"] == pytest.approx(total)
    assert infos[0]["episode"]["l"] == length


@pytest.mark.parametrize("goes_on", [False, True])
def test_episodes_that_are_cut_off_are_marked_where_they_would_have_gone_on(goes_on, monkeypatch):
    """At the drain limit nothing follows: requests that are unfinished are charged in the last step."""
    monkeypatch.setattr(DPTPAdapter, "goes_on", goes_on)
    task = Task("dp_tp", {"workload": BURSTY, "drain_limit_s": 0.1}, num_envs=1)
    venv = make_learner(PPOConfig(rollout_steps=8, group_size=1, reward_scale=1.0), task).env
    venv.seed(0)
    venv.reset()
    done = False
    while not done:
        _, _, (done,), (info,) = venv.step(np.array([STAY]))
    assert info["TimeLimit.truncated"] is goes_on


def test_masks_reach_maskable_ppo(venv):
    venv.seed(0)
    venv.reset()
    assert is_masking_supported(venv)
    masks = get_action_masks(venv)
    assert masks.shape == (2, 78)
    np.testing.assert_array_equal(masks, venv.env.action_masks())
    np.testing.assert_array_equal(VecNormalize(venv).env_method("action_masks", indices=[1])[0], masks[1])
    assert not venv.has_attr("no_such_thing")


def test_seeds_count_up_and_hold_for_one_reset(venv):
    venv.seed(9)
    first = {key: value.copy() for key, value in venv.reset().items()}
    starts = [core.simulator.workload.arrival_s[0] for core in venv.env.episodes]
    venv.set_seeds([9, 9])
    venv.reset()
    shared = [core.simulator.workload.arrival_s[0] for core in venv.env.episodes]
    assert starts[0] == shared[0] == shared[1] != starts[1]
    venv.seed(9)
    again = venv.reset()
    for key in first:
        np.testing.assert_array_equal(first[key], again[key])


def test_rewards_are_scaled_and_statistics_are_not():
    plain = SB3VecEnv(make_vector_env("dp_tp", 1, workload=BURSTY))
    scaled = SB3VecEnv(make_vector_env("dp_tp", 1, workload=BURSTY), reward_scale=0.25)
    returns = []
    for venv in (plain, scaled):
        venv.seed(3)
        venv.reset()
        total, done = 0.0, False
        while not done:
            _, (reward,), (done,), (info,) = venv.step(np.array([STAY]))
            total += reward
        returns.append((total, info["episode"]["r"]))
    assert returns[1][0] == pytest.approx(0.25 * returns[0][0], rel=1e-5)
    assert returns[1][1] == returns[0][1]


def test_disturbances_are_possible_actions_that_the_agent_did_not_choose():
    venv = SB3VecEnv(make_vector_env("dp_tp", 2, workload=BURSTY), disturbance=0.5, seed=1)
    venv.seed(0)
    venv.reset()
    layouts = set()
    for _ in range(20):
        venv.step(np.array([STAY, STAY]))
        layouts |= {core.state.target_layout for core in venv.env.episodes}
    assert len(layouts) > 5
    assert all(core.num_refused == 0 for core in venv.env.episodes)


def test_other_kinds_of_autoreset_are_refused():
    env = make_vector_env("dp_tp", 1, workload=BURSTY)
    env.metadata = {}
    with pytest.raises(ValueError, match="same-step"):
        SB3VecEnv(env)
