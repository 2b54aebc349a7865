"""Approximate policy iteration from any baseline: what it would do is always there to be taken."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serving_gym.agents.environments.deployment.proposal import Proposals
from serving_gym.agents.environments.spaces import FILE, spaces_to_json
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import Batch
from serving_gym.agents.learners.api.learner import APILearner, load
from serving_gym.agents.learners.api.start import Start, calibrated_margin, compared, flagged, start_of
from serving_gym.agents.learners.learner import Budget
from serving_gym.agents.networks.score_network import NEVER, TrainableNetwork
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.base.lazy_observation import LazyObservation
from serving_gym.envs.deployment.env import DeploymentEnv
from serving_gym.envs.deployment.state import Deploy, DeploymentSetting
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.train_config import TrainConfig, register_agents
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import Task, make_env
from tests.environments.autoscaling.samples import ONE
from tests.environments.deployment.samples import BASE, SMALL
from tests.tiers import full_except

BURSTS = WorkloadSpec(name="flying_bursty", num_requests=120)
MIX = WorkloadSpec(name="type_mix", num_requests=150, params={"mean_rps": 6.0, "hold_s": 20.0})
CASES = {  # environment, its arguments, what is started from
    "autoscaling": (ONE, {"name": "queue_proportional"}),
    "deployment": (
        {**BASE, "workload": MIX, "cluster": dataclasses.replace(SMALL, disaggregation=True)},
        {"name": "dynamo", "params": {"period_s": None}},  # asked at every decision, as the learner's
    ),
    "dp_tp": ({"workload": BURSTS, "cluster": ClusterSpec(num_gpus=4)}, {"name": "flying_serving"}),
}
CONFIG = APIConfig(horizon=4, commit=2, candidates=4, sample_every=1, hidden=8, iterations=1, epochs=2)


def learner_of(env: str, **changes: Any) -> APILearner:
    arguments, start = CASES[env]
    own = {"stride": 1} if env == "dp_tp" else {}
    return APILearner(
        dataclasses.replace(CONFIG, start=start, **own, **changes), Task(env, arguments, seed=0)
    )


def prefer_the_start(network: torch.nn.Module) -> None:
    """Makes the flag of the start's action all that a score is."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.action.weight[0, -1] = network.middle.weight[0, 0] = network.out.weight[0, 0] = 1.0


@pytest.mark.parametrize("env", CASES)
def test_a_policy_that_always_takes_it_is_the_baseline(env: str) -> None:
    learner = learner_of(env)
    prefer_the_start(learner.network)
    world = make_env(env, **CASES[env][0])
    own = run_episode(world, make_policy(CASES[env][1]["name"], **CASES[env][1].get("params", {})), 3)
    taken = run_episode(world, learner.policy(), 3)
    assert taken.metrics["return"] == own.metrics["return"]
    assert any(decision["action"] for decision in own.decisions), "it does something"
    assert [str(d["action"]) for d in taken.decisions] == [str(d["action"]) for d in own.decisions]


@pytest.mark.parametrize("env", CASES)
def test_it_is_compared_once_at_every_state_and_taken_at_first(env: str) -> None:
    world, batch = learner_of(env, exploration=0.5).world, Batch()
    budget = Budget(10_000)
    for _ in range(4):
        world.play(budget, batch)
    assert len(batch.actions) > 1
    for rows, returns, chosen in zip(batch.actions, batch.returns, batch.chosen, strict=True):
        assert np.flatnonzero(rows[:, -1]).tolist() == [chosen]
        assert 2 <= len(rows) == len(returns) <= CONFIG.candidates
        assert np.isfinite(returns).all()


@pytest.mark.parametrize("continuation", ["present", "start"])
def test_rollouts_follow_it(continuation: str) -> None:
    """Action, then what it says in the world that the action has made; a network follows only where it may."""
    learner = learner_of("deployment", commit=1, continuation=continuation)
    world = learner.world
    world.core.reset(1)
    world.start.reset(world.spec, 1)
    twin, policy = world.core.fork(), world.start.fork()
    expected = twin.step(3).reward
    for _ in range(CONFIG.horizon - 1):
        expected += twin.step(policy.act({}, twin.state)).reward
    assert world._rollout(3) == pytest.approx(expected)
    learner.network.margin.fill_(-NEVER)  # anything but what it says
    world.follow(learner.policy())
    same = world._rollout(3) == pytest.approx(expected)
    assert same == (continuation == "start")


