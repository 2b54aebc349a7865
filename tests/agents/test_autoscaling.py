"""Agents of the autoscaling environment: what a baseline says as numbers, a network's policy, a copy of a baseline."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serving_gym.agents.config import CMAESConfig, NetworkConfig, PPOConfig
from serving_gym.agents.environments.adapter import adapter_of
from serving_gym.agents.environments.autoscaling.counterfactuals import AutoscalingCounterfactuals
from serving_gym.agents.environments.autoscaling.features import (
    ACTION_FEATURES,
    STATE_SIZE,
    encode_actions,
    encode_state,
    options,
)
from serving_gym.agents.environments.autoscaling.target_network import BAND_INPUTS, INPUTS, TargetNetwork
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import Batch
from serving_gym.agents.learners.api.learner import APILearner
from serving_gym.agents.learners.learner import Budget, make_learner
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.autoscaling.action import MACHINE
from serving_gym.envs.autoscaling.observation import ENDPOINT_FEATURES
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.comparison.clairvoyant import ClairvoyantSearchPolicy
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import Task, make_env
from tests.environments.autoscaling.samples import ONE, REGIONS

SHORT = {"episode_s": 1800.0}


@pytest.fixture(scope="module")
def env():
    return make_env("autoscaling", **SHORT)


def test_numbers_stand_for_what_an_autoscaler_says(env):
    """Its changes, cut to what is possible, and nothing for an autoscaler that changes nothing."""
    adapter, policy = adapter_of("autoscaling"), make_policy("queue_proportional")
    observation, info = env.reset(seed=0)
    policy.reset(env.policy_spec, 0)
    done, changed = False, 0
    while not done:
        mask = adapter.mask(observation, env.state, env.policy_spec)
        np.testing.assert_array_equal(mask, info["action_mask"])
        said = policy.act(observation, env.state)
        numbers = adapter.index_of(said, env.state, mask, env.policy_spec)
        assert env.action_space.contains(numbers)
        still = adapter.index_of(None, env.state, mask, env.policy_spec)
        changed += not np.array_equal(numbers, still)
        observation, _, terminated, truncated, info = env.step(numbers)
        done = terminated or truncated
    assert changed


@pytest.mark.parametrize("name", ["maskable_ppo"])
def test_a_learner_trains_and_its_policy_runs(env, name):
    network = NetworkConfig(row_width=8, hidden_widths=(16,))
    config = PPOConfig(rollout_steps=4, batch_size=8, epochs=1, group_size=2, network=network)
    learner = make_learner(config, Task("autoscaling", SHORT, num_envs=2))
    budget = Budget(16)
    while not budget.over:
        learner.improve(budget)
    episode = run_episode(env, learner.policy(), 1)
    assert episode.metrics["commands_refused"] == 0
    assert np.isfinite(episode.metrics["return"])


# -- agent=api ---------------------------------------------------------------------------------------------------------

API = APIConfig(horizon=3, sample_every=1, candidates=6, hidden=16, iterations=1, epochs=40, exploration=0.3)
QUIET = {  # one instance is plenty, and one is the fewest
    **ONE,
    "workload": WorkloadSpec("sageserve_tiers", params={"mean_rps": 0.2, "start_h": 14.0}),
    "min_instances": 1,
}


def test_it_learns_that_instances_without_work_cost_money():
    learner = APILearner(API, Task("autoscaling", QUIET))
    budget = Budget(1500)
    while not budget.over:
        learner.improve(budget)
    env = make_env("autoscaling", **QUIET, split="test")
    learned = run_episode(env, learner.policy(), 0)
    assert len(env.state.endpoints[0].present) == 1
    assert learned.metrics["return"] > run_episode(env, make_policy("fixed_instances"), 0).metrics["return"]


def test_what_may_be_done_at_an_endpoint():
    """Changes that are possible, from either kind of machine, at every level; nothing is nothing from anywhere."""
    env = make_env("autoscaling", **REGIONS)
    observation, info = env.reset(seed=0)
    (changes, _, levels), ends = env.action_space.nvec[:3], env.action_space.nvec[:3].sum()
    for endpoint, rows in enumerate(options(info["action_mask"], env.action_space)):
        possible = info["action_mask"][endpoint * ends :][:changes]
        assert len(rows) == (2 * possible.sum() - 1) * levels
        assert possible[rows[:, 0]].all()
        assert len(np.unique(rows, axis=0)) == len(rows)
        assert encode_state(observation, endpoint).shape == (STATE_SIZE,)
        features = encode_actions(observation, endpoint, rows, env.action_space)
        assert features.shape == (len(rows), len(ACTION_FEATURES))
        after = np.rint(2.0 * np.expm1(features[:, ACTION_FEATURES.index("after")]))
        present = len(env.state.endpoints[endpoint].present)
        np.testing.assert_array_equal(after, present + rows[:, 0] - changes // 2)


def test_a_rollout_leaves_the_episode_alone_and_charges_what_waits_in_line():
    world = AutoscalingCounterfactuals(API, Task("autoscaling", ONE), np.random.default_rng(0))
    world.core.reset(3)
    hold = world.core.levers.nothing(world.core.simulator)
    hold[2] = 0  # nothing but what is overdue leaves the line
    before, twin = world.core.simulator.now_s, world.core.fork()
    value = world._rollout(hold)
    assert world.core.simulator.now_s == before
    rewards = sum(twin.step(hold if step == 0 else None).reward for step in range(API.horizon))
    assert twin.standing_reward < 0
    assert value == pytest.approx(rewards + twin.standing_reward)


def test_staying_and_what_the_present_policy_does_are_always_compared():
    world = AutoscalingCounterfactuals(API, Task("autoscaling", REGIONS), np.random.default_rng(0))
    batch, budget = Batch(), Budget(10_000)
    for _ in range(3):
        world.play(budget, batch)
    for actions, returns, chosen in zip(batch.actions, batch.returns, batch.chosen, strict=True):
        assert len(actions) == len(returns) <= API.candidates
        assert not actions[chosen, : ACTION_FEATURES.index("level")].any()  # at first the policy is to stay


def test_a_policy_of_other_levers_is_refused(env):
    world = AutoscalingCounterfactuals(API, Task("autoscaling", ONE), np.random.default_rng(0))
    adapter = adapter_of("autoscaling")
    network = adapter.score_network(world.observation, API)
    policy = adapter.score_policy(network, world.observation, world.action, API, "mine")
    policy.reset(env.policy_spec, 0)
    other = make_env("autoscaling", **SHORT, max_change=3)
    with pytest.raises(ValueError, match=r"env\.max_change"):
        policy.reset(other.policy_spec, 0)


# -- the number that is wanted -----------------------------------------------------------------------------------------


def target_network(env, weights, bands):
    """A network with these weights by name, and of the bands upwards and downwards, whether loads are calm or not."""
    network = TargetNetwork(env.action_space)
    with torch.no_grad():
        network.weights.copy_(torch.tensor([weights.get(name, 0.0) for name in INPUTS]))
        network.bands.copy_(torch.tensor([bands.get(name, (0.0, 0.0)) for name in BAND_INPUTS]))
    return network


def endpoint_row(**features):
    """(1, 1, F), one endpoint of which this is seen."""
    row = torch.zeros(1, 1, len(ENDPOINT_FEATURES))
    for name, value in features.items():
        row[0, 0, ENDPOINT_FEATURES.index(name)] = value
    return row


def test_what_is_wanted_by_hand(env):
    """Half an instance, 0.4 x 2 by the last interval, 0.3 as usual, a root of 2, KV of 0.75 instances, and so on."""
    names = ("one", "load_interval", "usual", "root", "busy", "running_requests", "late")
    network = target_network(
        env, dict(zip(names, (0.5, 0.4, 0.3, 0.1, 0.2, 0.1, 0.2), strict=True)), {"one": (0.5, 1.0)}
    )
    row = endpoint_row(
        load_interval=np.log(3.0),
        usual=np.log(2.0),
        running=np.log1p(3 / 2),
        kv_usage=0.25,
        running_requests=np.log(2.0),
        late=0.1,
    )
    expected = 0.5 + 0.8 + 0.3 + 0.1 * np.sqrt(2.0) + 0.2 * 0.75 + 0.1 + 0.2
    for weights in network.weights:
        assert (network.inputs(row) @ weights).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("slowness", "times"), [(0.7, 1.0), (1.0, 1.0), (1.12, 1.0), (1.16, 1.08), (1.2, 1.2), (1.5, 1.5)]
)
def test_loads_are_as_much_more_as_engines_are_slower(env, slowness, times):
    """What may be noise does not count, and half of it in between."""
    network = target_network(env, {"load_interval": 0.5, "root": 0.1}, {})
    row = endpoint_row(load_interval=np.log(3.0), slowness=slowness)
    expected = 0.5 * 2.0 * times + 0.1 * np.sqrt(2.0 * times)
    assert (network.inputs(row) @ network.weights[0]).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("unrest", "change"), [(0.0, 0), (0.16, 0), (0.21, 1), (0.26, 2), (9.0, 2)])
def test_calm_and_restless_loads_have_numbers_of_their_own(env, unrest, change):
    """Of three instances three are wanted while loads are calm and five while they are not, with all between."""
    network = target_network(env, {}, {})
    with torch.no_grad():
        network.weights[:, INPUTS.index("one")] = torch.tensor([3.0, 5.0])
        network.bands[1, BAND_INPUTS.index("one"), 0] = 0.4  # none while calm
    row = endpoint_row(running=np.log1p(3 / 2), release_level=0.5, unrest=unrest)
    scores = network({"endpoints": row}).reshape(-1)[: env.action_space.nvec[0]]
    assert int(scores.argmax()) - env.action_space.nvec[0] // 2 == change


@pytest.mark.parametrize(
    ("wanted", "change"), [(3.4, 0), (3.6, 1), (4.4, 1), (4.6, 2), (9.0, 2), (2.1, 0), (1.9, -1), (0.9, -2)]
)
def test_instances_come_and_go_beyond_the_bands(env, wanted, change):
    """Of three, one of which starts, with half an instance to spare upwards and a whole one downwards."""
    network = target_network(env, {"one": wanted}, {"one": (0.5, 1.0)})
    row = endpoint_row(running=np.log1p(2 / 2), starting=np.log1p(1 / 2), release_level=0.5)
    changes, ways, levels = env.action_space.nvec[:3]
    scores = network({"endpoints": row})[0, :, 0].detach().numpy()
    assert len(scores) == changes + ways + levels
    assert scores[:changes].argmax() - changes // 2 == change
    assert scores[changes : changes + ways].argmax() == MACHINE
    assert scores[changes + ways :].argmax() == 1  # the level stays


@pytest.mark.parametrize(("wanted", "change"), [(5.7, 1), (5.5, 0), (3.0, 0), (2.0, -1)])
def test_bands_grow_with_the_load(env, wanted, change):
    """Of four, under a load of three: 0.1 + 0.5 x 3 = 1.6 upwards, 0.5 x 3 = 1.5 downwards; none is below nothing."""
    row = endpoint_row(running=np.log1p(4 / 2), load_interval=np.log(4.0))
    bands = {"one": (0.1, 0.0), "load_interval": (0.5, 0.5)}
    changes = env.action_space.nvec[0]

    def change_by(bands, wanted):
        network = target_network(env, {"one": wanted}, bands)
        return int(network({"endpoints": row})[0, :changes, 0].argmax()) - changes // 2

    assert change_by(bands, wanted) == change
    assert change_by({"one": (-5.0, 9.0)}, 4.5) == 1


@pytest.mark.full
def test_a_search_learns_that_instances_without_work_cost_money():
    config = CMAESConfig(episodes=1, population=6, sigma=0.5, diagonal=False)
    learner = make_learner(config, Task("autoscaling", QUIET))
    learner.search._strategy.mean[0] = 2.5  # instances that are wanted whatever comes
    env = make_env("autoscaling", **QUIET, split="test")
    first = run_episode(env, learner.policy(), 0).metrics["return"]
    budget = Budget(200)
    while not budget.over:
        learner.improve(budget)
    assert run_episode(env, learner.policy(), 0).metrics["return"] > first


def test_returns_count_in_shares_of_the_first_parameters(monkeypatch):
    """Days that cost 10 and 100 with the first parameters: 20 % off the first weigh as much as 20 % off the second."""
    learner = make_learner(CMAESConfig(episodes=2, population=4, relative=True), Task("autoscaling", QUIET))
    plays = iter([[-8.0, -100.0], [-10.0, -80.0], [-10.0, -100.0], [-5.0, -50.0], [-10.0, -100.0]])
    monkeypatch.setattr(learner.stage, "returns", lambda policy, seeds: np.array(next(plays)))
    told = []
    monkeypatch.setattr(learner.search, "tell", lambda tried, returns: told.extend(returns))
    learner.improve(Budget(1000))
    np.testing.assert_allclose(told, [-0.9, -0.9, -1.0, -0.5])


def test_a_network_of_other_levers_or_endpoints_is_refused(env):
    learner = make_learner(CMAESConfig(episodes=1, population=4), Task("autoscaling", QUIET))
    policy = learner.policy()
    policy.reset(make_env("autoscaling", **QUIET).policy_spec, 0)
    with pytest.raises(ValueError, match=r"env\.max_change"):
        policy.reset(make_env("autoscaling", **QUIET, max_change=3).policy_spec, 0)
    with pytest.raises(ValueError, match="1 endpoints, here there are 4"):
        policy.reset(make_env("autoscaling", **REGIONS).policy_spec, 0)


def test_the_clairvoyant_search_decides_about_levers_and_gains():
    env = make_env("autoscaling", **QUIET, split="test")
    searching = ClairvoyantSearchPolicy(env, "autoscaling", None, horizon=6, candidates=12)
    plain = run_episode(env, make_policy("fixed_instances"), 1).metrics["return"]
    assert run_episode(env, searching, 1).metrics["return"] > plain
