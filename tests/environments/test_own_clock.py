"""Policies that are asked at a period of their own."""

import gymnasium
import numpy as np
import pytest

from serving_gym.baselines.policy import period_of
from serving_gym.baselines.registry import make_policy
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env
from tests.environments.deployment.samples import BASE

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


@pytest.mark.parametrize("period_s", [0.7, 7.0, 20.0, 50.0])
def test_the_period_does_not_change_what_deployment_counts(period_s):
    env = make_env("deployment", **{**BASE, "profiling": "closed_form"})
    usual, own = make_policy("stay"), make_policy("stay")
    own.period_s = period_s
    usually = run_episode(env, usual, 1)
    often = run_episode(env, own, 1)
    steps = np.diff(times(often))
    assert np.allclose(steps, period_s)
    assert np.allclose(np.diff(times(usually)), BASE["span_s"])

    def total(episode, term):
        return sum(decision["reward_terms"][term] for decision in episode.decisions)

    for term in ("p99", "throughput", "switch"):
        assert total(often, term) == pytest.approx(total(usually, term), rel=1e-9)
    assert total(usually, "p99") < 0


def test_a_fork_within_a_span_has_the_same_percentile():
    env = make_env("deployment", **{**BASE, "profiling": "closed_form"})
    env.reset(seed=1)
    env.ask_every(0.4 * BASE["span_s"])
    for _ in range(4):
        env.step(None)
    copy = env.fork()
    assert [env.step(None)[1] for _ in range(4)] == [copy.step(None)[1] for _ in range(4)]


@pytest.mark.parametrize("name", ["Routing", "Sharing"])
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
