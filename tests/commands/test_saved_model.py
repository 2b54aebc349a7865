"""Models of plain Stable-Baselines3 and sb3-contrib, saved by `model.save()`, as policies."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from sb3_contrib import TQC, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO, SAC

import serving_gym.envs  # noqa: F401 -- registers the environments
from serving_gym.agents.checkpoint import load_policy
from serving_gym.agents.learners.teacher import make_teacher
from serving_gym.agents.policies.saved_model import SavedModelPolicy
from serving_gym.baselines.policy import PolicySpec
from serving_gym.runners import compare
from serving_gym.runners.command_line.cli import USER_ERROR

SMALL = {"policy_kwargs": {"net_arch": [8]}, "device": "cpu", "seed": 0}


class Shown(gym.Env[Any, Any]):
    """Something with the spaces that it is given."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action

    def action_masks(self) -> np.ndarray:
        return np.ones(self.action_space.n, bool)


def saved(
    algorithm: Any, env: gym.Env[Any, Any], path: Path, policy: str = "MultiInputPolicy"
) -> SavedModelPolicy:
    """An untrained model of an algorithm, saved and loaded."""
    algorithm(policy, env, **copy.deepcopy(SMALL)).save(path)  # SAC writes into its keyword arguments
    loaded = load_policy(path)
    assert isinstance(loaded, SavedModelPolicy)
    return loaded


@pytest.fixture(scope="module")
def dp_tp() -> gym.Env[Any, Any]:
    env = gym.make("Serving/DPTP-v1", disable_env_checker=True)
    env.reset(seed=0)
    return env


def spec_of(env: gym.Env[Any, Any]) -> PolicySpec:
    core: Any = env.unwrapped
    return core.policy_spec


@pytest.mark.parametrize("algorithm", [PPO, A2C, DQN, MaskablePPO])
def test_it_decides_as_the_model_itself(algorithm: Any, dp_tp: gym.Env[Any, Any], tmp_path: Path) -> None:
    policy = saved(algorithm, dp_tp, tmp_path / "model.zip")
    policy.check_spaces(dp_tp.observation_space, dp_tp.action_space)
    core: Any = dp_tp.unwrapped
    observation, masks = core.core.observe(), core.action_masks()
    policy.reset(spec_of(dp_tp), 0)
    action = policy.act(observation, core.state)
    extra = {"action_masks": masks} if algorithm is MaskablePPO else {}
    expected, _ = algorithm.load(tmp_path / "model.zip").predict(observation, deterministic=True, **extra)
    assert isinstance(action, int)
    assert action == int(expected)
    assert pickle.loads(pickle.dumps(policy)).name == policy.name
    assert copy.deepcopy(policy).act(observation, core.state) == action


def test_a_mask_keeps_it_from_what_is_impossible(dp_tp: gym.Env[Any, Any], tmp_path: Path) -> None:
    policy = saved(MaskablePPO, dp_tp, tmp_path / "model.zip")
    policy.reset(spec_of(dp_tp), 0)
    core: Any = dp_tp.unwrapped
    free = policy.act(core.core.observe(), core.state)
    masks = np.ones(core.action_space.n, bool)
    masks[free] = False
    policy._adapter.mask = lambda *_: masks
    assert policy.act(core.core.observe(), core.state) != free


def test_a_recurrent_model_remembers_within_an_episode(dp_tp: gym.Env[Any, Any], tmp_path: Path) -> None:
    policy = saved(RecurrentPPO, dp_tp, tmp_path / "model.zip", "MultiInputLstmPolicy")
    core: Any = dp_tp.unwrapped
    policy.reset(spec_of(dp_tp), 0)
    policy.act(core.core.observe(), core.state)
    first = policy._memory[0].copy()
    policy.act(core.core.observe(), core.state)
    assert not np.array_equal(policy._memory[0], first)
    policy.reset(spec_of(dp_tp), 0)
    policy.act(core.core.observe(), core.state)
    assert np.array_equal(policy._memory[0], first)


@pytest.mark.parametrize("algorithm", [SAC, TQC])
def test_continuous_actions(algorithm: Any, dp_tp: gym.Env[Any, Any], tmp_path: Path) -> None:
    env = Shown(dp_tp.observation_space, spaces.Box(-1.0, 1.0, (3,), np.float32))
    policy = saved(algorithm, env, tmp_path / "model.zip")
    policy.reset(spec_of(dp_tp), 0)
    core: Any = dp_tp.unwrapped
    assert policy.act(core.core.observe(), core.state).shape == (3,)
    with pytest.raises(ValueError, match=r"the action space Box\(3,\); the environment has Discrete"):
        policy.check_spaces(dp_tp.observation_space, dp_tp.action_space)


def test_in_a_comparison_and_as_what_learners_look_up_to(
    dp_tp: gym.Env[Any, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(PPO, dp_tp, tmp_path / "model.zip")
    words = ["workload.num_requests=40", "seeds=1", "plots=false", "out=out"]
    assert compare.main([*words, "env=dp_tp", "policies=[static_dp,model.zip]"]) == 0
    assert "model.zip" in json.loads((tmp_path / "out" / "comparison.json").read_text())["learned"]
    assert make_teacher({"name": "checkpoint", "path": "model.zip"}, "agent.start").name == "model.zip"
    capsys.readouterr()
    assert compare.main([*words, "env=routing", "policies=[jsq,model.zip]"]) == USER_ERROR
    assert "'model.zip' was trained with the observation space Dict(cluster" in capsys.readouterr().err
    (tmp_path / "text.zip").write_text("nothing")
    assert compare.main([*words, "env=routing", "policies=[jsq,text.zip]"]) == USER_ERROR
    assert "'text.zip' cannot be read as a saved model" in capsys.readouterr().err


def test_an_observation_of_another_shape_is_named(dp_tp: gym.Env[Any, Any], tmp_path: Path) -> None:
    policy = saved(PPO, dp_tp, tmp_path / "model.zip")
    policy.reset(spec_of(dp_tp), 0)
    with pytest.raises(ValueError, match="the environment shows"):
        policy.act({"cluster": np.zeros(3, np.float32)}, None)
