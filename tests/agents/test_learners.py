"""Every learner finds the optimum of a tiny instance where it is known, and comes back from a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from serving_gym.agents.checkpoint import load_policy, replacing, write_description
from serving_gym.agents.config import (
    ARSConfig,
    CMAESConfig,
    DAggerConfig,
    ImitationConfig,
    LagrangianConfig,
    NetworkConfig,
    PPOConfig,
    QRDQNConfig,
    RecurrentPPOConfig,
    ResidualConfig,
    SACConfig,
    TQCConfig,
)
from serving_gym.agents.environments.adapter import ADAPTERS, Adapter
from serving_gym.agents.environments.deployment.features import EXISTS
from serving_gym.agents.environments.env_parts import Penalised
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.learner import Budget, make_learner
from serving_gym.agents.learners.search_learner import ARSSearch
from serving_gym.agents.learners.serial_env import SerialVectorEnv
from serving_gym.agents.networks.networks import BASELINE, PooledNetwork, ResidualNetwork
from serving_gym.baselines.policy import BatchPolicy
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.configuration.policies import policy_config
from serving_gym.runners.rollouts.rollout import episode_returns, run_episode
from tests.defaults import Task, make_env, make_vector_env
from tests.environments.deployment.samples import BASE as DEPLOYMENT
from tests.tiers import full_except

SLOW = GroupSpec(ReplicaSpec("llama-3.1-8b", "A100-80GB"), 1)
FAST = GroupSpec(ReplicaSpec("llama-3.1-8b", "H100", tp_size=2), 1)
# Few requests: every one of them belongs on the fast engine.
UNEQUAL = {
    "workload": WorkloadSpec(name="azure_conv_fitted", num_requests=40, rate_scale=0.5),
    "cluster": FleetConfig(groups=(SLOW, FAST)),
    "drain_limit_s": 20.0,
}
BURSTY = {"workload": WorkloadSpec(name="flying_bursty", num_requests=60)}
ZEROS = dict.fromkeys(make_policy("linear_score").config.tunables(), 0.0)
TO_THE_SLOW = {"name": "linear_score", "params": {**ZEROS, "kv_capacity": -1.0}}
TO_THE_FAST = {"name": "linear_score", "params": {**ZEROS, "kv_capacity": 1.0}}

SMALL = NetworkConfig(row_width=16, place_width=2, hidden_widths=(16,))
ON_POLICY = {
    "rollout_steps": 32, "batch_size": 128, "epochs": 4, "learning_rate": 1e-2, "discount": 0.5,
    "disturbance": 0.0, "training_stride": 1.0, "group_size": 4, "network": SMALL,
}  # fmt: skip
OFF_POLICY = {
    "buffer_size": 5000, "warm_up_steps": 300, "batch_size": 64, "discount": 0.5, "learning_rate": 5e-3,
    "disturbance": 0.0, "training_stride": 1.0, "network": SMALL,
}  # fmt: skip
VALUES = {**OFF_POLICY, "learning_rate": 8e-3, "batch_size": 256}
LEARNERS = {
    "maskable_ppo": (PPOConfig(**ON_POLICY), 4096),
    "recurrent_ppo": (RecurrentPPOConfig(**ON_POLICY, memory_width=8), 4096),
    "ppo_lagrangian": (LagrangianConfig(**ON_POLICY), 4096),
    "residual": (ResidualConfig(**ON_POLICY, baseline=TO_THE_SLOW, confidence=2.0), 8192),
    "residual_serial": (ResidualConfig(**ON_POLICY, baseline="round_robin", confidence=1.0), 4096),
    "qr_dqn": (QRDQNConfig(**VALUES, num_quantiles=5, target_update_steps=64), 20_480),
    "sac": (SACConfig(**{**OFF_POLICY, "learning_rate": 3e-3}, gradient_steps=2), 8192),
    "tqc": (TQCConfig(**OFF_POLICY), 6144),
    "ars": (ARSConfig(episodes=2, directions=4, kept_directions=2, sigma=0.5, learning_rate=0.5), 20_000),
    "cma_es": (CMAESConfig(episodes=2, population=8, sigma=0.5), 16_000),
    "cma_es_heuristic": (CMAESConfig(episodes=2, population=8, sigma=0.3, heuristic=TO_THE_SLOW), 12_000),
    "bc": (ImitationConfig(teacher=TO_THE_FAST, network=SMALL), 512),
    "dagger": (DAggerConfig(teacher=TO_THE_FAST, iterations=2, network=SMALL), 512),
}


LOOKS = 8  # at the policy while it learns

# What an untrained network does is chance; with these seeds it is not yet what is to be learned.
SEEDS = {"ars": 1, "bc": 1, "cma_es": 2, "dagger": 1}


def trained(learner, steps, enough=None):
    """Trains for so many decisions, or until the policy has been good enough at two looks in a row."""
    budget, looks, good = Budget(steps), 0, 0
    while not budget.over and good < 2:
        figures = learner.improve(budget)
        assert all(np.isfinite(value) for value in figures.values())
        if enough is not None and int(budget.progress * LOOKS) > looks:
            looks = int(budget.progress * LOOKS)
            good = good + 1 if mean_return(learner.policy()) > enough else 0
    return learner


def mean_return(policy):
    env = make_env("routing", **UNEQUAL, split="test")
    return np.mean([run_episode(env, policy, seed).metrics["return"] for seed in range(3)])


@pytest.mark.parametrize("name", full_except(LEARNERS, "maskable_ppo", "cma_es", "bc"))
def test_it_learns_that_the_fast_engine_is_better(name):
    config, steps = LEARNERS[name]
    slow, fast = (
        mean_return(make_policy(each["name"], **each["params"])) for each in (TO_THE_SLOW, TO_THE_FAST)
    )
    assert fast > slow, "the instance is what it is meant to be"
    enough = slow + 0.9 * (fast - slow)
    learner = make_learner(config, Task("routing", UNEQUAL, num_envs=8, seed=SEEDS.get(name, 0)))
    assert mean_return(learner.policy()) < enough, "it knows already"
    assert mean_return(trained(learner, steps, enough).policy()) > enough


TINY = NetworkConfig(row_width=8, place_width=2, hidden_widths=(16,))
ROLLOUTS = {"rollout_steps": 8, "batch_size": 16, "epochs": 1, "group_size": 2, "network": TINY}
MEMORY = {"buffer_size": 500, "warm_up_steps": 8, "batch_size": 8, "network": TINY}
SEARCH = {"episodes": 2, "network": TINY}
HEURISTICS = {"routing": "linear_score", "dp_tp": "load_threshold"}
TEACHERS = {"routing": "preserve", "dp_tp": "flying_serving"}
ARGUMENTS = {"routing": UNEQUAL, "dp_tp": BURSTY}


def tiny_configs(env):
    teacher, heuristic = TEACHERS[env], policy_config(HEURISTICS[env])
    return {
        "recurrent_ppo": RecurrentPPOConfig(**ROLLOUTS, memory_width=8),
        "ppo_lagrangian": LagrangianConfig(**ROLLOUTS),
        "residual": ResidualConfig(**ROLLOUTS, baseline=teacher),
        "qr_dqn": QRDQNConfig(**MEMORY, num_quantiles=5),
        "sac": SACConfig(**MEMORY),
        "tqc": TQCConfig(**MEMORY),
        "ars": ARSConfig(**SEARCH, directions=2, kept_directions=1),
        "cma_es": CMAESConfig(**SEARCH, population=4),
        "cma_es_heuristic": CMAESConfig(**SEARCH, population=4, heuristic=heuristic),
        "bc": ImitationConfig(teacher=teacher, epochs=2, network=TINY),
        "dagger": DAggerConfig(teacher=teacher, iterations=2, epochs=2, network=TINY),
    }


@pytest.mark.parametrize("env_name", ["routing", "dp_tp"])
@pytest.mark.parametrize("name", full_except(tiny_configs("routing"), "qr_dqn", "cma_es"))
def test_what_is_saved_comes_back_and_goes_on(name, env_name, tmp_path):
    config, task = tiny_configs(env_name)[name], Task(env_name, ARGUMENTS[env_name], num_envs=2)
    env = make_env(env_name, **task.arguments)
    learner = trained(make_learner(config, task), 64)
    with replacing(tmp_path / "checkpoint") as folder:
        learner.save_policy(folder)
        learner.save_training(folder)
        settings = {"agent": config, "env": {"name": env_name}, "workload": task.arguments["workload"]}
        write_description(folder, settings, env.observation_space, env.action_space, {})
    policy = load_policy(tmp_path)
    assert not policy.clairvoyant
    episode = run_episode(env, policy, 3)
    assert episode.decisions == run_episode(env, learner.policy(), 3, policy.name).decisions
    assert episode.decisions == run_episode(env, policy, 3).decisions, "it remembers an episode"
    if name != "qr_dqn":
        assert episode.metrics["commands_refused"] == 0
    copy = make_learner(config, task)
    copy.restore(tmp_path / "checkpoint")
    assert episode.decisions == run_episode(env, copy.policy(), 3, policy.name).decisions
    copy.improve(Budget(128, steps=64))
    if isinstance(policy, BatchPolicy):
        batch = make_vector_env(env_name, 2, **task.arguments)
        returns = episode_returns(batch, policy, env.policy_spec, [3, 4])
        assert returns[0] == pytest.approx(episode.metrics["return"], rel=1e-6)


@pytest.mark.parametrize("name", full_except(["bc", "dagger", "api"], "bc", "api"))
def test_what_was_gathered_when_time_ran_out_is_learned_from_once(name, tmp_path):
    api = APIConfig(iterations=2, horizon=5, sample_every=1, epochs=2, hidden=8, start=TO_THE_SLOW)
    config, task = {**tiny_configs("routing"), "api": api}[name], Task("routing", UNEQUAL, num_envs=2)
    learner, budget = make_learner(config, task), Budget(5_000, max_minutes=5.0)
    assert not learner.finish(budget), "nothing is gathered"
    learner.improve(budget)
    assert learner.iteration == 0
    budget.spent_s = 600.0  # that is what a validation takes
    learner.save_policy(tmp_path)
    learner.save_training(tmp_path)
    copy = make_learner(config, task)
    copy.restore(tmp_path)
    for each in (learner, copy):
        assert all(np.isfinite(value) for value in each.finish(budget).values())
        assert each.iteration == 1
        assert not each.finish(budget), "it has just done so"


def test_who_has_done_all_iterations_leaves_what_comes_then():
    api = APIConfig(iterations=1, horizon=5, sample_every=1, epochs=2, hidden=8, start=TO_THE_SLOW)
    learner, budget = make_learner(api, Task("routing", UNEQUAL, num_envs=2)), Budget(1_000)
    while not budget.over:
        learner.improve(budget)
    budget.total_steps, learner._fitting = budget.steps + 2, 0.5
    learner.improve(budget)  # what is left is too little
    assert budget.over
    assert not learner.finish(budget)
    assert learner.iteration == 1


@pytest.mark.parametrize("name", full_except(["sac", "tqc", "qr_dqn"], "sac"))
def test_who_learns_from_a_memory_fills_it_again_by_its_policy(name, tmp_path):
    config, task = tiny_configs("routing")[name], Task("routing", UNEQUAL, num_envs=2)
    learner = trained(make_learner(config, task), 64)
    learner.save_policy(tmp_path)
    learner.save_training(tmp_path)
    copy = make_learner(config, task)
    copy.restore(tmp_path)
    if name != "qr_dqn":
        assert copy.agent.log_ent_coef.item() == learner.agent.log_ent_coef.item() != 0.0
        copy.agent.action_space.sample = None  # nothing is left to chance but what the policy says
    before = {key: value.clone() for key, value in copy.agent.policy.state_dict().items()}

    def changed(steps):
        copy.improve(Budget(steps))
        return any(
            not torch.equal(before[key], value) for key, value in copy.agent.policy.state_dict().items()
        )

    assert not changed(config.warm_up_steps)
    assert changed(config.warm_up_steps)


@pytest.mark.parametrize(
    "name", full_except(["maskable_ppo", *tiny_configs("routing")], "maskable_ppo", "cma_es", "bc")
)
def test_the_seed_decides_what_is_learned(name, tmp_path):
    config = {"maskable_ppo": PPOConfig(**ROLLOUTS), **tiny_configs("routing")}[name]
    learned = []
    for run, seed in enumerate([3, 3, 4]):
        learner = trained(make_learner(config, Task("routing", UNEQUAL, num_envs=2, seed=seed)), 256)
        (tmp_path / str(run)).mkdir()
        learner.save_policy(tmp_path / str(run))
        learned.append({each.name: each.read_bytes() for each in (tmp_path / str(run)).iterdir()})
    assert learned[0] == learned[1] != learned[2]


@pytest.mark.parametrize(
    "name", full_except(["recurrent_ppo", "residual", "qr_dqn", "sac"], "recurrent_ppo", "qr_dqn")
)
def test_time_between_decisions_reaches_every_learner(name):
    """In routing no two decisions are equally far apart; a discount over the mean is taken to each one's power."""
    config, task = tiny_configs("routing")[name], Task("routing", UNEQUAL, num_envs=2)
    agent = trained(make_learner(config, task), 64).agent
    buffer = getattr(agent, "rollout_buffer", None) or agent.replay_buffer
    number = buffer.buffer_size if buffer.full else buffer.pos
    intervals = buffer.intervals[:number]
    assert len(np.unique(intervals)) > 5
    if name in ("qr_dqn", "sac"):
        sampled = buffer.sample(32).discounts.numpy().ravel()
        possible = np.power(np.float32(config.discount), intervals).ravel()
        assert np.isin(sampled, possible).all()