def test_a_learner_that_has_learned_nothing_is_the_baseline() -> None:
    env = make_env("dp_tp", **CASES["dp_tp"][0])
    own = run_episode(env, make_policy("flying_serving"), 1).metrics["return"]
    assert run_episode(env, learner_of("dp_tp").policy(), 1).metrics["return"] == own


def test_in_strange_states_it_is_followed_whatever_others_promise() -> None:
    """Features in [0, 4] and [2, 2]: a quarter of the range and a tenth further out is known, beyond it is not."""
    torch.manual_seed(0)
    network = TrainableNetwork(2, 3, 8, started=True)
    network.margin.fill_(-NEVER)  # anything but what it says
    network.know(np.array([[0.0, 2.0], [4.0, 2.0], [1.0, 2.0]], np.float32))
    rows = flagged(np.eye(2, dtype=np.float32), np.ones(2, np.float32))
    exported = network.export()
    for state, strange in (
        ([-1.0, 2.0], False),
        ([5.0, 2.05], False),
        ([-1.2, 2.0], True),
        ([1.0, 2.2], True),
    ):
        seen = np.array(state, np.float32)
        scores = exported.scores(seen, rows)
        assert (int(scores.argmax()) == 2) == strange
        with torch.no_grad():
            same = network(torch.from_numpy(seen[None]), torch.from_numpy(rows[None]))[0].numpy()
        np.testing.assert_allclose(same, scores, rtol=1e-5)


@pytest.mark.parametrize("env", full_except(CASES, "dp_tp"))
def test_what_it_was_trained_on_is_not_strange(env: str) -> None:
    learner = learner_of(env)
    budget = Budget(1_000)
    while learner.iteration < 1:
        learner.improve(budget)
    network = learner.network
    assert np.isfinite(network.low.numpy()).all()
    assert np.isfinite(network.high.numpy()).all()
    for state in learner.batches[-1].states:
        assert (network.low.numpy() < state).all()
        assert (state < network.high.numpy()).all()


def test_half_of_what_is_compared_is_most_like_it() -> None:
    """Rows at distances 0, 1, 2 ... 9 from the start's, which is the last; the one at 0 is never tried again."""
    rows = flagged(np.arange(10.0, dtype=np.float32)[:, None], np.zeros(1, np.float32))
    tried = compared(rows, [10], 7, np.random.default_rng(0), started=True)
    assert tried[:4] == [10, 1, 2, 3]
    assert len(tried) == len(set(tried)) == 7
    assert 0 not in tried
    everything = compared(rows[:, :1], [4], 100, np.random.default_rng(0), started=False)
    assert sorted(everything) == list(range(11))


def test_the_margin_lets_through_what_surely_gains() -> None:
    """Leads 3, 2, 1 with gains +1, +1, -5: the first two are worth it, so the margin lies between 2 and 1."""
    scores = np.array([[0.0, 3.0], [0.0, 2.0], [0.0, 1.0], [0.0, 9.0]], np.float32)
    gains = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, -5.0], [0.0, 0.0]], np.float32)
    valid = np.array([[True, True]] * 3 + [[True, False]])
    usual = np.zeros(4, np.int64)
    assert calibrated_margin(scores, gains, valid, usual) == pytest.approx(1.5)
    assert calibrated_margin(scores, -np.abs(gains), valid, usual) == NEVER
    assert calibrated_margin(scores[:1], gains[:1], valid[:1], usual[:1]) == NEVER, "one success is no proof"


