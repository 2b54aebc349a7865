"""What Gymnasium promises of an environment, held by all five, scalar and vector, in the same words."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from serving_gym.envs.registration import ENVS, env_names, make_env, make_vector_env
from tests.environments.cases import CASES, NAMES, entries, possible

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]
KEYS = {"dt", "reward_terms", "refused", "num_refused", "action_mask"}


def test_every_environment_has_a_case():
    assert sorted(env_names()) == NAMES


@pytest.fixture(params=NAMES)
def name(request) -> str:
    return request.param


def scalar(name: str, **more: Any) -> Any:
    return make_env(name, **CASES[name], **more)


def vector(name: str, num_envs: int = 2, **more: Any) -> Any:
    return make_vector_env(name, num_envs, **CASES[name], **more)


def first_action(space: Any) -> Any:
    return np.zeros(len(space.nvec), np.int64) if hasattr(space, "nvec") else 0


# -- checkers ----------------------------------------------------------------------------------------------------------


def test_both_checkers_pass(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*render_mode.*|.*unconventional shape.*")
        env = scalar(name)
        env.spec = gym.spec(ENVS[name].env_id)
        check_env(env, skip_render_check=True)
        sb3_check_env(scalar(name))


# -- actions -----------------------------------------------------------------------------------------------------------


def test_integers_of_every_kind_are_the_same_action(name):
    env = scalar(name)
    plain = first_action(env.action_space)
    kinds = [plain, np.asarray(plain), np.asarray(plain, np.uint8), np.asarray(plain, np.int32)]
    if np.isscalar(plain):
        kinds += [np.int16(plain), np.array(plain)[()]]
    rewards = []
    for action in kinds:
        env.reset(seed=3)
        rewards.append(env.step(action)[1])
    assert len(set(rewards)) == 1


def bad_actions(space: Any) -> list[Any]:
    plain = first_action(space)
    bad: list[Any] = ["0", np.nan, 1.5, True, np.True_, -1, [[0]], object(), np.array([0, 1, 0, 1, 0, 1, 0])]
    if np.isscalar(plain):
        return [*bad, space.n, np.array([0]), np.int64(-1), 2**40]
    return [
        *bad,
        plain - 1,
        space.nvec,
        plain.astype(float),
        plain.astype(bool),
        np.full(len(plain), np.nan),
        plain[:-1],
        0,
    ]


def test_what_is_no_action_is_refused_by_value_and_changes_nothing(name):
    env = scalar(name)
    env.reset(seed=0)
    before = env.state.now_s
    for action in bad_actions(env.action_space):
        with pytest.raises(ValueError, match=r"^action must be .*integers? from 0 to .*, got "):
            env.step(action)
    assert env.state.now_s == before
    env.step(first_action(env.action_space))
    env.step(None) if not env.core.done else None


def test_what_are_no_actions_is_refused_by_the_vector(name):
    env = vector(name)
    env.reset(seed=0)
    plain = np.stack([first_action(env.single_action_space)] * 2)
    bad = [
        plain[:1],
        np.concatenate([plain, plain[:1]]),
        plain.astype(float),
        plain.astype(bool),
        np.full(plain.shape, np.nan),
        plain.astype(str),
        plain - 1,
        plain + max(entries(env.single_action_space)),
        plain[..., None],
        None,
    ]
    for actions in bad:
        with pytest.raises(
            ValueError, match=r"^actions must have the shape \(2.*integers? from 0 to .*, got "
        ):
            env.step(actions)
    env.step(plain.tolist())


# -- order of calls ----------------------------------------------------------------------------------------------------


def test_step_render_and_masks_need_a_reset(name):
    env = scalar(name, render_mode="ansi")
    action = first_action(env.action_space)
    with pytest.raises(ResetNeeded, match=r"Cannot call env.step\(\) before calling env.reset\(\)"):
        env.step(action)
    with pytest.raises(ResetNeeded, match=r"Cannot call env.render\(\) before calling env.reset\(\)"):
        env.render()
    with pytest.raises(ResetNeeded, match=r"env.reset\(\)"):
        env.state  # noqa: B018
    many = vector(name)
    with pytest.raises(ResetNeeded, match=r"Cannot call env.step\(\) before calling env.reset\(\)"):
        many.step(np.stack([action] * 2))
    with pytest.raises(ResetNeeded, match=r"env.reset\(\)"):
        many.action_masks()


def test_a_step_after_the_end_needs_a_reset(name):
    env = scalar(name)
    rng = np.random.default_rng(0)
    _, info = env.reset(seed=0)
    over = False
    while not over:
        *_, terminated, truncated, info = env.step(possible(env.action_space, info["action_mask"], rng))
        over = terminated or truncated
    with pytest.raises(ResetNeeded, match=r"after the episode has ended; call env.reset\(\)"):
        env.step(first_action(env.action_space))
    env.reset(seed=1)
    env.step(first_action(env.action_space))


def test_rendering(name):
    env = scalar(name)
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="without specifying any render mode"):
        assert env.render() is None
    with pytest.raises(
        ValueError, match="render_mode must be one of 'human', 'ansi', 'rgb_array', None, got 'svg'"
    ):
        scalar(name, render_mode="svg")
    with pytest.raises(ValueError, match="render_mode must be None in a vector environment, got 'rgb_array'"):
        vector(name, render_mode="rgb_array")


# -- reset -------------------------------------------------------------------------------------------------------------


def test_reset_options(name):
    for env in (scalar(name), vector(name)):
        with pytest.raises(ValueError, match="unknown reset option 'splt'; did you mean 'split'"):
            env.reset(seed=0, options={"splt": "test"})
        with pytest.raises(ValueError, match=r"options\['split'\].*'tset'.*'test'"):
            env.reset(seed=0, options={"split": "tset"})
        first = env.reset(seed=0)[0]
        other = env.reset(seed=0, options={"split": "test"})[0]
        again = env.reset(seed=0, options={})[0]
        for key in first:
            np.testing.assert_array_equal(first[key], again[key])
        assert env.observation_space.contains(other)


# -- vectors -----------------------------------------------------------------------------------------------------------


def lists(name: str, theirs: SyncVectorEnv, ours: Any, steps: int):
    """Both vectors under the same actions: pairs of (observation, reward, terminated, truncated, list of infos)."""
    theirs_, ours_ = DictInfoToList(theirs), DictInfoToList(ours)
    rng = np.random.default_rng(0)
    seen, infos = ours_.reset(seed=5)
    yield (*theirs_.reset(seed=5),), (seen, infos)
    for step in range(steps):
        masks = [info["action_mask"] for info in infos]
        if step % 5 == 4:  # some that are not possible too
            masks = [np.ones_like(mask) for mask in masks]
        actions = np.array([possible(ours.single_action_space, mask, rng) for mask in masks])
        pair = theirs_.step(actions), ours_.step(actions)
        infos = pair[1][-1]
        yield pair


def assert_equal(theirs: Any, ours: Any) -> None:
    if isinstance(theirs, dict):
        assert set(theirs) == set(ours)
        for key in theirs:
            assert_equal(theirs[key], ours[key])
    elif isinstance(theirs, (list, tuple)):
        assert len(theirs) == len(ours)
        for one, other in zip(theirs, ours, strict=True):
            assert_equal(one, other)
    else:
        np.testing.assert_array_equal(theirs, ours)


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("mode", MODES)
def test_the_vector_is_gymnasiums_vector_of_scalar_ones(name, mode, limit):
    """Observations, rewards, ends and infos, over ends of episodes, with and without `max_episode_steps`."""

    def one() -> Any:
        env = scalar(name, **({"keep_records": False} if name == "autoscaling" else {}))
        return env if limit is None else gym.wrappers.TimeLimit(env, limit)

    theirs = SyncVectorEnv([one] * 2, autoreset_mode=mode)
    ours = vector(name, autoreset_mode=mode, max_episode_steps=limit)
    assert ours.metadata["autoreset_mode"] is mode
    assert ours.single_observation_space == theirs.single_observation_space
    ended = 0
    for number, (expected, got) in enumerate(lists(name, theirs, ours, 12 if limit else 80)):
        if number and (got[2] | got[3]).any():
            ended += 1
            for i in np.flatnonzero(got[2] | got[3]) if mode is AutoresetMode.SAME_STEP else []:
                statistics = got[-1][i]["final_info"].pop("episode")
                assert set(statistics) == {"r", "l", "t"}
        assert set(got[-1][0]) >= KEYS
        assert_equal(expected[-1], got[-1])
        assert_equal(expected[:-1], got[:-1])
        if ended == 3:
            return
    assert ended, "no episode has ended"


def test_statistics_of_an_episode(name):
    env = vector(name, num_envs=2)
    rng = np.random.default_rng(1)
    _, infos = env.reset(seed=0)
    returns, lengths, times = np.zeros(2), np.zeros(2, int), np.zeros(2)
    while "final_info" not in infos:
        actions = np.array([possible(env.single_action_space, mask, rng) for mask in infos["action_mask"]])
        _, rewards, _, _, infos = env.step(actions)
        returns += rewards
        lengths += 1
        final = infos.get("final_info", {}).get("dt", np.zeros(2))
        times += infos["dt"] + final
    episode, ended = infos["final_info"]["episode"], infos["_final_info"]
    np.testing.assert_allclose(episode["r"][ended], returns[ended])
    np.testing.assert_array_equal(episode["l"][ended], lengths[ended])
    np.testing.assert_allclose(episode["t"][ended], times[ended])
    assert not episode["l"][~ended].any()


def test_autoreset_disabled(name):
    """An episode that has ended stays as it is until it is reset; the others go on."""
    env = vector(name, num_envs=2, autoreset_mode="DISABLED", max_episode_steps=2)
    actions = np.stack([first_action(env.single_action_space)] * 2)
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    with pytest.raises(ResetNeeded, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([True, False])})
    env.reset(seed=0)
    env.step(actions)
    env.step(actions)
    with pytest.raises(ResetNeeded, match="ended"):
        env.step(actions)
    _, info = env.reset(seed=7, options={"reset_mask": np.array([False, True])})
    assert info["_dt"].tolist() == [False, True]
    _, rewards, terminated, truncated, info = env.step(actions)
    assert rewards[0] == info["dt"][0] == 0.0
    assert (terminated | truncated)[0]
    assert not truncated[1]
    fresh = vector(name, num_envs=2)
    fresh.reset(seed=7)
    assert fresh.step(actions)[1][1] == rewards[1]
    with pytest.raises(ValueError, match="reset_mask"):
        env.reset(options={"reset_mask": [True]})


def test_mistakes_in_a_vector_are_named(name):
    for arguments, words in (
        ({"autoreset_mode": "LATER"}, "autoreset_mode must be one of NEXT_STEP, SAME_STEP, DISABLED"),
        ({"max_episode_steps": 0}, "max_episode_steps must be at least 1"),
        ({"num_envs": 0}, "num_envs must be at least 1"),
    ):
        with pytest.raises(ValueError, match=words):
            vector(name, **arguments)
    env = vector(name)
    with pytest.raises(ValueError, match="seed must have 2 entries, got 1"):
        env.reset(seed=[1])


def test_made_by_gymnasium(name):
    make = partial(gym.make_vec, ENVS[name].env_id, num_envs=2, **CASES[name])
    env = make(autoreset_mode=AutoresetMode.NEXT_STEP, max_episode_steps=1)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    env.reset(seed=0)
    assert env.step(np.stack([first_action(env.single_action_space)] * 2))[3].all()
    with pytest.raises(gym.error.Error, match="wrappers"):
        make(wrappers=[gym.wrappers.FlattenObservation])
    theirs = make(vectorization_mode="sync", wrappers=[gym.wrappers.FlattenObservation])
    assert theirs.reset(seed=0)[0].shape[0] == 2