class OnlyMasks(Adapter):
    def mask(self, observation, state, spec):
        return observation["candidates"][:, EXISTS] > 0


def test_an_environment_whose_adapter_has_a_mask_alone_is_learned_as_it_is(monkeypatch):
    monkeypatch.setitem(ADAPTERS, "deployment", "tests.agents.test_learners:OnlyMasks")
    task = Task("deployment", DEPLOYMENT, num_envs=2)
    learner = trained(make_learner(PPOConfig(**ROLLOUTS), task), 16)
    env = make_env("deployment", **DEPLOYMENT)
    assert run_episode(env, learner.policy(), 0).metrics["arrived"] > 0
    cloned = trained(make_learner(ImitationConfig(teacher="stay", network=TINY), task), 16)
    assert {decision["action"] for decision in run_episode(env, cloned.policy(), 0).decisions} == {0}


@pytest.mark.parametrize(
    ("config", "env_name", "words"),
    [
        (ImitationConfig(), "routing", "agent.teacher must name a policy"),
        (ImitationConfig(teacher="jqs"), "routing", "did you mean 'jsq'"),
        (ResidualConfig(), "routing", "agent.baseline must name a policy"),
        (SACConfig(), "deployment", "describes no actions"),
        (APIConfig(), "deployment", "needs counterfactual rollouts"),
        (ImitationConfig(teacher="vllm_static"), "deployment", "no numbered action"),
        (PPOConfig(), "rooting", "no env 'rooting'"),
        (PPOConfig(**ROLLOUTS), "deployment", "has impossible actions, but its adapter has no `mask`"),
        (RecurrentPPOConfig(**ROLLOUTS), "deployment", "has impossible actions"),
        (ImitationConfig(teacher="stay"), "deployment", "has impossible actions"),
        (CMAESConfig(**SEARCH, population=4), "deployment", "has impossible actions"),
    ],
)
def test_mistakes_get_one_sentence(config, env_name, words, monkeypatch):
    monkeypatch.delitem(ADAPTERS, "deployment")  # so that there is one without an adapter of its own
    task = Task(env_name, ARGUMENTS.get(env_name, DEPLOYMENT), num_envs=2)
    with pytest.raises(ValueError, match=words):
        trained(make_learner(config, task), 4)


