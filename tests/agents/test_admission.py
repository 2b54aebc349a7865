"""Learned admission: the verdicts are rows that a network scores, in the kernel as in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serving_gym.agents.environments.adapter import adapter_of
from serving_gym.agents.environments.routing.larger import rates_in
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.learner import Budget, Task, make_learner
from serving_gym.baselines.common.routers.linear_score import LinearScorePolicy
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.routing.batch import RoutingBatch
from serving_gym.envs.routing.config import RoutingConfig
from serving_gym.envs.routing.episode import RoutingEpisode
from serving_gym.envs.routing.state import Defer, Dispatch, Reject
from serving_gym.envs.simulator.kernel.features import CLUSTER_FEATURES
from serving_gym.envs.simulator.kernel.place_scores import with_verdicts
from serving_gym.envs.simulator.kernel.router_view import tracked_slots
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env

SMALL = ReplicaSpec("llama-3.1-8b", "H100", kv_blocks=600, max_num_seqs=12)
OVERLOAD = {
    "workload": WorkloadSpec("overload_tiers", num_requests=150, params={"served_rps": 6.0}),
    "cluster": FleetConfig((GroupSpec(SMALL, 2),)),
    "objective": Objective(latency=0.02, abandoned=0.0, refused=0.5, class_weights={"critical": 4.0}),
    "admission": True,
}


def drawn_policy(env, seed):
    """A network of drawn weights that likes all actions about as much."""
    adapter, config = adapter_of("routing"), APIConfig(hidden=8)
    torch.manual_seed(seed)
    network = adapter.score_network(env.observation_space, config)
    with torch.no_grad():
        network.direct.normal_(0.0, 0.3)
        network.score[-1].weight.normal_(0.0, 3.0)
    policy = adapter.score_policy(network, env.observation_space, env.action_space, config, "drawn")
    policy.reset(env.unwrapped.policy_spec, 0)
    return policy


def test_verdicts_are_rows_of_their_own_behind_the_places():
    rows = with_verdicts(np.ones((4, 2, 20), np.float32))
    assert rows.shape == (4, 5, 23)
    assert rows[3, :2, :20].all()
    np.testing.assert_array_equal(rows[1, 2:, 20:], np.eye(3))
    assert not rows[0, 2:, :20].any()
    assert not rows[0, :2, 20:].any()


@pytest.mark.parametrize(("seed", "verdicts"), [(0, {2, 4}), (7, {2, 3})])
def test_one_decision_in_the_kernel_is_as_many_in_numpy_and_as_rollouts(seed, verdicts):
    """Played by `act`, by `act_batch` and inside the kernel, episodes are the same."""
    env = make_env("routing", **OVERLOAD).unwrapped
    policy = drawn_policy(env, seed)
    episode = run_episode(env, policy, 4)
    taken = [decision["action"] for decision in episode.decisions]
    assert verdicts < set(taken), "it does more than to place"
    batch = RoutingBatch([RoutingEpisode(RoutingConfig(**OVERLOAD))])
    seen, total, actions = batch.reset([0], [4]), 0.0, []
    while not batch.done.all():
        actions.append(int(policy.act_batch(seen.as_dict(), seen.masks)[0]))
        seen, outcomes = batch.step(np.array([actions[-1]]))
        total += float(outcomes.rewards(env.config.objective)[0])
    assert actions == taken
    assert total == pytest.approx(episode.metrics["return"], rel=1e-9)
    env.reset(seed=4)
    rolled = env.roll_forks([taken[0]], policy.in_kernel, 10**6)
    assert rolled[0] == pytest.approx(total, rel=1e-6)


def test_actions_of_baselines_have_numbers_here():
    env = make_env("routing", **OVERLOAD).unwrapped
    env.reset(seed=0)
    adapter, spec, mask = adapter_of("routing"), env.policy_spec, env.action_masks()
    said = {None: 2, 0: 0, Dispatch(1): 1, Dispatch(None): 2, Reject(): 3, Defer(): 4, 3: 3}
    assert {a: adapter.index_of(a, env.state, mask, spec) for a in said} == said
    mask[[1, 4]] = False
    assert [adapter.index_of(a, env.state, mask, spec) for a in (1, Defer())] == [2, 2]


def test_rates_of_classes_grow_with_the_fleet():
    env = make_env("routing", **OVERLOAD).unwrapped
    columns = set(rates_in(env.observation_space))
    end = len(CLUSTER_FEATURES)
    assert {-end - 9 + k for k in (1, 2, 4, 5, 7, 8)} < columns
    assert not {-end - 9 + k for k in (0, 3, 6)} & columns


def test_a_guard_and_admission_do_not_go_together():
    with pytest.raises(ValueError, match=r"leave it null where env\.admission=true"):
        make_learner(APIConfig(guard={"times_least": 2.0}), Task("routing", OVERLOAD, 2, 0))


@pytest.mark.full
def test_it_learns_whom_to_let_in():
    """Of twice as much as can be served it lets in what pays: better than to place all, and than to refuse all."""
    arguments = {
        **OVERLOAD,
        "objective": Objective(latency=0.1, abandoned=0.0, class_weights={"critical": 4.0}),
    }
    config = APIConfig(
        iterations=6,
        sample_every=16,
        horizon=60,
        hidden=16,
        epochs=20,
        candidates=5,
        warm=True,
        trust=0.1,
        entropy_weights=(0.3, 0.05),
        learning_rate=3e-3,
    )
    learner = make_learner(config, Task("routing", arguments, 8, 0))
    budget = Budget(600_000, None)
    while not budget.over:
        learner.improve(budget)
    learner.finish(budget)
    env = make_env("routing", **arguments)

    def returns(policy):
        return np.mean([run_episode(env, policy, seed).metrics["return"] for seed in range(4)])

    class RefusesAll(LinearScorePolicy):
        def act(self, observation, state):
            return Reject()

    assert returns(learner.policy()) > max(returns(LinearScorePolicy()), returns(RefusesAll()))


def test_a_rollout_that_stops_counts_promises_that_are_broken_for_certain():
    """To hold a request beyond its deadline is not free: what is overdue at the end counts, by hand."""
    slos = dict.fromkeys(("critical", "standard", "sheddable"), SLO(1.0, 0.005))
    env = make_env("routing", **OVERLOAD, slos=slos).unwrapped
    policy = LinearScorePolicy()
    env.reset(seed=1)
    policy.reset(env.policy_spec, 0)
    for _ in range(90):
        env.step(0)
    rolled = float(env.roll_forks([2], policy.in_kernel, 12)[0])
    fork, total, action = env.fork(), 0.0, 2
    for _ in range(12):
        observation, reward, *_ = fork.step(action)
        total, action = total + reward, policy.act(observation, fork.state)
    world, now_s = fork.core.simulator.world, fork.state.now_s
    slots = np.zeros(len(world.requests), np.int32)
    here = world.requests[slots[: tracked_slots(world, slots)]]
    first_s = here["first_token_ps"] / 1e12
    late = (first_s < 0) & (now_s > here["deadline_ps"] / 1e12)
    slow = (first_s >= 0) & (now_s - first_s > 0.005 * (here["output"] - 1))
    weights = np.where(here["class_id"] == 0, 4.0, 1.0)
    assert late.sum() > 10
    assert slow.sum() > 3
    certain = 0.1 * float((weights * late).sum() + (weights * slow).sum())
    assert rolled == pytest.approx(total - certain, rel=1e-6)
