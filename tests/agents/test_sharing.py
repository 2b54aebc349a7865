"""Agents on the sharing environment: they train, come back from a checkpoint, and serve other clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from serving_gym.agents.checkpoint import load_policy, replacing, write_description
from serving_gym.agents.config import DAggerConfig, DQNConfig, NetworkConfig, PPOConfig
from serving_gym.agents.environments.sharing.adapter import SharingAdapter
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import Batch
from serving_gym.agents.learners.api.learner import APILearner
from serving_gym.agents.learners.imitation import ImitationLearner
from serving_gym.agents.learners.learner import Budget, make_learner
from serving_gym.baselines.common.place_score import PlaceScoreConfig, PlaceScorePolicy
from serving_gym.envs.machines.shared_nodes import SharingSpec
from serving_gym.envs.simulator.sharing.build import ManagerSpec
from serving_gym.envs.simulator.sharing.features import PLACE_FEATURES
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.rollouts.rollout import episode_returns, run_episode
from tests.defaults import Task, make_env, make_vector_env
from tests.environments.sharing.samples import GPU, SMALL
from tests.tiers import full_except

PARAMS = {"num_models": 8, "sizes": ("llama-3.2-3b", "llama-2-7b"), "ratio": (1, 1), "minutes": 3}
LIGHT = {
    "workload": WorkloadSpec("functions_fitted", num_requests=30, rate_scale=2.0, params=PARAMS),
    "cluster": SMALL,
}
NETWORK = NetworkConfig(row_width=8, hidden_widths=(16,))
CONFIGS = {
    "maskable_ppo": PPOConfig(rollout_steps=8, batch_size=8, epochs=1, group_size=2, network=NETWORK),
    "dagger": DAggerConfig(
        teacher={"name": "keep_warm", "params": {"keep": "belady"}}, iterations=1, epochs=1, network=NETWORK
    ),
    "dqn": DQNConfig(buffer_size=500, warm_up_steps=8, batch_size=8, network=NETWORK),
    "api": APIConfig(iterations=1, horizon=5, sample_every=1, epochs=2, hidden=8),
}


@pytest.mark.parametrize("name", full_except(sorted(CONFIGS), "dagger", "maskable_ppo"))
def test_round_trip_and_another_cluster(name, tmp_path):
    learner = make_learner(CONFIGS[name], Task("sharing", LIGHT, num_envs=2))
    budget = Budget(64)
    while not budget.over:
        learner.improve(budget)
    env = make_env("sharing", **LIGHT)
    settings = {"agent": learner.config, "env": {"name": "sharing"}, "workload": LIGHT["workload"]}
    with replacing(tmp_path / "checkpoint") as fresh:
        learner.save_policy(fresh)
        learner.save_training(fresh)
        write_description(fresh, settings, env.observation_space, env.action_space, {})
    policy = load_policy(tmp_path / "checkpoint")
    ours, theirs = (run_episode(env, each, 3) for each in (policy, learner.policy()))
    assert ours.metrics["return"] == theirs.metrics["return"]
    if name != "dqn":
        assert ours.metrics["commands_refused"] == 0
    together = episode_returns(make_vector_env("sharing", 2, **LIGHT), policy, env.policy_spec, [3, 4])
    assert together[0] == pytest.approx(ours.metrics["return"], rel=1e-6)
    wider = SharingSpec(nodes=(SMALL.nodes[0], GPU), slots_per_node=6)
    assert run_episode(make_env("sharing", **LIGHT | {"cluster": wider}), policy, 3).decisions


WARM = {
    **LIGHT,
    "cluster": replace(
        SMALL, nodes=(replace(GPU, memory_gb=24.0),), keep_alive_s=600.0, load_bytes_per_s=3.31e9
    ),
    "manager": ManagerSpec(replace_idle=True),
}


def imitator(obvious_share: float, also: tuple[dict[str, Any], ...] = ()) -> ImitationLearner:
    config = replace(CONFIGS["dagger"], obvious_share=obvious_share)
    return ImitationLearner(config, Task("sharing", WARM, num_envs=2, also=also))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_an_imitator_need_not_see_what_is_a_matter_of_course(share):
    learner = imitator(share)
    budget = Budget(120)
    while budget.progress < 0.9:
        learner.improve(budget)
    places, answers = (np.concatenate(learner.gathered[name]) for name in ("places", "answer"))
    replaces = np.append(places[:, :, PLACE_FEATURES.index("replaces")], np.zeros((len(places), 1)), axis=1)
    goes = replaces[np.arange(len(answers)), answers] > 0
    assert goes.any()
    assert goes.all() == (share == 0.0)
    assert (len(goes) == budget.steps) == (share == 1.0)


def test_an_imitator_that_saw_nothing_says_so():
    learner = imitator(0.0)
    with pytest.raises(ValueError, match=r"obvious_share=0\.0 left no answer to learn from in 2 decisions"):
        learner.improve(Budget(2))


def test_an_imitator_plays_everywhere_in_turn():
    slow = {**WARM, "cluster": replace(WARM["cluster"], load_bytes_per_s=1e9)}
    learner = imitator(1.0, (slow,))
    for _ in range(2 * 6):
        learner._play(None)
    ready = np.stack(learner.gathered["places"])[:, :, -1, PLACE_FEATURES.index("ready_s")]
    turns = [{round(float(value), 3) for value in ready[begin::2].ravel()} - {0.0} for begin in (0, 1)]
    assert all(turns)
    assert turns[0].isdisjoint(turns[1]), "loads take longer in every second one"


def test_an_imitator_says_which_place_shows_something_else_and_what():
    wider = (
        r"also\[1\] must show .*\['places'\] is \(15, 31\) from 0 to 64 there, \(10, 31\) from 0 to 64 here"
    )
    with pytest.raises(ValueError, match=wider):
        imitator(1.0, (WARM, {**WARM, "cluster": SMALL}))


def test_a_rollout_of_the_present_choice_is_what_then_happens():
    def world():
        config = APIConfig(horizon=1000, sample_every=1, exploration=0.0)
        return APILearner(config, Task("sharing", LIGHT, num_envs=2, seed=1)).world

    first, batch = world(), Batch()
    while not batch.states:
        first.play(Budget(10**6), batch)
    again = world()  # the same episodes from their beginning
    seen, total, over = again._begin_ended(), np.zeros(2), np.zeros(2, bool)
    while not over.all():
        seen, outcomes = again.batch.step(again._act(seen))
        total += np.array([outcome.reward if outcome else 0.0 for outcome in outcomes])
        over = again.batch.done
    expected = [returns[chosen] for returns, chosen in zip(batch.returns, batch.chosen, strict=True)]
    np.testing.assert_allclose(expected, total, rtol=1e-9)


def test_the_plain_score_takes_the_cheapest_place_that_can():
    policy = PlaceScorePolicy(PlaceScoreConfig(new=0.0, new_node=2.0))
    places = np.zeros((1, 3, len(PLACE_FEATURES)), np.float32)
    cycle, new, used = (PLACE_FEATURES.index(name) for name in ("node_cycle_s", "new", "node_used"))
    places[0, :, cycle] = [0.5, 1.5, 0.4]
    places[0, 1:, new] = 1.0
    places[0, 1, used] = 1.0
    everything = np.ones((1, 4), bool)
    assert policy.act_batch({"places": places}, everything) == 0  # the last is cheaper but for its new node
    assert policy.act_batch({"places": places}, np.array([[False, True, True, True]])) == 1
    assert policy.act_batch({"places": places}, np.array([[False, False, False, True]])) == 3
    with pytest.raises(ValueError, match="new_node must be finite"):
        PlaceScoreConfig(new_node=np.inf)


def test_discounts_are_about_the_mean_time_between_arrivals():
    rate = SharingAdapter().interval_s(
        {"workload": WorkloadSpec("functions_fitted", params={"num_models": 128})}
    )
    assert rate == pytest.approx(1 / 1.718, rel=0.01)


def test_a_start_must_decide_by_the_observation():
    with pytest.raises(ValueError, match="start must be a policy that decides by the observation"):
        APILearner(APIConfig(start={"name": "first_fit"}), Task("sharing", LIGHT))


def test_a_start_must_belong_to_sharing():
    with pytest.raises(ValueError, match="this policy decides where requests go"):
        APILearner(APIConfig(start={"name": "linear_score"}), Task("sharing", LIGHT))


def test_a_start_that_may_hold_does_so_only_where_it_must():
    world = APILearner(CONFIGS["api"], Task("sharing", LIGHT, num_envs=2, seed=1)).world

    class Holding(PlaceScorePolicy):
        def act_batch(self, observation, masks):
            return masks.shape[1] - 1 - masks[:, ::-1].argmax(axis=1)  # the last that is possible

    world.present, batch = Holding(), Batch()
    while len(batch.states) < 4:
        world.play(Budget(10**6), batch)
    for returns, chosen in zip(batch.returns, batch.chosen, strict=True):
        assert np.isfinite(returns[chosen])