def test_an_agent_without_masks_takes_an_environment_without_a_mask(monkeypatch):
    monkeypatch.delitem(ADAPTERS, "deployment")
    learner = make_learner(PPOConfig(**ROLLOUTS, name="ppo"), Task("deployment", DEPLOYMENT, num_envs=2))
    episode = run_episode(make_env("deployment", **DEPLOYMENT), trained(learner, 16).policy(), 0)
    assert episode.metrics["arrived"] > 0


def test_a_training_that_diverges_says_so():
    """Distributions are not checked number by number while PPO learns; weights are, once a round."""
    config = PPOConfig(**{**ON_POLICY, "rollout_steps": 4, "batch_size": 8, "epochs": 1})
    learner = make_learner(config, Task("routing", UNEQUAL, num_envs=4))
    learner.improve(Budget(16))
    assert torch.distributions.Distribution._validate_args
    with torch.no_grad():
        next(learner.agent.policy.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="diverged; try a learning rate below"):
        learner._check_finite()


def test_the_price_of_broken_promises_rises_until_the_limit_is_kept():
    learner = make_learner(
        LagrangianConfig(**ROLLOUTS, missed_limit=0.25, multiplier=1.0, multiplier_rate=0.5),
        Task("routing", UNEQUAL, num_envs=2),
    )
    penalised = learner._penalised
    penalised.missed_shares = [0.75, 0.5]
    assert learner._reprice() == pytest.approx(
        {"multiplier": 1.0 + 0.5 * (0.5 + 0.25), "missed_share": 0.625}
    )
    penalised.missed_shares = [0.0] * 20
    assert learner._reprice()["multiplier"] == 0.0
    assert "missed_share" not in learner._reprice()


