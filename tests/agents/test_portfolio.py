"""The choice among policies: it learns an instance whose optimum is known, and its rollouts are the policies' own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving_gym.agents.checkpoint import load_policy, replacing, write_description
from serving_gym.agents.environments.adapter import adapter_of
from serving_gym.agents.learners.api.counterfactuals import Batch
from serving_gym.agents.learners.api.start import Start
from serving_gym.agents.learners.learner import Budget, make_learner
from serving_gym.agents.learners.portfolio.config import PortfolioConfig
from serving_gym.agents.learners.portfolio.portfolio_state import PortfolioState, state_size
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.base.lazy_observation import LazyObservation
from serving_gym.envs.dp_tp.observation import CLUSTER_FEATURES
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import Task, make_env
from tests.environments.deployment.samples import BASE
from tests.tiers import full_except

APART = {"name": "load_threshold", "params": {"layouts": ["2x1"]}}
MERGED = {"name": "load_threshold", "params": {"layouts": ["2"]}}
TWO_GPUS = {
    "workload": WorkloadSpec(name="flying_bursty", num_requests=200, rate_scale=0.3),
    "cluster": ClusterSpec(num_gpus=2),
}
H100 = GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 2)
FLEET = {
    "workload": WorkloadSpec(name="azure_conv_fitted", num_requests=60),
    "cluster": FleetConfig(groups=(H100,)),
}


def config(**changes: Any) -> PortfolioConfig:
    return PortfolioConfig(**{"policies": (APART, MERGED), "every": 4, "sample_every": 2, **changes})


def returned(policy: Any, seed: int, arguments: dict[str, Any] = TWO_GPUS, env: str = "dp_tp") -> float:
    return run_episode(make_env(env, **arguments), policy, seed).metrics["return"]


def played(policy: Any, env: Any, seeds: Any) -> float:
    """Return of an episode whose world and whose policy have seeds of their own."""
    observation, _ = env.reset(seed=int(seeds[0]))
    policy.reset(env.unwrapped.policy_spec, int(seeds[1]))
    total, over = 0.0, False
    while not over:
        action = policy.act(observation, env.unwrapped.state)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    return total


def test_it_learns_whom_to_follow() -> None:
    """Under light load one engine over both GPUs is quicker; the portfolio begins with the other."""
    apart, merged = (make_policy(each["name"], **each["params"]) for each in (APART, MERGED))
    learner = make_learner(config(), Task("dp_tp", TWO_GPUS, seed=1))
    for seed in range(2):
        assert returned(merged, seed) > returned(apart, seed), "the instance is what it is meant to be"
        assert returned(learner.policy(), seed) == returned(apart, seed), "it knows already"
    budget = Budget(20_000)
    while not budget.over:
        learner.improve(budget)
    for seed in range(2):
        assert returned(learner.policy(), seed) == returned(merged, seed)


@pytest.mark.parametrize(
    ("env", "arguments", "policies"),
    [
        ("dp_tp", TWO_GPUS, (APART, MERGED)),
        pytest.param("routing", FLEET, ({"name": "round_robin"}, {"name": "random"}), marks=pytest.mark.full),
    ],
)
def test_a_rollout_from_the_first_decision_is_the_episode_of_the_policy(env, arguments, policies) -> None:
    """What policies remember, random generators among it, goes with their forks."""
    learner: Any = make_learner(config(policies=policies, sample_every=1), Task(env, arguments))
    world, batch = learner.world, Batch()
    world.play(Budget(10_000), batch)
    seeds = np.random.default_rng(np.random.SeedSequence([0, 0xA91])).integers(2**31 - 1, size=2)
    training = {**arguments, "split": "train"}
    for policy, value in zip(policies, batch.returns[0], strict=True):
        alone = make_policy(policy["name"], **policy.get("params", {}))
        total = played(alone, make_env(env, **training), seeds)
        assert value == pytest.approx(total, rel=1e-12)
    assert len(set(batch.returns[0])) == 2


MIXED = {
    **TWO_GPUS,
    "workload": WorkloadSpec(
        name="mixture",
        num_requests=200,
        params={
            "parts": [
                {"name": "flying_bursty", "rate_scale": 0.3},
                {"name": "azure_conv_fitted", "rate_rps": 60.0, "num_requests": 600, "priority_share": 0.2},
            ]
        },
    ),
}


def test_advantages_of_a_part_of_the_workload_are_pooled() -> None:
    """The parts are played in turn, each with its own classes of requests, and what counts is the mean of a part."""
    learner: Any = make_learner(config(pooled=True, sample_every=1), Task("dp_tp", MIXED, seed=1))
    batch = Batch()
    while set(batch.kinds) != {"0", "1"} or batch.kinds[-1] != "0":
        learner.world.play(Budget(10_000), batch)
    assert "".join(batch.kinds).strip("0").strip("1") == "", "one episode after another"
    returns = [np.array(each) for each in ([-9.0, -12.0], [-4.0, -1.0], [-3.0, -7.0])]
    gains = learner._gains(returns, np.array(["0", "0", "1"]), 2)
    shares = [[0.0, -0.3], [-1.5, 0.0]]  # of what the best costs, and one more
    first = np.average(shares, axis=0, weights=[9.0, 1.0])
    expected = np.array([first, first, [0.0, -1.0]])
    np.testing.assert_allclose(gains, expected / expected.std(), rtol=1e-6)


def test_each_part_of_the_workload_has_an_environment_of_its_own() -> None:
    """In deployment the types of requests are found from the past, of a part's own past where parts are apart."""
    parts = [{"name": "type_mix", "params": {"mixes": [mix]}} for mix in ("generation", "reading")]
    deployment = {**BASE, "workload": WorkloadSpec(name="mixture", num_requests=60, params={"parts": parts})}
    policies = ({"name": "stay"}, {"name": "vllm_reload"})
    kept = config(policies=policies, by_part=True, sample_every=1, horizon=1, every=1)
    learner: Any = make_learner(kept, Task("deployment", deployment))
    batch, types = Batch(), set()
    while len(set(batch.kinds)) < 2:
        learner.world.play(Budget(10_000), batch)
        types.add(tuple(learner.world.env.unwrapped.policy_spec.setting.mean_tokens.ravel().tolist()))
    assert len(types) == 2


