"""The batched routing environment is the scalar one, many times."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from tests.defaults import make_env, make_vector_env
from tests.environments.routing.test_env import VARIANTS


def choose(masks, rng):
    return np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_equal_to_the_scalar_environment_step_by_step(variant):
    """Over whole episodes and across their ends, with random possible actions."""
    batched = make_vector_env("routing", 3, **VARIANTS[variant])
    scalars = [make_env("routing", **VARIANTS[variant]) for _ in range(3)]
    rng = np.random.default_rng(0)
    observation, infos = batched.reset(seed=100)
    for i, env in enumerate(scalars):
        own, _ = env.reset(seed=100 + i)
        for key in own:
            np.testing.assert_array_equal(observation[key][i], own[key])
    ended = np.zeros(3, int)
    while ended.min() < 2:
        actions = choose(infos["action_mask"], rng)
        observation, rewards, terminated, truncated, infos = batched.step(actions)
        for i, env in enumerate(scalars):
            own, reward, ends, cut, info = env.step(int(actions[i]))
            assert rewards[i] == reward
            assert (terminated[i], truncated[i]) == (ends, cut)
            final = ends or cut
            assert (infos["final_info"] if final else infos)["dt"][i] == info["dt"]
            if final:
                ended[i] += 1
                for key in own:
                    np.testing.assert_array_equal(infos["final_obs"][i][key], own[key])
                np.testing.assert_array_equal(infos["final_info"]["action_mask"][i], info["action_mask"])
                own, info = env.reset()
            np.testing.assert_array_equal(infos["action_mask"][i], env.action_masks())
            for key in own:
                np.testing.assert_array_equal(observation[key][i], own[key])


def test_bad_widths_and_seeds_are_refused():
    with pytest.raises(ValueError, match="num_envs"):
        make_vector_env("routing", 0, **VARIANTS["mixed"])
    with pytest.raises(ValueError, match="seed"):
        make_vector_env("routing", 2, **VARIANTS["mixed"]).reset(seed=[1])


def test_actions_of_another_number_and_steps_before_the_first_episode_are_refused():
    batched = make_vector_env("routing", 2, **VARIANTS["mixed"])
    with pytest.raises(ResetNeeded, match="reset"):
        batched.step(np.zeros(2, np.int64))
    batched.reset(seed=0)
    with pytest.raises(ValueError, match="shape"):
        batched.step(np.zeros(3, np.int64))
