"""Agents on the routing environment: sets of places, rollouts of one fork a place, checkpoints for any fleet."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serving_gym.agents.checkpoint import load_policy, replacing, write_description
from serving_gym.agents.config import DQNConfig, NetworkConfig, PPOConfig
from serving_gym.agents.environments.routing.adapter import RoutingAdapter
from serving_gym.agents.environments.routing.larger import as_of_larger
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import Batch
from serving_gym.agents.learners.api.learner import APILearner, steepness
from serving_gym.agents.learners.factory import make_policy_network
from serving_gym.agents.learners.learner import Budget, make_learner
from serving_gym.agents.networks.set_network import SetNetwork
from serving_gym.agents.policies.network_policy import NetworkPolicy, place_scores
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.routing import batch as batch
from serving_gym.envs.simulator.kernel.features import CLUSTER_FEATURES, PLACE_FEATURES
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.rollouts.rollout import episode_returns, run_episode
from tests.defaults import Task, make_env, make_vector_env
from tests.tiers import full_except

IN_SERVICE = RoutingAdapter.present
SLOW = GroupSpec(ReplicaSpec("llama-3.1-8b", "A100-80GB"), 1)
FAST = GroupSpec(ReplicaSpec("llama-3.1-8b", "H100", tp_size=2), 1)
UNEQUAL = FleetConfig(groups=(SLOW, FAST))
LIGHT = {
    "workload": WorkloadSpec(name="azure_conv_fitted", num_requests=80, rate_scale=2.0),
    "cluster": UNEQUAL,
}
SMALL = NetworkConfig(row_width=8, hidden_widths=(16,))
CONFIGS = {
    "maskable_ppo": PPOConfig(rollout_steps=8, batch_size=8, epochs=1, group_size=2, network=SMALL),
    "ppo": PPOConfig(name="ppo", rollout_steps=8, batch_size=8, epochs=1, network=SMALL),
    "dqn": DQNConfig(buffer_size=500, warm_up_steps=8, batch_size=8, network=SMALL),
    "api": APIConfig(iterations=1, horizon=5, sample_every=1, epochs=2, hidden=8),
}


def random_fleet(rng, number, rows, context=20, features=20):
    places = rng.random((number, rows, features)).astype(np.float32)
    places[:, :, IN_SERVICE] = 1.0
    return rng.random((number, context)).astype(np.float32), places


@pytest.fixture
def network():
    torch.manual_seed(0)
    return SetNetwork(20, 20, 8, (16, 12), IN_SERVICE)


def all_scores(network, context, places):
    with torch.no_grad():
        encoded = network.encode(torch.from_numpy(context), torch.from_numpy(places))
        return network.all_scores(*encoded).squeeze(2).numpy()


def test_permuting_the_places_permutes_the_scores(network):
    rng = np.random.default_rng(0)
    context, places = random_fleet(rng, 3, 6)
    order = rng.permutation(6)
    scores, permuted = (all_scores(network, context, rows) for rows in (places, places[:, order]))
    np.testing.assert_allclose(permuted[:, :6], scores[:, order], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(permuted[:, 6], scores[:, 6], rtol=1e-5, atol=1e-6)
    assert np.ptp(scores[:, :6], axis=1).min() > 1e-3


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_it_runs_without_torch_for_any_number_of_places(network, rows):
    context, places = random_fleet(np.random.default_rng(1), 2, rows)
    places[0, rows // 2, IN_SERVICE] = 0.0
    expected, scorer = all_scores(network, context, places), network.export()
    np.testing.assert_allclose(scorer.scores(context, places, hold=True), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        scorer.scores(context, places, hold=False), expected[:, :rows], rtol=1e-4, atol=1e-5
    )


def test_rows_without_a_place_change_nothing(network):
    context, places = random_fleet(np.random.default_rng(2), 2, 3)
    padded = np.concatenate([places, np.zeros((2, 5, 20), np.float32)], axis=1)
    scores, with_padding = (all_scores(network, context, rows) for rows in (places, padded))
    np.testing.assert_allclose(with_padding[:, [0, 1, 2, 8]], scores, rtol=1e-5, atol=1e-6)


def direct_network():
    torch.manual_seed(0)
    return SetNetwork(20, 20, 8, (16,), IN_SERVICE, direct=True)


def test_a_network_can_begin_as_a_weighted_sum():
    network, weights = direct_network(), np.linspace(-1.0, 1.0, 20, dtype=np.float32)
    context, places = random_fleet(np.random.default_rng(5), 2, 4)
    network.lean_on(weights)
    with torch.no_grad():
        scores = network(torch.from_numpy(context), torch.from_numpy(places)).numpy()
    np.testing.assert_allclose(scores, places @ weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(network.export().scores(context, places, hold=False), scores, rtol=1e-5)


def test_a_network_adopts_what_decides_in_the_kernel_if_it_is_as_wide():
    context, places = random_fleet(np.random.default_rng(6), 2, 4)
    known = direct_network()
    with torch.no_grad():
        known.direct.copy_(torch.linspace(-1.0, 1.0, 20))
    torch.manual_seed(1)
    new, wider = (SetNetwork(20, 20, width, (16,), IN_SERVICE, direct=True) for width in (8, 9))
    before = wider.row.weight.clone()
    for network in (new, wider):
        network.adopt(known.export().in_kernel())
    scores = [each.export().scores(context, places, hold=False) for each in (known, new)]
    np.testing.assert_allclose(np.diff(scores[1]), np.diff(scores[0]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(wider.row.weight, before)


def test_a_feature_that_is_disregarded_counts_only_in_the_sum():
    torch.manual_seed(0)
    network, plain = direct_network(), SetNetwork(20, 20, 8, (16,), IN_SERVICE)
    context, places = random_fleet(np.random.default_rng(7), 2, 4)
    seen_context, seen_places = context.copy(), places.copy()
    seen_context[:, 3] += 2.0
    seen_places[:, :, 5] += 2.0
    for each, hold in ((network, False), (plain, True)):
        score = each.export().scores
        assert not np.allclose(score(seen_context, places, hold), score(context, places, hold))
        assert not np.allclose(score(context, seen_places, hold), score(context, places, hold))
        each.disregard(np.array([3]), np.array([5]))
        score = each.export().scores
        np.testing.assert_array_equal(score(seen_context, seen_places, hold), score(context, places, hold))
    network.lean_on(np.ones(20, np.float32))
    score = network.export().scores
    np.testing.assert_allclose(
        score(context, seen_places, False), score(context, places, False) + 2.0, rtol=1e-5
    )


def test_weights_from_before_there_was_a_sum_have_one_of_zeros():
    network, weights = direct_network(), direct_network().state_dict()
    del weights["direct"]
    network.lean_on(np.ones(20, np.float32))
    network.load_state_dict(weights)
    assert not network.direct.any()
    with pytest.raises(RuntimeError, match=r"score_row\.weight"):
        network.load_state_dict({})


def test_a_sum_is_as_steep_as_explains_the_gains():
    scores = np.array([[1.0, 3.0, 99.0], [0.0, 4.0, 8.0]])
    valid = np.array([[True, True, False], [True, True, True]])
    assert steepness(scores, 0.5 * scores + 7.0, valid) == pytest.approx(0.5)
    assert steepness(scores, -scores, valid) == 0.0, "never turned round"
    assert steepness(np.ones((2, 3)), scores, valid) == 0.0


def test_the_first_network_of_a_router_begins_as_the_sum_it_starts_from():
    """Trained for no more than a step, it still decides like it; by itself it does not."""
    env = make_env("routing", **LIGHT)
    start = make_policy("linear_score")
    expected = [run_episode(env, start, seed, "start").metrics["return"] for seed in range(3)]
    config = APIConfig(iterations=1, horizon=5, sample_every=1, epochs=1, hidden=8, learning_rate=1e-9)
    learner = make_learner(config, Task("routing", LIGHT, num_envs=2))
    budget = Budget(64)
    while not budget.over:
        learner.improve(budget)
    policy = learner.policy()
    assert [run_episode(env, policy, seed, "api").metrics["return"] for seed in range(3)] == expected
    learner.network.direct.data.zero_()
    assert [
        run_episode(env, learner.policy(), seed, "api").metrics["return"] for seed in range(3)
    ] != expected


def test_what_was_never_seen_in_training_weighs_nothing():
    """Gauges are fresh, nothing is held and nobody shares a prefix: by chance such a feature would decide one day."""
    config = APIConfig(iterations=1, horizon=5, sample_every=1, epochs=1, hidden=8)
    learner, budget = make_learner(config, Task("routing", LIGHT, num_envs=2)), Budget(64)
    while not budget.over:
        learner.improve(budget)
    network, first = learner.network, learner.network.row_context.in_features - len(CLUSTER_FEATURES)
    for name in ("gauge_age_s", "held"):
        column = first + CLUSTER_FEATURES.index(name)
        assert not network.row_context.weight[:, column].any()
        assert not network.score_pool.weight[:, 2 * 8 + column].any()
    assert not network.row_place.weight[:, PLACE_FEATURES.index("prefix_hit")].any()
    for name in ("requests_long", "unsent_tokens"):
        assert network.row_context.weight[:, first + CLUSTER_FEATURES.index(name)].all()
    assert network.row_place.weight[:, PLACE_FEATURES.index("in_flight")].all()


def test_time_for_the_last_network_is_put_by_and_what_is_left_of_it_trains_no_other(monkeypatch):
    config = APIConfig(iterations=2, horizon=5, sample_every=1, epochs=1, hidden=8)
    learner, budget = make_learner(config, Task("routing", LIGHT, num_envs=2)), Budget(8000)
    train, began = learner._train, []

    def slowly():
        began.append(budget.progress)
        budget.steps += 800  # as if training took a tenth of all time
        return train()

    monkeypatch.setattr(learner, "_train", slowly)
    while not budget.over:
        learner.improve(budget)
    assert began == pytest.approx([0.475, 0.9], abs=0.05)
    assert learner.iteration == 2


@pytest.mark.parametrize("warm", [False, True])
def test_networks_go_on_from_the_last_one_or_begin_anew(warm):
    config = APIConfig(
        iterations=2, horizon=5, sample_every=1, epochs=1, hidden=8, learning_rate=1e-9, warm=warm
    )
    learner, budget, seen = make_learner(config, Task("routing", LIGHT, num_envs=2)), Budget(4000), []
    while not budget.over:
        learner.improve(budget)
        if learner.iteration > len(seen):
            seen.append(learner.network.row.weight.detach().clone())
    assert len(seen) == 2
    assert torch.allclose(*seen, atol=1e-6) == warm


def test_masks_are_respected(network):
    env = make_env("routing", **LIGHT)
    seen_in_training = env.observation_space, env.action_space
    context, places = random_fleet(np.random.default_rng(3), 40, 5)
    seen = {"request": context[:, :9], "cluster": context[:, 9:], "places": places}
    masks = np.random.default_rng(4).random((40, 6)) < 0.4
    masks[:, -1] = True
    scorer = network.export()
    scores = place_scores(scorer, ("request", "cluster"))
    never_holds = NetworkPolicy(scores, RoutingAdapter(), "x", *seen_in_training)
    holds = NetworkPolicy(
        lambda seen: scorer.scores(context, seen["places"], hold=True),
        RoutingAdapter(),
        "y",
        *seen_in_training,
    )
    for policy in (never_holds, holds):
        chosen = policy.act_batch(seen, masks)
        assert masks[np.arange(40), chosen].all()
        if policy is never_holds:
            np.testing.assert_array_equal(chosen == 5, ~masks[:, :5].any(axis=1))


def test_an_untrained_actor_seldom_holds_and_values_the_pool():
    env = make_env("routing", **LIGHT)
    torch.manual_seed(0)
    config = PPOConfig(network=SMALL)
    network = make_policy_network(config, RoutingAdapter(), env.observation_space, env.action_space)
    observation, _ = env.reset(seed=0)
    batch = {key: torch.as_tensor(value)[None] for key, value in observation.items()}
    probabilities = network.get_distribution(batch).distribution.probs[0]
    assert probabilities[-1] < 0.05
    assert probabilities[0].item() == pytest.approx(probabilities[1].item(), abs=0.02)
    turned = {**batch, "places": batch["places"].flip(1)}
    torch.testing.assert_close(network.predict_values(batch), network.predict_values(turned))


def test_discounts_are_about_the_mean_time_between_arrivals():
    adapter = RoutingAdapter()
    assert adapter.interval_s(LIGHT) == pytest.approx(1.0 / 11.0, rel=0.05)  # twice 5.5 requests/s
    faster = {"workload": WorkloadSpec(name="azure_conv_fitted", rate_rps=50.0)}
    assert adapter.interval_s(faster) == pytest.approx(0.02)


def trained(name, steps=64):
    learner = make_learner(CONFIGS[name], Task("routing", LIGHT, num_envs=2))
    budget = Budget(steps)
    while not budget.over:
        learner.improve(budget)
    return learner


def save(learner, folder):
    env = make_env("routing", **LIGHT)
    settings = {"agent": learner.config, "env": {"name": "routing"}, "workload": LIGHT["workload"]}
    with replacing(folder) as fresh:
        learner.save_policy(fresh)
        learner.save_training(fresh)
        write_description(fresh, settings, env.observation_space, env.action_space, {})
    return folder


@pytest.mark.parametrize("name", full_except(sorted(CONFIGS), "api", "dqn"))
def test_round_trip_and_another_number_of_places(name, tmp_path):
    learner = trained(name)
    policy = load_policy(save(learner, tmp_path / "checkpoint"))
    env = make_env("routing", **LIGHT)
    ours, theirs = (run_episode(env, each, 3) for each in (policy, learner.policy()))
    assert ours.metrics["return"] == theirs.metrics["return"]
    if name in ("maskable_ppo", "api"):
        assert ours.metrics["commands_refused"] == 0
    larger = FleetConfig(groups=(SLOW, FAST, GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 3)))
    wide = run_episode(make_env("routing", **{**LIGHT, "cluster": larger}), policy, 3)
    assert {decision["action"] for decision in wide.decisions} <= set(range(6))
    together = episode_returns(make_vector_env("routing", 2, **LIGHT), policy, env.policy_spec, [3, 4])
    assert together[0] == pytest.approx(ours.metrics["return"], rel=1e-6)


@pytest.mark.parametrize("name", full_except(["maskable_ppo", "api"], "api"))
def test_training_goes_on_from_what_was_saved(name, tmp_path):
    learner = trained(name)
    folder = save(learner, tmp_path / "last")
    copy = make_learner(CONFIGS[name], Task("routing", LIGHT, num_envs=2))
    copy.restore(folder)
    env = make_env("routing", **LIGHT)
    assert run_episode(env, copy.policy(), 3).decisions == run_episode(env, learner.policy(), 3).decisions
    if name == "api":
        assert copy.iteration == learner.iteration == 1
        assert copy.batches[0].chosen == learner.batches[0].chosen
        np.testing.assert_array_equal(copy.batches[0].returns[0], learner.batches[0].returns[0])
    copy.improve(Budget(128, steps=64))


def test_another_number_of_classes_is_refused(tmp_path):
    policy = load_policy(save(trained("api"), tmp_path / "checkpoint"))
    env = make_env("routing", workload=WorkloadSpec(name="flying_priority", num_requests=20))
    observation, _ = env.reset(seed=0)
    policy.reset(env.policy_spec, 0)
    with pytest.raises(ValueError, match="another number of request classes"):
        policy.act(observation, env.state)


def test_a_start_must_decide_inside_the_kernel():
    with pytest.raises(ValueError, match="start must be a policy whose score runs inside the kernel"):
        APILearner(APIConfig(start={"name": "jsq"}), Task("routing", LIGHT))


def counterfactuals(**changes):
    config = APIConfig(**{"horizon": 1000, "sample_every": 1, "exploration": 0.0, **changes})
    return APILearner(config, Task("routing", LIGHT, num_envs=3, seed=1)).world


def test_a_rollout_of_the_present_choice_is_what_then_happens():
    world = counterfactuals()
    batch = Batch()
    world.play(Budget(10**6), batch)
    assert len(batch.states) == 3
    assert all(np.isfinite(returns).all() for returns in batch.returns)
    expected = [returns[chosen] for returns, chosen in zip(batch.returns, batch.chosen, strict=True)]
    again = counterfactuals()  # the same episodes from their beginning
    seen = again._begin_ended()
    total, over = np.zeros(3), np.zeros(3, bool)
    while not over.all():
        seen, outcomes = again.batch.step(again._act(seen))
        total += np.where(over, 0.0, outcomes.rewards(again.objective))
        over = again.batch.done
    np.testing.assert_allclose(expected, total, rtol=1e-9)


def test_what_rollouts_need_is_compiled_before_any_training_time_counts(monkeypatch):
    """Both the rollouts of forks and those of whole episodes go by one function, compiled for one kind of arguments."""
    called = []
    compiled = batch.roll_many
    monkeypatch.setattr(batch, "roll_many", lambda *args: called.append(compiled(*args)))
    world = counterfactuals(horizon=1)
    assert called
    world._begin_ended()
    called.clear()
    world._rollouts(np.array([0]), np.array([1]), Budget(10**6))
    assert called
    assert len(compiled.signatures) == 1


def test_rollouts_end_at_the_same_arrival():
    """With a window of one arrival a rollout is the first interval alone."""
    world = counterfactuals(horizon=1)
    seen = world._begin_ended()
    owners, first = np.array([0, 0, 1]), np.array([0, 1, 0])
    returns, _ = world._rollouts(owners, first, Budget(10**6))
    for owner, place, value in zip(owners, first, returns, strict=True):
        fork = world.batch.branch([int(owner)])
        _, outcomes = fork.step(np.array([place]))
        assert value == pytest.approx(float(outcomes.rewards(world.objective)[0]))
    assert seen.masks[:, :2].all()


def test_fleets_take_turns():
    """On a fleet of two slow engines and one of two fast ones, as many states are sampled here as there."""
    elsewhere = [{**LIGHT, "cluster": FleetConfig(groups=(group, group))} for group in (SLOW, FAST)]
    config = APIConfig(horizon=5, sample_every=1, exploration=0.0)
    world = APILearner(config, Task("routing", elsewhere[0], num_envs=3, also=(elsewhere[1],))).world
    batch = Batch()
    for _ in range(6):
        world.play(Budget(10**6), batch)
    column = PLACE_FEATURES.index("iteration_s")
    speeds = np.array([places[0, column] for places in batch.actions])
    assert len(speeds) == 18
    fast = speeds < speeds.mean()
    assert fast.sum() == 9
    assert speeds[fast].max() < speeds[~fast].min()


def test_fleets_of_one_training_may_differ_in_size():
    """Rollouts look ahead as far in time, and the network learns from states of either size."""
    three = {**LIGHT, "cluster": FleetConfig(groups=(SLOW, SLOW, FAST))}
    config = APIConfig(horizon=40, sample_every=1, exploration=0.0, iterations=1, epochs=1)
    learner = APILearner(config, Task("routing", LIGHT, num_envs=2, also=(three,)))
    batch = Batch()
    for _ in range(4):
        learner.world.play(Budget(10**6), batch)
    assert {len(places) for places in batch.actions} == {2, 3}
    assert len(set(batch.kinds)) == 2
    assert learner.world._larger == [1.0, 1.5]
    learner.batches = [batch]
    assert np.isfinite(learner._train())


def test_on_a_larger_fleet_rates_alone_are_other_ones():
    rates = [
        f"{name}_{span}"
        for name in ("requests", "prompt_tokens", "predicted_tokens")
        for span in ("short", "long")
    ]
    columns = [CLUSTER_FEATURES.index(name) - len(CLUSTER_FEATURES) for name in rates]
    states = torch.rand((400, 9 + len(CLUSTER_FEATURES)), generator=torch.Generator().manual_seed(1))
    larger = as_of_larger(states, torch.Generator().manual_seed(2), largest=8.0)
    others = np.setdiff1d(np.arange(states.shape[1]), np.array(columns) + states.shape[1])
    assert torch.equal(larger[:, others], states[:, others])
    factors = torch.expm1(larger[:, columns]) / torch.expm1(states[:, columns])
    assert torch.allclose(factors, factors[:, :1].expand_as(factors), rtol=1e-4)
    as_they_are = (factors[:, 0] - 1.0).abs() < 1e-5
    assert 0.4 < as_they_are.float().mean() < 0.6
    assert factors.max() <= 8.001
    assert 2.0 < factors[~as_they_are, 0].log().exp().median() < 4.0  # the root of 8


@pytest.mark.full
def test_it_learns_that_the_fast_engine_is_better():
    """Under light load everything belongs on the fast engine; the first rollouts prefer the slow one."""
    start = {"name": "linear_score", "params": {"kv_capacity": -1.0, "iteration_s": 0.0}}
    config = APIConfig(start=start, iterations=1, horizon=30, sample_every=4, hidden=16, epochs=30)
    learner = APILearner(config, Task("routing", {**LIGHT, "split": "train"}, num_envs=8, seed=1))
    budget = Budget(60_000)
    while not budget.over:
        learner.improve(budget)
    env = make_env("routing", **LIGHT, split="test")

    def mean_return(policy):
        return np.mean([run_episode(env, policy, seed).metrics["return"] for seed in range(3)])

    weights = dict.fromkeys(make_policy("linear_score").config.tunables(), 0.0)
    slow, fast = (
        mean_return(make_policy("linear_score", **{**weights, "kv_capacity": sign})) for sign in (-1.0, 1.0)
    )
    assert fast > slow, "the instance is what it is meant to be"
    assert mean_return(learner.policy()) > slow + 0.9 * (fast - slow)
