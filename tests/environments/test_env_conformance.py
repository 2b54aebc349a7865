"""Every registered environment through Gymnasium's and Stable-Baselines3's checkers, and through our own rules."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from serving_gym.envs.dp_tp.action import num_actions
from serving_gym.envs.dp_tp.observation import CLASS_FEATURES, CLUSTER_FEATURES, ENGINE_FEATURES
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.commands import SetLayout, SwitchMode
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.registration import ENVS, env_config_class, env_names
from serving_gym.envs.workload.registry import WorkloadSpec
from tests.defaults import make_env

BURSTY = WorkloadSpec(name="flying_bursty", num_requests=200)
VARIANTS: dict[str, dict[str, Any]] = {
    "bursty": {"workload": BURSTY},
    "priority": {
        "workload": WorkloadSpec(name="flying_priority", num_requests=80),
        "decide_on": ("priority",),
    },
    "long": {"workload": WorkloadSpec(name="flying_long", num_requests=60)},
    "fitted": {"workload": WorkloadSpec(name="azure_conv_fitted", num_requests=150)},
    "two_engines": {"workload": BURSTY, "cluster": ClusterSpec(num_gpus=2)},
    "wide_engines": {"workload": BURSTY, "cluster": ClusterSpec(model="llama-3-70b", base_width=2)},
    "sharded": {"workload": BURSTY, "cluster": ClusterSpec(weights="sharded")},
    "faults": {"workload": BURSTY, "faults_per_gpu_hour": 20.0, "drain_limit_s": 30.0},
}


@pytest.fixture(params=sorted(VARIANTS))
def env(request):
    return make_env("dp_tp", **VARIANTS[request.param])


def masked_action(env, rng) -> int:
    return int(rng.choice(np.flatnonzero(env.unwrapped.action_masks())))


def play(env, seed: int, choose, most: int = 10_000):
    """An episode; yields (observation, reward, terminated, truncated, info)."""
    observation, info = env.reset(seed=seed)
    yield observation, 0.0, False, False, info
    for _ in range(most):
        step = env.step(choose(env))
        yield step
        if step[2] or step[3]:
            return
    raise AssertionError("the episode does not end")


@pytest.mark.parametrize("name", env_names())
def test_gymnasium_checker(name):
    env = gym.make(ENVS[name].env_id, disable_env_checker=True).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*render_mode.*")
        check_env(env, skip_render_check=False)


@pytest.mark.parametrize("name", env_names())
def test_stable_baselines_checker(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*unconventional shape.*")  # a matrix that is no image
        sb3_check_env(make_env(name))


@pytest.mark.parametrize("name", env_names())
def test_can_be_made_from_its_id_with_and_without_wrappers(name):
    wrapped = gym.make(ENVS[name].env_id)
    observation, _ = wrapped.reset(seed=0)
    assert wrapped.observation_space.contains(observation)
    assert isinstance(wrapped.unwrapped.config, env_config_class(name))


def test_spaces_have_the_documented_shapes(env):
    num_base = env.config.cluster.num_base
    classes = len(env.policy_spec.classes)
    assert env.observation_space["engines"].shape == (num_base, len(ENGINE_FEATURES))
    assert env.observation_space["cluster"].shape == (len(CLUSTER_FEATURES) + classes * len(CLASS_FEATURES),)
    assert env.action_space.n == num_actions(num_base)


def test_a_whole_episode_keeps_every_promise(env):
    """Bounds, finite rewards, constant info keys, terms that add up, time that passes, an end."""
    rng = np.random.default_rng(0)
    keys, terms, last, total_dt = None, None, None, 0.0
    objective = env.config.objective
    for step, (observation, reward, terminated, truncated, info) in enumerate(
        play(env, 3, lambda e: masked_action(e, rng))
    ):
        assert env.observation_space.contains(observation), f"step {step}"
        assert np.isfinite(reward)
        assert type(reward) is float
        keys = keys or set(info)
        assert set(info) == keys
        assert info["action_mask"].dtype == bool
        assert info["action_mask"].shape == (env.action_space.n,)
        assert info["action_mask"].any()
        if step:
            terms = terms or set(info["reward_terms"])
            assert set(info["reward_terms"]) == terms
            weighted = sum(
                getattr(objective, name.partition("/")[0]) * value
                for name, value in info["reward_terms"].items()
            )
            assert reward == pytest.approx(objective.scale * weighted, abs=1e-9)
            assert 0 < info["dt"] <= env.config.decision_interval_s + 1e-9
            assert info["refused"] == ""
            total_dt += info["dt"]
        last = (terminated, truncated)
    assert last in ((True, False), (False, True))
    assert env.state.now_s == pytest.approx(total_dt)
    records = env.records()
    assert len(records.to_frame()) == len(env.core.simulator.workload)


def test_an_episode_over_refuses_further_steps():
    env = make_env("dp_tp", workload=WorkloadSpec(name="flying_bursty", num_requests=5))
    for _ in play(env, 0, lambda e: None):
        pass
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(0)


def test_the_drain_limit_cuts_an_episode_off_and_counts_what_is_left():
    slow = {"num_gpus": 2, "max_num_seqs": 1}
    env = make_env("dp_tp", workload=BURSTY, cluster=ClusterSpec(**slow), drain_limit_s=2.5)
    *_, (_, reward, terminated, truncated, info) = play(env, 0, lambda e: None)
    assert (terminated, truncated) == (False, True)
    assert info["reward_terms"]["abandoned"] < 0
    assert reward < -env.config.objective.scale * env.config.objective.abandoned
    assert info["dt"] == pytest.approx(info["dt"])
    assert env.state.now_s == pytest.approx(env.core.simulator.workload.arrival_s[-1] + 2.5)


def test_same_seed_same_episode_whatever_came_before(env):
    def log(seed):
        rng = np.random.default_rng(5)
        return [
            (observation["engines"].copy(), observation["cluster"].copy(), reward, info["dt"])
            for observation, reward, _, _, info in play(env, seed, lambda e: masked_action(e, rng))
        ]

    first, other, again = log(11), log(12), log(11)
    assert len(first) == len(again)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])
        assert a[2:] == b[2:]
    assert [row[2] for row in first] != [row[2] for row in other]


def test_a_policy_does_not_change_the_arrivals():
    env = make_env("dp_tp", workload=BURSTY)
    rng = np.random.default_rng(0)
    frames = []
    for choose in (lambda e: None, lambda e: masked_action(e, rng)):
        for _ in play(env, 2, choose):
            pass
        frames.append(env.records().to_frame()[["arrival_s", "input_tokens"]])
    assert frames[0].equals(frames[1])


def test_a_reset_without_a_seed_goes_on_with_the_stream():
    env = make_env("dp_tp", workload=BURSTY)
    env.reset(seed=4)
    first = [env.core.simulator.workload.arrival_s.copy() for _ in range(2) if env.reset()]
    env.reset(seed=4)
    again = [env.core.simulator.workload.arrival_s.copy() for _ in range(2) if env.reset()]
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.array_equal(first[0], first[1])


def test_environment_and_records_can_be_pickled(env):
    rng = np.random.default_rng(1)
    env.reset(seed=6)
    for _ in range(10):
        if env.core.done:
            break
        env.step(masked_action(env, rng))
    copy = pickle.loads(pickle.dumps(env))
    assert pickle.loads(pickle.dumps(env.records())).to_frame().equals(env.records().to_frame())
    for _ in range(10):
        if env.core.done:
            break
        action = masked_action(env, rng)
        ours, theirs = env.step(action), copy.step(action)
        np.testing.assert_array_equal(ours[0]["engines"], theirs[0]["engines"])
        assert ours[1:4] == theirs[1:4]


def test_a_fork_goes_on_to_the_same_numbers_and_leaves_the_original_alone(env):
    rng = np.random.default_rng(2)
    env.reset(seed=7)
    for _ in range(8):
        env.step(masked_action(env, rng))
    fork, untouched = env.fork(), env.fork()
    for _ in range(12):
        if env.core.done:
            break
        fork.step(masked_action(fork, rng))
        fork = fork.fork()
        action = masked_action(env, rng)
        ours, theirs = env.step(action), untouched.step(action)
        np.testing.assert_array_equal(ours[0]["engines"], theirs[0]["engines"])
        np.testing.assert_array_equal(ours[0]["cluster"], theirs[0]["cluster"])
        assert ours[1:4] == theirs[1:4]
        assert ours[4]["reward_terms"] == theirs[4]["reward_terms"]
    assert env.records().to_frame().equals(untouched.records().to_frame())


def test_reward_terms_are_reported_whatever_their_weight():
    workload = {"workload": BURSTY}
    plain = make_env("dp_tp", **workload)
    other = make_env(
        "dp_tp",
        **workload,
        objective=Objective(latency=0.0, ttft_attainment=0.0, tpot_attainment=0.0, goodput=2.0, scale=1.0),
    )
    good = 0.0
    pairs = zip(play(plain, 1, lambda e: None), play(other, 1, lambda e: None), strict=True)
    for (_, _, _, _, ours), (_, reward, _, _, theirs) in pairs:
        assert ours["reward_terms"] == theirs["reward_terms"]
        good += reward
    assert good > 0


def test_decisions_are_asked_for_by_the_classes_named():
    env = make_env("dp_tp", **VARIANTS["priority"])
    steps = list(play(env, 0, lambda e: None))
    intervals = [info["dt"] for *_, info in steps[1:]]
    assert min(intervals) < env.config.decision_interval_s / 2
    assert max(intervals) == pytest.approx(env.config.decision_interval_s)
    arrivals = env.core.simulator.workload
    assert len(steps) > arrivals.arrival_s[-1] / env.config.decision_interval_s


def test_a_command_is_as_good_as_an_index():
    by_index, by_command = make_env("dp_tp", workload=BURSTY), make_env("dp_tp", workload=BURSTY)
    by_index.reset(seed=0)
    by_command.reset(seed=0)
    for _ in range(20):
        ours, theirs = by_index.step(2), by_command.step(SetLayout((8,), SwitchMode.HARD))
        assert ours[1] == theirs[1]
        np.testing.assert_array_equal(ours[0]["engines"], theirs[0]["engines"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"decision_interval_s": 0.0}, "decision_interval_s"),
        ({"drain_limit_s": -1.0}, "drain_limit_s"),
        ({"faults_per_gpu_hour": -0.1}, "faults_per_gpu_hour"),
        ({"workload": WorkloadSpec(name="flying_bursti")}, "flying_bursty"),
        ({"slos": {}}, "standard"),
    ],
)
def test_mistakes_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        make_env("dp_tp", **{"workload": BURSTY, **arguments})


def test_unknown_render_modes_are_refused():
    with pytest.raises(ValueError, match="render_mode"):
        make_env("dp_tp", render_mode="video", workload=BURSTY)


def test_unknown_environments_are_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="dp_tp"):
        make_env("dptp")