def test_broken_promises_are_counted_for_what_the_price_is_paid():
    """A step's reward less the price of the promises it broke, over one plus the price; shares are of two a request."""
    strict = {
        **UNEQUAL,
        "slos": {"standard": SLO(ttft_s=1e-4, tpot_s=1e-6)},
        "objective": Objective(scale=1.0),
    }
    plain, priced = (SerialVectorEnv("routing", 1, strict) for _ in range(2))
    penalised = Penalised(priced, multiplier=3.0)
    plain.reset(seed=[5])
    penalised.reset(seed=[5])
    broken, done = 0.0, False
    while not done:
        _, rewards, ended, cut, infos = plain.step(np.array([0]))
        _, with_price, *_ = penalised.step(np.array([0]))
        np.testing.assert_allclose(with_price, (rewards - 3.0 * infos["cost"]) / 4.0)
        broken, done = broken + infos["cost"][0], bool(ended[0] or cut[0])
    assert broken > 40
    assert penalised.missed_shares == [broken / (2 * 40)]


def test_residual_corrections_are_bounded():
    observation = spaces.Dict({"x": spaces.Box(0, 1, (3,), np.float32)})
    torch.manual_seed(0)
    inner = PooledNetwork(observation, 4, TINY)
    network = ResidualNetwork(inner, confidence=3.0, bound=2.0)
    with torch.no_grad():
        inner.out.bias.copy_(torch.tensor([1e3, -1e3, 0.0, 0.0]))
        seen = {"x": torch.rand(5, 3), BASELINE: torch.eye(4)[torch.tensor([0, 1, 2, 3, 0])]}
        scores = network(seen).squeeze(2)
        np.testing.assert_allclose(scores[:, 0], 2.0 + 3.0 * seen[BASELINE][:, 0], rtol=1e-5)
        np.testing.assert_allclose(scores[:, 1], -2.0 + 3.0 * seen[BASELINE][:, 1], rtol=1e-5)


def test_ars_moves_as_in_its_text():
    """Mania et al. 2018, algorithm 1, worked by hand: two directions, the better one kept."""

    class Directions:
        def standard_normal(self, shape):
            return np.array([[1.0, 0.0], [0.0, 2.0]])

    config = ARSConfig(directions=2, kept_directions=1, sigma=0.5, learning_rate=0.1)
    search = ARSSearch(config, np.array([1.0, 1.0]), Directions())
    tried = search.ask()
    np.testing.assert_allclose(tried, [[1.5, 1.0], [1.0, 2.0], [0.5, 1.0], [1.0, 0.0]])
    search.tell(tried, np.array([1.0, 5.0, 2.0, 3.0]))  # max(1, 2) < max(5, 3); spread of (5, 3) is 1
    np.testing.assert_allclose(search.mean, [1.0, 1.0 + 0.1 / (1 * 1.0) * (5.0 - 3.0) * 2.0])
