"""Episodes of `runners.rollouts`: heuristics leave observations uncomputed, and nothing else changes."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

import serving_gym
from serving_gym.envs.base.lazy_observation import LazyObservation
from serving_gym.runners.rollouts.rollout import run_episode

DAY = {"experiment": "autoscaling_day", "env.episode_s": 7200.0}


class Reader:
    """A policy from outside the package that acts as another and keeps what it was shown."""

    name, clairvoyant = "reader", False

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.shown: list[Any] = []

    def reset(self, spec: Any, seed: int) -> None:
        self.inner.reset(spec, seed)

    def act(self, observation: Any, state: Any) -> Any:
        self.shown.append(observation)
        return self.inner.act(observation, state)


@pytest.fixture(scope="module")
def env() -> Any:
    made = gymnasium.make("Serving/Autoscaling-v1", **DAY).unwrapped
    yield made
    made.close()


def test_observations_are_computed_for_policies_from_outside_and_left_for_baselines(env, monkeypatch):
    computed = []
    observe = type(env.core).observe
    monkeypatch.setattr(type(env.core), "observe", lambda core: computed.append(1) or observe(core))
    policy = serving_gym.load_policy("hpa_kv")
    lazy = run_episode(env, policy, 3)
    assert not computed
    reader = Reader(serving_gym.load_policy("hpa_kv"))
    run_episode(env, reader, 3)
    assert len(computed) >= len(reader.shown) > 20
    assert all(isinstance(shown, dict) for shown in reader.shown)
    assert not env.observes_lazily
    assert lazy.metrics["return"] != 0.0


def test_a_lazy_observation_is_the_one_of_its_decision(env):
    spaces = env.observation_space
    env.observes_lazily = True
    try:
        env.reset(seed=5)
        for _ in range(4):
            observation, *_ = env.step(env.action_space.sample(mask=None) * 0)
            assert isinstance(observation, LazyObservation)
            assert spaces.contains(dict(observation))
            expected = env.core.observe()
            assert all((observation[key] == expected[key]).all() for key in expected)
    finally:
        env.observes_lazily = False


FROM_FILE = """
class Mine:
    name, clairvoyant = "mine", False

    def reset(self, spec, seed):
        pass

    def act(self, observation, state):
        assert type(observation) is dict
        raise KeyError("where")
"""


def test_a_policy_from_a_file_is_one_from_outside(env, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FROM_FILE)
    with pytest.raises(ValueError, match=r"policy mine failed: KeyError: 'where' \(mine.py, line 10\)"):
        run_episode(env, serving_gym.load_policy(f"{path}:Mine"), 3)
