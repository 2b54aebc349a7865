"""Agents of the deployment environment: an instance whose optimum is known, what the network sees, rollouts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from serving_gym.agents.config import DQNConfig, NetworkConfig, PPOConfig
from serving_gym.agents.environments.deployment.counterfactuals import DeploymentCounterfactuals
from serving_gym.agents.environments.deployment.features import (
    EXISTS,
    encode_actions,
    encode_state,
    state_size,
)
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import Batch
from serving_gym.agents.learners.api.learner import APILearner
from serving_gym.agents.learners.learner import Budget, make_learner
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.deployment.episode import DeploymentEpisode
from serving_gym.envs.deployment.state import Deploy
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import Task, make_env
from tests.environments.deployment.samples import BASE, MIX

QUIET = {
    **BASE,
    "workload": WorkloadSpec(name="type_mix", num_requests=150, params={"mean_rps": 3.0, "hold_s": 40.0}),
    "num_candidates": 8,
}
CONFIG = APIConfig(horizon=4, commit=4, sample_every=1, candidates=8, hidden=16, iterations=1, epochs=60)


def learner_of(config: APIConfig = CONFIG, steps: int = 4000) -> APILearner:
    learner = APILearner(config, Task("deployment", QUIET, seed=0))
    budget = Budget(steps)
    while not budget.over:
        learner.improve(budget)
    return learner


def test_it_learns_that_wide_replicas_answer_faster_when_there_is_room() -> None:
    """Episodes begin with the deployment that reaches most, four small replicas; wide ones are the quicker."""
    policy = learner_of().policy()
    env = make_env("deployment", **QUIET, split="test")
    for seed in range(3):
        learned = run_episode(env, policy, seed).metrics["return"]
        assert {kind.tp for kind in env.state.deployment.kinds} == {2}
        assert learned > run_episode(env, make_policy("stay"), seed).metrics["return"]


def test_the_network_sees_the_observation_and_nothing_else() -> None:
    env = make_env("deployment", **BASE)
    observation, info = env.reset(seed=0)
    state, actions = encode_state(observation), encode_actions(observation)
    assert state.shape == (state_size(env.observation_space),)
    assert len(actions) == info["action_mask"].sum()
    assert (actions[:, EXISTS] == 1).all()
    fewer = {**observation, "replicas": np.zeros_like(observation["replicas"])}
    assert np.isfinite(encode_state(fewer)).all()


def test_a_rollout_leaves_the_episode_alone_and_is_the_sum_of_its_rewards() -> None:
    world = DeploymentCounterfactuals(CONFIG, Task("deployment", QUIET), np.random.default_rng(0))
    world.core.reset(3)
    before, twin = world.core.simulator.now_s, world.core.fork()
    returns = world._rollout(0)
    assert world.core.simulator.now_s == before
    expected = 0.0
    for _ in range(CONFIG.horizon):
        expected += twin.step(0).reward
    assert returns == pytest.approx(expected)


def test_a_rollout_keeps_to_what_the_start_said_with_its_shares(monkeypatch) -> None:
    config = dataclasses.replace(CONFIG, commit=3, start={"name": "stay"})
    world = DeploymentCounterfactuals(config, Task("deployment", QUIET), np.random.default_rng(0))
    world.core.reset(3)
    world.start.reset(world.spec, 0)
    kinds = len(world.core.simulator.deployment.kinds)
    said = Deploy(
        world.core.simulator.deployment, np.full((len(world.core.state.shares), kinds), 1.0 / kinds)
    )
    told, step = [], DeploymentEpisode.step
    monkeypatch.setattr(
        DeploymentEpisode, "step", lambda core, action: told.append(action) or step(core, action)
    )
    world._rollout(said)
    assert told[:3] == [said] * 3
    assert len(told) == config.horizon
    assert told[3] is not said


def test_staying_and_what_the_present_policy_does_are_always_compared() -> None:
    config = dataclasses.replace(CONFIG, candidates=3, exploration=1.0)
    world = DeploymentCounterfactuals(config, Task("deployment", QUIET), np.random.default_rng(0))
    batch, budget = Batch(), Budget(10_000)
    for _ in range(4):
        world.play(budget, batch)
    for actions, returns, chosen in zip(batch.actions, batch.returns, batch.chosen, strict=True):
        assert len(actions) == len(returns) <= 3
        assert chosen == 0
        assert np.isfinite(returns).all()
    assert budget.steps == sum(len(returns) * config.horizon for returns in batch.returns) + 4


def test_relative_advantages() -> None:
    world = DeploymentCounterfactuals(CONFIG, Task("deployment", QUIET), np.random.default_rng(0))
    (found,) = world.advantages([np.array([-9.0, -14.0, -99.0])])
    np.testing.assert_allclose(found, [0.0, -0.5, -3.0])


@pytest.mark.parametrize(
    "config",
    [
        PPOConfig(
            rollout_steps=4, batch_size=4, epochs=1, group_size=2, network=NetworkConfig(hidden_widths=(8,))
        ),
        DQNConfig(
            name="dqn",
            buffer_size=50,
            warm_up_steps=4,
            batch_size=4,
            network=NetworkConfig(hidden_widths=(8,)),
        ),
    ],
    ids=lambda config: config.name,
)
def test_agents_of_stable_baselines3_choose_what_is_possible(config) -> None:
    learner = make_learner(config, Task("deployment", QUIET, num_envs=2))
    budget = Budget(16)
    while not budget.over:
        learner.improve(budget)
    episode = run_episode(make_env("deployment", **QUIET), learner.policy(), 0)
    assert episode.metrics["completed"] == 150
    if config.name == "maskable_ppo":
        assert episode.metrics["commands_refused"] == 0


def test_mistakes_are_named() -> None:
    policy = learner_of(dataclasses.replace(CONFIG, epochs=1), steps=200).policy()
    other = make_env("deployment", **{**BASE, "workload": MIX, "num_types": 2})
    with pytest.raises(ValueError, match="was trained on observations of shape"):
        run_episode(other, policy, 0)
