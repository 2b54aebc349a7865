"""The batched environment is the scalar one, many times."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.registration import ENVS
from serving_gym.envs.workload.registry import WorkloadSpec
from tests.defaults import make_env, make_vector_env

FUNCTIONS = WorkloadSpec(name="functions_fitted", num_requests=40)  # models are asked for by name
BURSTY = WorkloadSpec(name="flying_bursty", num_requests=120)
VARIANTS = {
    "bursty": {"workload": BURSTY},
    "priority": {
        "workload": WorkloadSpec(name="flying_priority", num_requests=40),
        "decide_on": ("priority",),
    },
    "four_engines": {"workload": BURSTY, "cluster": ClusterSpec(num_gpus=4), "faults_per_gpu_hour": 20.0},
}


def choose(masks, rng):
    return np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])


def steps_until_each_ends_twice(batched, rng):
    observation, info = batched.reset(seed=100)
    ended = np.zeros(batched.num_envs, int)
    yield None, (observation, np.zeros(batched.num_envs), None, None, info)
    while ended.min() < 2:
        actions = choose(info["action_mask"], rng)
        step = batched.step(actions)
        info = step[4]
        ended += step[2] | step[3]
        yield actions, step


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_equal_to_the_scalar_environment_step_by_step(variant):
    """Over whole episodes and across their ends, with random possible actions."""
    batched = make_vector_env("dp_tp", 3, **VARIANTS[variant])
    scalars = [make_env("dp_tp", **VARIANTS[variant]) for _ in range(3)]
    for i, env in enumerate(scalars):
        env.reset(seed=100 + i)
    for actions, (observation, rewards, terminated, truncated, infos) in steps_until_each_ends_twice(
        batched, np.random.default_rng(0)
    ):
        for i, env in enumerate(scalars):
            if actions is None:
                own = env.reset(seed=100 + i)[0]
            else:
                own, reward, ends, cut, info = env.step(int(actions[i]))
                assert rewards[i] == reward
                assert (terminated[i], truncated[i]) == (ends, cut)
                final = ends or cut
                assert (infos["final_info"] if final else infos)["dt"][i] == info["dt"]
                if final:
                    for key in own:
                        np.testing.assert_array_equal(infos["final_obs"][i][key], own[key])
                    np.testing.assert_array_equal(infos["final_info"]["action_mask"][i], info["action_mask"])
                    own, info = env.reset()
                np.testing.assert_array_equal(infos["action_mask"][i], env.action_masks())
            for key in own:
                np.testing.assert_array_equal(observation[key][i], own[key])


@pytest.mark.parametrize("entry", ENVS.values(), ids=list(ENVS))
def test_made_from_its_id(entry):
    workload = FUNCTIONS if entry.env_id.startswith("Serving/Sharing") else BURSTY
    batched = gym.make_vec(
        entry.env_id, num_envs=2, vectorization_mode="vector_entry_point", workload=workload
    )
    assert batched.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    observation, info = batched.reset(seed=0)
    assert batched.observation_space.contains(observation)
    space = batched.single_action_space
    entries = space.nvec.sum() if isinstance(space, gym.spaces.MultiDiscrete) else space.n
    assert info["action_mask"].shape == (2, entries)
    batched.action_space.seed(0)
    observation, rewards, terminated, truncated, infos = batched.step(batched.action_space.sample())
    assert batched.observation_space.contains(observation)
    assert rewards.shape == terminated.shape == truncated.shape == infos["dt"].shape == (2,)


def test_gymnasiums_own_vectorisation_agrees():
    """A vector of scalar environments, made by Gymnasium, gives the same numbers while no episode ends."""
    theirs = gym.make_vec(
        "Serving/DPTP-v1",
        num_envs=2,
        vectorization_mode="sync",
        workload=BURSTY,
        cluster=ClusterSpec(),
        decision_interval_s=0.5,
    )
    ours = make_vector_env("dp_tp", 2, workload=BURSTY, decision_interval_s=0.5)
    first, _ = theirs.reset(seed=5)
    second, info = ours.reset(seed=5)
    rng = np.random.default_rng(0)
    for _ in range(30):
        for key in first:
            np.testing.assert_array_equal(first[key], second[key])
        actions = choose(info["action_mask"], rng)
        first, reward, *_ = theirs.step(actions)
        second, own_reward, _, _, info = ours.step(actions)
        np.testing.assert_allclose(reward, own_reward)
    theirs.close()


def test_a_place_stands_still_where_no_episode_follows():
    """The others go on as they would, and a reset begins all anew."""
    plain = make_vector_env("dp_tp", 3, workload=BURSTY)
    batched = make_vector_env("dp_tp", 3, workload=BURSTY, autoreset_mode=AutoresetMode.DISABLED)
    for _ in range(2):
        over, actions = np.zeros(3, bool), np.zeros(3, int)
        plain.reset(seed=[3, 4, 5])
        _, info = batched.reset(seed=[3, 4, 5])
        while not over.all():
            _, rewards, terminated, truncated, _ = plain.step(actions)
            observation, own, ends, cut, info = batched.step(actions)
            np.testing.assert_array_equal(own, np.where(over, 0.0, rewards))
            np.testing.assert_array_equal((ends | cut)[~over], (terminated | truncated)[~over])
            assert (ends | cut)[over].all()
            assert not observation["cluster"][over].any()
            assert [bool(mask.any()) for mask in info["action_mask"]] == [True] * 3
            over |= ends | cut
        with pytest.raises(ResetNeeded, match="ended"):
            batched.step(actions)


def test_places_have_episodes_of_their_own_and_seeds_may_be_shared():
    batched = make_vector_env("dp_tp", 3, workload=BURSTY)
    batched.reset(seed=[7, 7, 8])
    first, second, third = (core.simulator.workload.arrival_s for core in batched.episodes)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, third)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"num_envs": 0}, "num_envs"), ({"num_envs": 1, "render_mode": "ansi"}, "render")],
)
def test_mistakes_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        make_vector_env("dp_tp", **arguments)


def test_seeds_must_match_the_places():
    with pytest.raises(ValueError, match="3 entries"):
        make_vector_env("dp_tp", 3, workload=BURSTY).reset(seed=[1, 2])