@pytest.mark.full
def test_it_tells_the_parts_of_a_workload_apart() -> None:
    light, heavy = (
        {**MIXED, "workload": part.spec}
        for part in WorkloadSource(MIXED["workload"]).parts  # type: ignore[arg-type]
    )
    apart, merged = (make_policy(each["name"], **each["params"]) for each in (APART, MERGED))
    learner = make_learner(config(pooled=True, every=2), Task("dp_tp", MIXED, seed=1))
    budget = Budget(40_000)
    while not budget.over:
        learner.improve(budget)
    for seed in range(3):
        for arguments, better, worse in ((light, merged, apart), (heavy, apart, merged)):
            best, other = returned(better, seed, arguments), returned(worse, seed, arguments)
            assert best > other, "the instance is what it is meant to be"
            assert returned(learner.policy(), seed, arguments) > best + 0.3 * (other - best)


def test_a_horizon_ends_rollouts() -> None:
    learner: Any = make_learner(config(horizon=3, sample_every=1, every=1), Task("dp_tp", TWO_GPUS))
    budget = Budget(1000)
    learner.world.play(budget, Batch())
    assert budget.steps == 2 * 3 + 1


@pytest.mark.parametrize("memory", full_except([True, False], True))
def test_a_committed_rollout_goes_on_as_the_portfolio_does(memory: bool) -> None:
    """Committed to the first choice, a rollout of what the portfolio would follow is its own episode from there."""
    learner: Any = make_learner(
        config(commit=1, sample_every=1, exploration=0.0, memory=memory, every=3),
        Task("dp_tp", TWO_GPUS, seed=1),
    )
    world, batch = learner.world, Batch()
    learner.network.margin.fill_(0.0)
    policy = learner.policy()
    policy.choose = lambda portfolio: portfolio.num_decisions // 3 % 2  # now one and now the other
    world.follow(policy)
    world.play(Budget(100_000), batch)
    seeds = np.random.default_rng(np.random.SeedSequence([1, 0xA91])).integers(2**31 - 1, size=2)
    total = played(policy, make_env("dp_tp", **TWO_GPUS, split="train"), seeds)
    assert batch.returns[0][batch.chosen[0]] == pytest.approx(total, rel=1e-12)