def test_what_a_policy_trusts_in_is_no_gain() -> None:
    """Departures that lose a twentieth of a spread, to which the present policy keeps: a margin forbids them."""
    learner = learner_of("deployment", trust=10.0)
    rng = np.random.default_rng(0)
    size = learner.network.state.in_features, learner.network.action.in_features
    batch = Batch()
    for _ in range(200):
        rows = rng.normal(size=(2, size[1])).astype(np.float32)
        rows[:, -1] = [1.0, 0.0]
        returns = np.array([-1.0, -1.05 + 0.1 * rng.normal()])
        batch.add(rng.normal(size=size[0]).astype(np.float32), rows, returns, 1)
    learner.gathered = batch
    budget = Budget(1)
    budget.count(1)
    learner.improve(budget)
    assert float(learner.network.margin) == NEVER


class Counting:
    """A policy that remembers how often it was asked."""

    name, clairvoyant = "counting", False

    def reset(self, spec: Any, seed: int) -> None:
        self.asked, self.setting = [0], spec.setting_of(DeploymentSetting)

    def act(self, observation: Any, state: Any) -> int:
        self.asked[0] += 1
        return self.asked[0]


def test_a_fork_remembers_for_itself_and_shares_what_is_known() -> None:
    env = make_env("deployment", **CASES["deployment"][0])
    start = Start(Counting())
    start.reset(env.policy_spec, 0)
    assert start.act({}, None) == 1
    twin = start.fork()
    assert [twin.act({}, None), twin.act({}, None), start.act({}, None)] == [2, 3, 2]
    assert twin.policy.setting is start.policy.setting


def test_a_proposal_is_described_as_the_environment_would() -> None:
    """Choices of the environment, proposed as commands, have the rows that they have in the observation."""
    env = DeploymentEnv(**CASES["deployment"][0])
    observation, _ = env.reset(seed=0)
    core, policy = env.core, make_policy("dynamo")
    policy.reset(env.policy_spec, 0)
    core.step(policy.act({}, core.state))
    observation = core.observe()
    proposals = Proposals(env.policy_spec, observation["replicas"].shape[0])
    for number, candidate in enumerate(core.candidates):
        deployment = core.placed(candidate)
        shares = core.shares_of(deployment, candidate.apart)
        row = proposals.row(Deploy(deployment, None if candidate.apart else shares), core.state)
        np.testing.assert_allclose(row, observation["candidates"][number], rtol=1e-5)
    with pytest.raises(ValueError, match="a deployment was expected"):
        proposals.row("nothing", core.state)


def test_flags_and_observations_that_are_made_when_looked_at() -> None:
    rows = flagged(np.ones((2, 3), np.float32), np.full(3, 2.0, np.float32))
    assert rows.tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [2, 2, 2, 1]]
    made = []
    seen = LazyObservation(lambda: made.append(1) or {"cluster": np.zeros(2)})
    assert not made
    assert list(seen) == ["cluster"]
    assert len(seen) == len(seen["cluster"]) - 1 == len(made) == 1


def test_a_checkpoint_knows_what_it_was_started_from(tmp_path: Path) -> None:
    learner = learner_of("dp_tp")
    learner.save_policy(tmp_path)
    (tmp_path / FILE).write_text(spaces_to_json(learner.world.observation, learner.world.action))
    config = {"env": {"name": "dp_tp"}, "agent": dataclasses.asdict(learner.config)}
    env = make_env("dp_tp", **CASES["dp_tp"][0])
    loaded = load(tmp_path, config, "mine")
    assert loaded.start is not None
    kept = run_episode(env, learner.policy(), 0).metrics["return"]
    assert run_episode(env, loaded, 0).metrics["return"] == kept


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="start must not be clairvoyant, got 'clairvoyant_deployment'"):
        start_of({"name": "clairvoyant_deployment"})
    with pytest.raises(ValueError, match="continuation=start needs a policy"):
        APIConfig(continuation="start")
    with pytest.raises(ValueError, match="continuation"):
        APIConfig(continuation="never")
    with pytest.raises(ValueError, match="decides how a cluster is cut"):
        APILearner(dataclasses.replace(CONFIG, start={"name": "dynamo"}), Task("dp_tp", CASES["dp_tp"][0]))


def test_the_command_line_names_it() -> None:
    register_agents()
    words = ("env=dp_tp", "agent=api", "agent.start=flying_serving_tuned", "out=unused")
    start = composed("train", TrainConfig, words).agent_config.start
    assert start["name"] == "flying_serving"
    assert start["params"]["dwell_s"] > 0
