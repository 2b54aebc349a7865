"""Policies that are asked at a period of their own."""

import gymnasium
import numpy as np
import pytest

from serving_gym.baselines.policy import period_of
from serving_gym.baselines.registry import make_policy
from serving_gym.runners.rollouts.rollout import run_episode

SHORT = {"episode_s": 1800.0, "history_s": 86_400.0, "decision_interval_s": 300.0}


@pytest.fixture(scope="module")
def env():
    return gymnasium.make("Serving/Autoscaling-v1", **SHORT)


def times(episode):
    return np.array([decision["now_s"] for decision in episode.decisions])


def test_a_policy_is_asked_at_its_own_period_and_the_next_one_at_the_environment_s(env):
    own = run_episode(env, make_policy("hpa_waiting"), 0)
    assert np.allclose(np.diff(times(own)), 15.0)
    assert len(own.decisions) == 120
    usual = run_episode(env, make_policy("fixed_instances"), 0)
    assert np.allclose(np.diff(times(usual)), 300.0)


def test_the_period_does_not_change_what_is_counted(env):
    class Idle:
        name, clairvoyant, period_s = "idle", False, None

        def reset(self, spec, seed):
            self.spec = spec

        def act(self, observation, state):
            return None

    often, seldom = Idle(), Idle()
    often.period_s = 7.0
    returns = [run_episode(env, policy, 1).metrics["return"] for policy in (often, seldom)]
    assert returns[0] == pytest.approx(returns[1], rel=1e-9)
    assert often.spec.decision_interval_s == often.spec.setting.decision_interval_s == 7.0
    assert seldom.spec.decision_interval_s == seldom.spec.setting.decision_interval_s == 300.0


@pytest.mark.parametrize("name", ["Routing", "Sharing", "Deployment"])
def test_without_a_clock_a_period_is_refused(name):
    core = gymnasium.make(f"Serving/{name}-v1").unwrapped
    core.ask_every(None)
    with pytest.raises(ValueError, match=r"asked every 15 s; decisions of .* do not follow a clock"):
        core.ask_every(15.0)


def test_a_period_must_be_positive():
    with pytest.raises(ValueError, match="period_s must be positive, got 0"):
        gymnasium.make("Serving/DPTP-v1").unwrapped.ask_every(0.0)


def test_dp_tp_asks_at_a_period():
    policy = make_policy("static_dp")
    policy.period_s = 0.25
    assert period_of(policy) == 0.25
    env = gymnasium.make("Serving/DPTP-v1")
    episode = run_episode(env, policy, 0)
    assert np.median(np.diff(times(episode))) == pytest.approx(0.25)