def test_a_panel_remembers_the_mean_and_the_maximum() -> None:
    class Says:
        name, clairvoyant = "says", False

        def reset(self, spec: Any, seed: int) -> None:
            self.asked = 0

        def act(self, observation: Any, state: Any) -> int:
            self.asked += 1
            return self.asked

    spec = make_env("routing", **FLEET).unwrapped.policy_spec
    now, mean, most, length, followed = [3.0, 2.0], [2.0, 5.0], [3.0, 8.0], [np.log1p(2 / 64)], [0.0, 1.0]
    for memory, expected in ((True, now + mean + most + length + followed), (False, now + followed)):
        portfolio = PortfolioState([Start(Says()), Start(Says())], adapter_of("routing"), memory)
        portfolio.reset(spec, 0)
        portfolio.followed = 1
        for x in ([1.0, 8.0], [3.0, 2.0]):
            portfolio.observe({"x": np.array(x, np.float32)}, None)
        np.testing.assert_allclose(portfolio.state(), expected, rtol=1e-6)
        assert len(expected) == state_size(2, 2, memory)
        assert portfolio.actions == [2, 2]
        np.testing.assert_array_equal(portfolio.rows(), [[1, 0, 1], [0, 1, 0]])


def test_what_each_says_is_described_in_deployment() -> None:
    """By its room, its workers, and what the switch would cost, as the environment describes its choices."""
    env: Any = make_env("deployment", **BASE)
    observation, _ = env.reset(seed=0)
    portfolio = PortfolioState(
        [Start(make_policy("stay")), Start(make_policy("random"))], adapter_of("deployment"), memory=False
    )
    portfolio.reset(env.unwrapped.policy_spec, 0)
    portfolio.observe(observation, env.unwrapped.state)
    actions = observation["candidates"][[int(number) for number in portfolio.actions]]  # type: ignore[arg-type]
    np.testing.assert_array_equal(portfolio.rows(), np.hstack([np.eye(2), actions, [[1.0], [0.0]]]))
    assert portfolio.rows().shape[1] == 2 + adapter_of("deployment").described_size(env.observation_space) + 1


def test_a_rollout_does_not_look() -> None:
    """What is seen there is made when a policy looks, and is what the environment shows."""
    env: Any = make_env("deployment", **BASE)
    env.reset(seed=0)
    looking, other = env.fork(), env.fork()
    for action in (0, 1, 0):
        observation, reward, terminated, truncated, _ = looking.step(action)
        shown, other_reward, over = other.advance(action)
        assert (reward, terminated or truncated) == (other_reward, over)
        assert isinstance(shown, LazyObservation)
        assert set(shown) == set(observation)
        for name, part in observation.items():
            np.testing.assert_array_equal(shown[name], part)


def test_summaries_do_not_depend_on_how_many_rows_there_are() -> None:
    rows = np.array([[1.0, 4.0], [3.0, 0.0]], np.float32)
    shown = {"places": rows, "cluster": np.array([7.0], np.float32)}
    np.testing.assert_array_equal(adapter_of("routing").summary(shown), [7.0, 2.0, 2.0, 3.0, 4.0])
    twice = {**shown, "places": np.concatenate([rows, rows])}
    np.testing.assert_array_equal(adapter_of("routing").summary(twice), [7.0, 2.0, 2.0, 3.0, 4.0])


