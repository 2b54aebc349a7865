"""How wide engines should be, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agents.config import CMAESConfig
from agents.dp_tp.width_network import INPUTS, WidthNetwork
from agents.learner import Budget, Task, make_learner
from agents.search_learner import SearchLearner
from baselines.registry import make_policy
from envs.dp_tp.action import decode_action
from envs.dp_tp.observation import CLASS_FEATURES, CLUSTER_FEATURES, ENGINE_FEATURES
from envs.layout import groups_of
from envs.registration import make_env
from envs.side_by_side import MAX_SEED
from envs.workload.registry import WorkloadSpec

BURSTY = WorkloadSpec(name="flying_bursty", num_requests=60)


@pytest.fixture(scope="module")
def env():
    return make_env("dp_tp", workload=BURSTY)


def network_of(env, weights, bands=(0.5, 0.5), mixed=1.0):
    network = WidthNetwork(env.observation_space)
    with torch.no_grad():
        network.weights.copy_(torch.tensor([weights.get(name, 0.0) for name in INPUTS]))
        network.bands.copy_(torch.tensor(bands))
        network.mixed.fill_(mixed)
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


def test_what_is_wanted_by_hand(env):
    names = ("one", "token_rate_now", "num_in_flight", "prefill_backlog_s", "tpot_misses_short", "stay")
    network = network_of(env, dict(zip(names, (2.5, -0.5, 0.25, -0.125, -1.0, 0.5), strict=True)))
    engines = [(0, "prefill_backlog_s", 1.0), (5, "prefill_backlog_s", 2.0)]
    observation = seen((4, 2, 1, 1), engines, token_rate_now=1.0, num_in_flight=np.log(4.0))
    observation["cluster"][0, CLUSTER_FEATURES.index("request_rate_long")] = np.log(
        5.0
    )  # 8 a second, 24 in flight
    observation["cluster"][0, -1] = 0.125  # of the last class
    (inputs, present), _ = network.encode(observation)
    assert network.wanted(inputs).item() == pytest.approx(
        2.5 - 0.5 + 0.25 * np.log(4.0) - 0.25 - 0.125 + 0.5 * 0.75
    )
    assert present[0].tolist() == [2, 2, 2, 2, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("wanted", "present", "expected"),
    [
        (9.0, (8,), ((8,), "SEQUENTIAL")),
        (3.0, (4, 4), ((8,), "SOFT")),  # nobody is made to wait
        (2.4, (4, 4), ((4, 4), "SEQUENTIAL")),
        (2.8, (4, 4), ((8,), "SOFT")),  # more than half a halving, and the nearest
        (1.2, (4, 4), ((2, 2, 2, 2), "HARD")),
        (-5.0, (4, 4), ((1,) * 8, "HARD")),
        (2.0, (2, 2, 2, 2), ((4, 4), "SOFT")),
    ],
)
def test_the_nearest_layout_that_is_far_enough_from_the_present_one(env, wanted, present, expected):
    assert chosen(network_of(env, {"one": wanted}), seen(present)) == expected


def test_layouts_that_mix_widths_are_taken_where_that_costs_little(env):
    layout, _ = chosen(network_of(env, {"one": 1.5}, bands=(0.0, 0.0), mixed=0.1), seen((8,)))
    assert sorted(layout) == [2, 2, 4]


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


def test_returns_may_count_as_shares_of_a_policys():
    """Each episode of a candidate over what the reference returns on it."""
    task = Task("dp_tp", {"workload": BURSTY}, num_envs=2)
    config = CMAESConfig(population=4, episodes=2, sigma=1e-9, reference="static_tp")
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
    np.testing.assert_allclose(seen, (ours / np.abs(theirs)).mean(), rtol=1e-6)
