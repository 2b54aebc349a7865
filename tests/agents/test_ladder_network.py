"""A ladder of layouts, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serving_gym.agents.config import CMAESConfig
from serving_gym.agents.environments.dp_tp.ladder_network import INPUTS, LadderNetwork, ladder_inputs
from serving_gym.agents.learners.learner import Budget, make_learner
from serving_gym.agents.learners.search_learner import SearchLearner
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.base.vector_env import MAX_SEED
from serving_gym.envs.dp_tp.action import decode_action
from serving_gym.envs.dp_tp.observation import CLASS_FEATURES, CLUSTER_FEATURES, ENGINE_FEATURES
from serving_gym.envs.interface.layout import all_layouts, groups_of
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import Task, make_env

BURSTY = WorkloadSpec(name="flying_bursty", num_requests=60)


@pytest.fixture(scope="module")
def env():
    return make_env("dp_tp", workload=BURSTY)


def network_of(env, *rows, bands=(0.0, 0.0, 0.0)):
    """Weights of the three thresholds by name, and how far below each the narrower layout is kept."""
    network = LadderNetwork(env.observation_space)
    with torch.no_grad():
        network.weights.copy_(torch.tensor([[row.get(name, 0.0) for name in INPUTS] for row in rows]))
        network.bands.copy_(torch.tensor(bands))
    return network


def seen(layout, engines=(), **cluster):
    """A batch of one, in a layout, with figures of the cluster and of single base engines."""
    observation = {
        "cluster": torch.zeros(1, len(CLUSTER_FEATURES) + 2 * len(CLASS_FEATURES)),
        "engines": torch.zeros(1, 8, len(ENGINE_FEATURES)),
    }
    for name, value in cluster.items():
        observation["cluster"][0, CLUSTER_FEATURES.index(name)] = value
    for base, name, value in engines:
        observation["engines"][0, base, ENGINE_FEATURES.index(name)] = value
    for group in groups_of(layout):
        for member in group.members:
            column = ENGINE_FEATURES.index("target_width")
            observation["engines"][0, member, column] = np.log2(group.length) / 3
    return observation


def chosen(network, observation):
    command = decode_action(int(network(observation)[0, :, 0].argmax()), 8)
    return command.layout, command.mode.name


def test_what_thresholds_depend_on_by_hand():
    engines = [(0, "prefill_backlog_s", 1.0), (5, "prefill_backlog_s", 2.0), (3, "kv_usage", 0.5)]
    observation = seen(
        (4, 2, 1, 1),
        engines,
        num_in_flight=np.log(4.0),  # 24 requests
        request_rate_now=np.log(10.5),  # 19 a second
        request_rate_short=np.log(5.5),  # 9
        request_rate_long=np.log(5.0),  # 8
        token_rate_short=np.log(4.5),  # 7000 tokens
        token_rate_long=np.log(5.1),  # 8200
    )
    cluster = observation["cluster"]
    for column, value in zip(range(-6, 0), (np.log(4.0), 0.25, 0.0, np.log(2.0), 0.0, 0.125), strict=True):
        cluster[0, column] = value
    engines = observation["engines"][0].numpy()
    inputs = ladder_inputs(cluster[0].numpy(), engines)
    expected = {
        "one": 1.0,
        "in_flight": 0.0,
        "growth": np.log(2.0),
        "rate_short": np.log(0.5),
        "rate_long": np.log(0.45),
        "prompt_short": np.log(7.2 / 9.2),
        "prompt_long": np.log(8.4 / 8.2),
        "kv_usage": 0.5,
        "prefill_backlog_s": 2.0,
        "ttft_misses": 0.25,
        "tpot_misses": 0.125,
        "stay": 0.75,
        "context_tokens": 0.0,
        "other_classes": 0.25,
    }
    assert dict(zip(INPUTS, inputs, strict=True)) == pytest.approx(expected, abs=1e-5)
    cluster[0, -6:] = cluster[0, -6:].reshape(2, 3).flip(0).flatten()  # classes in the other order
    np.testing.assert_allclose(ladder_inputs(cluster[0].numpy(), engines), inputs)


@pytest.mark.parametrize(
    ("thresholds", "present", "expected"),
    [
        ((-1.0, -1.0, -1.0), (8,), ((8,), "SEQUENTIAL")),
        ((-1.0, -1.0, -1.0), (4, 4), ((8,), "SOFT")),  # nobody is made to wait
        ((1.0, -1.0, -1.0), (4, 4), ((4, 4), "SEQUENTIAL")),
        ((1.0, 1.0, -1.0), (4, 4), ((2, 2, 2, 2), "HARD")),
        ((1.0, 1.0, 1.0), (4, 4), ((1,) * 8, "HARD")),
        ((1.0, -0.4, -1.0), (2, 2, 2, 2), ((2, 2, 2, 2), "SEQUENTIAL")),  # inside the band
        ((1.0, -0.6, -1.0), (2, 2, 2, 2), ((4, 4), "SOFT")),
        ((1.0, -0.4, -1.0), (4, 4), ((4, 4), "SEQUENTIAL")),  # the band keeps what is there, no more
        ((-1.0, -1.0, -0.4), (1,) * 8, ((4, 4), "SOFT")),  # one threshold passed, whichever
        ((1.0, -1.0, -1.0), (4, 2, 2), ((4, 4), "SOFT")),
    ],
)
def test_as_many_rungs_down_as_thresholds_are_passed(env, thresholds, present, expected):
    network = network_of(env, *({"one": value} for value in thresholds), bands=(0.5, 0.5, 0.5))
    assert chosen(network, seen(present, request_rate_long=1.0)) == expected


def test_before_any_request_came_no_band_counts(env):
    network = network_of(env, {"one": 1.0}, {"one": -0.4}, {"one": -1.0}, bands=(0.5, 0.5, 0.5))
    assert chosen(network, seen((2, 2, 2, 2))) == ((4, 4), "SOFT")


def test_where_a_switch_is_not_possible_all_stays_as_it_is(env):
    network = network_of(env, {"one": 1.0}, {"one": 1.0}, {"one": -1.0})
    scores = network(seen((8,)))[0, :, 0].detach().numpy().copy()
    actions = np.arange(len(scores)).reshape(-1, 3)
    scores[actions[all_layouts(8).index((2, 2, 2, 2))]] = -np.inf
    assert decode_action(int(scores.argmax()), 8).layout == (8,)


def test_untrained_it_serves_nearly_as_what_a_practitioner_would_write():
    env = make_env("dp_tp", workload=WorkloadSpec(name="flying_bursty", num_requests=300, rate_scale=4.0))
    learner = make_learner(
        CMAESConfig(population=4, episodes=2), Task("dp_tp", {"workload": BURSTY}, num_envs=2)
    )
    heuristic = make_policy(
        "load_threshold",
        layouts=["2x4", "4x2"],
        threshold_requests_per_gpu=3.0,
        hysteresis_ratio=0.4,
        dwell_s=0.0,
        mode="soft",
        split_mode="hard",
    )
    ours, theirs = (
        np.array([run_episode(env, policy, seed).metrics["return"] for seed in range(4)])
        for policy in (learner.policy(), heuristic)
    )
    np.testing.assert_allclose(ours, theirs, rtol=0.03)


def test_it_may_be_searched_and_serves_other_classes_too(env):
    task = Task("dp_tp", {"workload": BURSTY}, num_envs=2)
    learner = make_learner(CMAESConfig(population=4, episodes=2), task)
    learner.improve(Budget(200))
    policy = learner.policy()
    other = make_env("dp_tp", workload=WorkloadSpec(name="flying_priority", num_requests=30))
    assert other.observation_space["cluster"].shape != env.observation_space["cluster"].shape
    observation, _ = other.reset(seed=0)
    policy.reset(other.policy_spec, 0)
    assert other.action_masks()[policy.act(observation, other.state)]


@pytest.mark.parametrize("clip", [None, 0.001])
def test_returns_may_count_as_shares_of_a_policys(clip):
    """Each episode of a candidate over what the reference returns on it, or no further from that than is counted."""
    task = Task("dp_tp", {"workload": BURSTY}, num_envs=2)
    config = CMAESConfig(population=4, episodes=2, sigma=1e-9, reference="static_tp", clip=clip)
    learner = make_learner(config, task)
    assert isinstance(learner, SearchLearner)
    seen = []
    learner.search.tell = lambda tried, returns: seen.extend(returns)
    seeds = np.random.default_rng(0)
    learner.rng = np.random.default_rng(0)
    learner.improve(Budget(200))
    drawn = seeds.integers(MAX_SEED, size=2).tolist()
    stage = learner.stage
    ours, theirs = stage.returns(learner.policy(), drawn), stage.returns(make_policy("static_tp"), drawn)
    shares = ours / np.abs(theirs)
    assert np.abs(shares + 1.0).min() > 0.001
    if clip is not None:
        shares = np.clip(shares, -1.0 - clip, -1.0 + clip)
    np.testing.assert_allclose(seen, shares.mean(), rtol=1e-6)


def test_only_shares_can_be_clipped():
    with pytest.raises(ValueError, match=r"agent\.clip needs agent\.reference or agent\.relative=true"):
        CMAESConfig(clip=0.1)
    with pytest.raises(ValueError, match=r"agent\.clip must be positive, got 0"):
        CMAESConfig(clip=0.0, relative=True)