def test_classes_of_requests_are_summed_up_in_dp_tp() -> None:
    """Trained with one class of requests or with several, in any order, of which some never come."""
    env: Any = make_env("dp_tp", **TWO_GPUS)
    observation, _ = env.reset(seed=0)
    adapter = adapter_of("dp_tp")

    def summary(*classes: tuple[float, float, float]) -> Any:
        of_classes = np.array(classes, np.float32).ravel()
        cluster = np.concatenate([observation["cluster"][: len(CLUSTER_FEATURES)], of_classes])
        return adapter.summary({**observation, "cluster": cluster})

    one, other, none = (2.0, 0.25, 0.5), (1.0, 0.75, 0.0), (0.0, 0.0, 0.0)
    np.testing.assert_array_equal(summary(one), summary(one, one))
    np.testing.assert_array_equal(summary(one), summary(none, one, none))
    np.testing.assert_array_equal(summary(one, other), summary(none, other, none, one))
    np.testing.assert_array_equal(summary(none), summary(none, none))
    assert {1.5, 0.5, 0.25, 2.0, 0.75} <= set(summary(one, other).tolist())
    assert len(summary(none)) == len(summary(one, other))


def test_what_is_saved_comes_back(tmp_path) -> None:
    task = Task("dp_tp", TWO_GPUS, seed=1)
    learner: Any = make_learner(config(iterations=1, epochs=5), task)
    budget = Budget(4_000)
    while not budget.over:
        learner.improve(budget)
    learner.network.margin.fill_(0.0)
    with replacing(tmp_path / "checkpoint") as folder:
        learner.save_policy(folder)
        learner.save_training(folder)
        settings = {"agent": config(), "env": {"name": "dp_tp"}, "workload": TWO_GPUS["workload"]}
        write_description(folder, settings, learner.world.observation, learner.world.action, {})
    policy = load_policy(tmp_path)
    assert returned(policy, 3) == returned(learner.policy(), 3) == returned(policy, 3)
    copy: Any = make_learner(config(iterations=1, epochs=5), task)
    copy.restore(tmp_path / "checkpoint")
    assert returned(copy.policy(), 3) == returned(policy, 3)


def test_observations_of_other_classes_are_refused() -> None:
    policies = ({"name": "round_robin"}, {"name": "random"})
    learner = make_learner(config(policies=policies), Task("routing", FLEET))
    env = make_env("routing", **{**FLEET, "workload": WorkloadSpec(name="flying_priority", num_requests=20)})
    with pytest.raises(
        ValueError, match=r"trained on observations that come to .* other classes of requests"
    ):
        run_episode(env, learner.policy(), 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policies": ()}, r"agent.policies must name at least two policies, .* got 0"),
        ({"policies": (APART,)}, "at least two policies, .* got 1"),
        ({"policies": (APART, {"name": "load_treshold"})}, "load_threshold"),
        ({"policies": (APART, {"name": "clairvoyant_scaling"})}, "agent.policies must not be clairvoyant"),
        ({"policies": "jsq"}, "agent.policies must be a list of policies, got 'jsq'"),
        ({"policies": None}, "agent.policies must be a list of policies, got None"),
        (
            {"policies": (APART, {"path": "x"})},
            "must hold names of policies, or mappings .* got {'path': 'x'}",
        ),
        ({"policies": (APART, {"name": 5})}, "must hold names of policies, or mappings .* got {'name': 5}"),
        ({"policies": (APART, {"name": "static_tp"})}, "'static_tp' deploys once at the start"),
        ({"policies": (APART, {"name": "jsq"})}, "decides where requests go"),
        ({"every": 0}, "agent.every must be at least 1, got 0"),
        ({"by_part": True}, "agent.by_part and agent.pooled need workload=mixture, .* got flying_bursty"),
        ({"pooled": True}, "need workload=mixture, .* got flying_bursty"),
        ({"commit": 0}, "agent.commit must be at least 1, got 0"),
        ({"horizon": 0}, "agent.horizon must be at least 1, got 0"),
        ({"iterations": 0}, "agent.iterations must be at least 1, got 0"),
    ],
)
def test_mistakes_get_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_learner(config(**changes), Task("dp_tp", TWO_GPUS))
