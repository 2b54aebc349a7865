"""Several trainings as one policy: their networks decide together; what does not fit is refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from serving_gym.agents.checkpoint import load_policy, read_config, write_description
from serving_gym.agents.environments.dp_tp.score_policy import ScorePolicy
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import Batch
from serving_gym.agents.learners.api.learner import APILearner, read_network
from serving_gym.agents.learners.joining import join, learn_together
from serving_gym.agents.learners.learner import Budget
from serving_gym.agents.learners.portfolio.config import PortfolioConfig
from serving_gym.agents.learners.portfolio.learner import PortfolioLearner
from serving_gym.agents.learners.portfolio.policy import PortfolioPolicy
from serving_gym.agents.networks.score_network import NEVER, Committee, ScoreCommittee, TrainableNetwork
from serving_gym.agents.networks.set_network import SetNetwork
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners import join as command
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import Task, make_env
from tests.tiers import full_except

ARGUMENTS = {
    "workload": WorkloadSpec(name="flying_bursty", num_requests=50),
    "cluster": ClusterSpec(num_gpus=2),
}


SHARING = {"workload": WorkloadSpec(name="functions_fitted")}
ROUTING = {"workload": WorkloadSpec(name="azure_conv_fitted", num_requests=50)}


def router(folder: Path, seed: int, **settings: Any) -> SetNetwork:
    """Writes a router whose network nothing was trained on, and returns the network."""
    config = APIConfig(**settings)
    learner = APILearner(config, Task("routing", ROUTING, seed=seed))
    network = learner.network
    assert isinstance(network, SetNetwork)
    assert network.direct is not None
    network.lean_on(np.random.default_rng(seed).normal(size=len(network.direct)).astype(np.float32))
    with torch.no_grad():
        last = network.score[-1]
        assert isinstance(last, nn.Linear)
        last.weight.normal_()
    folder.mkdir()
    learner.save_policy(folder)
    described = {"agent": config, "env": {"name": "routing"}, "workload": ROUTING["workload"]}
    write_description(folder, described, learner.world.observation, learner.world.action, {})
    return network


def checkpoint(
    folder: Path, seed: int, env: dict[str, Any] | None = None, **settings: Any
) -> TrainableNetwork:
    """Writes one whose network nothing was trained on, and returns the network."""
    config = APIConfig(hidden=8, **settings)
    learner = APILearner(config, Task("dp_tp", ARGUMENTS, seed=seed))
    folder.mkdir()
    learner.save_policy(folder)
    described = {"agent": config, "env": {"name": "dp_tp", **(env or {})}, "workload": ARGUMENTS["workload"]}
    write_description(folder, described, learner.world.observation, learner.world.action, {})
    assert isinstance(learner.network, TrainableNetwork)
    return learner.network


def choosing(folder: Path, seed: int, **settings: Any) -> TrainableNetwork:
    """Writes a portfolio whose network nothing was trained on, and returns the network."""
    config = PortfolioConfig(policies=("flying_serving", "load_threshold"), hidden=8, **settings)
    learner = PortfolioLearner(config, Task("dp_tp", ARGUMENTS, seed=seed))
    network = learner.network
    assert isinstance(network, TrainableNetwork)
    network.margin.fill_(0.1 * seed)
    folder.mkdir()
    learner.save_policy(folder)
    described = {"agent": config, "env": {"name": "dp_tp"}, "workload": ARGUMENTS["workload"]}
    write_description(folder, described, learner.world.observation, learner.world.action, {})
    return network


def choice(network: TrainableNetwork) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A state and two policies, of which the first is followed at first."""
    rng = np.random.default_rng(0)
    state = rng.normal(size=network.state.in_features).astype(np.float32)
    actions = rng.normal(size=(2, network.action.in_features)).astype(np.float32)
    actions[:, -1] = [1.0, 0.0]
    return state, actions


def said(networks: list[TrainableNetwork], state: Any, actions: Any) -> list[Any]:
    """Scores of each by itself."""
    with torch.no_grad():
        seen = torch.from_numpy(state)[None], torch.from_numpy(actions)[None]
        return [network(*seen)[0].numpy() for network in networks]


def scores(folder: Path, state: np.ndarray[Any, Any], actions: np.ndarray[Any, Any]) -> Any:
    policy = load_policy(folder)
    assert isinstance(policy, ScorePolicy | PortfolioPolicy)
    return policy.network.scores(state, actions)


def test_networks_of_all_have_the_same_say(tmp_path: Path) -> None:
    networks = [checkpoint(tmp_path / str(seed), seed) for seed in range(3)]
    assert join([str(tmp_path / "0"), str(tmp_path / "1")], tmp_path / "two") == 2
    assert join([str(tmp_path / "two"), str(tmp_path / "2")], tmp_path / "three") == 3
    rng = np.random.default_rng(0)
    state = rng.normal(size=networks[0].state.in_features).astype(np.float32)
    actions = rng.normal(size=(4, networks[0].action.in_features)).astype(np.float32)
    with torch.no_grad():
        seen = torch.from_numpy(state)[None], torch.from_numpy(actions)[None]
        expected = torch.stack([network(*seen)[0] for network in networks]).mean(dim=0).numpy()
    np.testing.assert_allclose(scores(tmp_path / "three", state, actions), expected, rtol=1e-4, atol=1e-6)
    assert read_config(tmp_path / "three")["agent"]["committee"] == 3
    assert "| networks | 3 |" in (tmp_path / "three" / "card.md").read_text()


def test_weights_say_how_much_each_has_to_say(tmp_path: Path) -> None:
    networks = [checkpoint(tmp_path / str(seed), seed) for seed in range(3)]
    join([str(tmp_path / "0"), str(tmp_path / "1")], tmp_path / "two", [1.0, 3.0])
    join([str(tmp_path / "two"), str(tmp_path / "2")], tmp_path / "three", [1, 2])
    rng = np.random.default_rng(0)
    state = rng.normal(size=networks[0].state.in_features).astype(np.float32)
    actions = rng.normal(size=(4, networks[0].action.in_features)).astype(np.float32)
    with torch.no_grad():
        seen = torch.from_numpy(state)[None], torch.from_numpy(actions)[None]
        first, second, third = (network(*seen)[0].numpy() for network in networks)
    expected = {"two": 0.25 * first + 0.75 * second, "three": (0.5 * first + 1.5 * second + 2 * third) / 4}
    for name, values in expected.items():
        np.testing.assert_allclose(scores(tmp_path / name, state, actions), values, rtol=1e-4, atol=1e-6)
    assert "| weights | 1, 3 |" in (tmp_path / "two" / "card.md").read_text()


@pytest.mark.parametrize("weights", [(), (1.0, 3.0)])
def test_routers_of_different_widths_become_one_network(tmp_path: Path, weights: tuple[float, ...]) -> None:
    guard = {"times_least": 1.5}
    networks = [
        router(tmp_path / "wide", 0, hidden=12, guard=guard),
        router(tmp_path / "narrow", 1, hidden=8, start={"name": "linear_score", "params": {}}),
    ]
    assert join([str(tmp_path / "wide"), str(tmp_path / "narrow")], tmp_path / "both", weights) == 2
    agent = read_config(tmp_path / "both")["agent"]
    assert (agent["hidden"], agent["guard"]["times_least"]) == (20, 1.5)
    policy: Any = load_policy(tmp_path / "both")
    env = make_env("routing", **ROUTING)
    shapes = env.observation_space
    assert isinstance(shapes, spaces.Dict)
    rng = np.random.default_rng(0)
    seen = {name: rng.normal(size=(6, *(box.shape or ()))).astype(np.float32) for name, box in shapes.items()}
    context = torch.from_numpy(np.concatenate([seen["request"], seen["cluster"]], axis=1))
    with torch.no_grad():
        first, second = (n(context, torch.from_numpy(seen["places"])).numpy() for n in networks)
    expected = 0.25 * first + 0.75 * second if weights else (first + second) / 2
    np.testing.assert_allclose(policy.scores(seen)[:, : expected.shape[1]], expected, rtol=1e-4, atol=1e-5)
    assert policy.in_kernel is not None
    assert len(policy.in_kernel.score) == 20
    episode = run_episode(env, policy, 0)
    assert len(episode.records.arrival_s) == 50


@pytest.mark.parametrize("weights", [(), (1.0, 3.0)])
def test_choices_among_policies_are_joined_with_their_margins(
    tmp_path: Path, weights: tuple[float, ...]
) -> None:
    networks = [choosing(tmp_path / str(seed), seed) for seed in range(1, 3)]
    assert join([str(tmp_path / "1"), str(tmp_path / "2")], tmp_path / "both", weights) == 2
    state, actions = choice(networks[0])
    first, second = said(networks, state, actions)
    expected = 0.25 * first + 0.75 * second if weights else (first + second) / 2
    np.testing.assert_allclose(scores(tmp_path / "both", state, actions), expected, rtol=1e-4, atol=1e-6)
    episode = run_episode(make_env("dp_tp", **ARGUMENTS), load_policy(tmp_path / "both"), 0)
    assert len(episode.records.arrival_s) == 50


def test_who_has_not_seen_the_like_is_for_the_policy_that_was_started_from(tmp_path: Path) -> None:
    start = {"name": "static_dp", "params": {}}
    networks = [checkpoint(tmp_path / str(seed), seed, start=start) for seed in range(2)]
    states = np.zeros((1, networks[0].state.in_features), np.float32)
    networks[0].know(states)
    torch.save(networks[0].state_dict(), tmp_path / "0" / "weights.pt")
    join([str(tmp_path / "0"), str(tmp_path / "1")], tmp_path / "both")
    actions = np.random.default_rng(0).normal(size=(3, networks[0].action.in_features)).astype(np.float32)
    actions[:, -1] = [0.0, 1.0, 0.0]
    for state in (states[0], states[0] + 5.0):
        first, second = said(networks, state, actions)
        expected = (first + second) / 2
        np.testing.assert_allclose(scores(tmp_path / "both", state, actions), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(first, actions[:, -1])


def test_one_that_never_departs_does_not_forbid_it_to_the_others(tmp_path: Path) -> None:
    networks = [choosing(tmp_path / str(seed), seed) for seed in range(3)]
    networks[0].margin.fill_(NEVER)
    torch.save(networks[0].state_dict(), tmp_path / "0" / "weights.pt")
    join([str(tmp_path / str(seed)) for seed in range(3)], tmp_path / "all", [1.0, 100.0, 100.0])
    state, actions = choice(networks[0])
    own, first, second = said(networks, state, actions)
    np.testing.assert_array_equal(own, actions[:, -1])
    expected = (own + 300.0 / 201.0 * (first + second)) / 3.0
    np.testing.assert_allclose(scores(tmp_path / "all", state, actions), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_those_that_place_requests_on_shared_nodes_are_joined_too(tmp_path: Path) -> None:
    networks = []
    for seed in range(2):
        learner = APILearner(APIConfig(hidden=8), Task("sharing", SHARING, seed=seed))
        assert isinstance(learner.network, SetNetwork)
        networks.append(learner.network)
        (tmp_path / str(seed)).mkdir()
        learner.save_policy(tmp_path / str(seed))
        described = {"agent": learner.config, "env": {"name": "sharing"}, "workload": SHARING["workload"]}
        write_description(
            tmp_path / str(seed), described, learner.world.observation, learner.world.action, {}
        )
    join([str(tmp_path / "0"), str(tmp_path / "1")], tmp_path / "both", [2.0, 1.0])
    policy: Any = load_policy(tmp_path / "both")
    rng = np.random.default_rng(0)
    seen = {
        name: rng.normal(size=(3, *(box.shape or ()))).astype(np.float32)
        for name, box in learner.world.observation.items()
    }
    context = torch.from_numpy(np.concatenate([seen["request"], seen["cluster"]], axis=1))
    with torch.no_grad():
        first, second = (n(context, torch.from_numpy(seen["places"])).numpy() for n in networks)
    expected = (2 * first + second) / 3
    np.testing.assert_allclose(policy.scores(seen)[:, : expected.shape[1]], expected, rtol=1e-4, atol=1e-5)


def test_a_joined_router_is_trained_on_as_one(tmp_path: Path) -> None:
    for seed in range(2):
        router(tmp_path / str(seed), seed, hidden=8)
    join([str(tmp_path / "0"), str(tmp_path / "1")], tmp_path / "both")
    start = {"name": "checkpoint", "path": str(tmp_path / "both")}
    config = APIConfig(
        hidden=16, start=start, warm=True, iterations=1, horizon=5, epochs=1, learning_rate=1e-9
    )
    learner, budget = APILearner(config, Task("routing", ROUTING)), Budget(total_steps=3000)
    while not budget.over:
        learner.improve(budget)
    joined: Any = load_policy(tmp_path / "both")
    assert learner.iteration == 1
    assert isinstance(learner.network, SetNetwork)
    np.testing.assert_allclose(learner.network.row.weight.detach().numpy().T, joined.in_kernel.row, atol=1e-5)


def test_the_first_says_how_long_to_wait_after_a_split(tmp_path: Path) -> None:
    checkpoint(tmp_path / "hasty", 0, dwell_s=5.0)
    checkpoint(tmp_path / "slow", 1, dwell_s=60.0)
    for names, expected in ((("hasty", "slow"), 5.0), (("slow", "hasty"), 60.0)):
        join([str(tmp_path / name) for name in names], tmp_path / names[0] / "joined")
        policy: Any = load_policy(tmp_path / names[0] / "joined")
        assert policy.dwell_s == expected


def test_what_answers_other_questions_is_not_joined(tmp_path: Path) -> None:
    checkpoint(tmp_path / "plain", 0)
    checkpoint(tmp_path / "even", 0, even=True)
    checkpoint(tmp_path / "finer", 0, env={"scales": {"requests": 1.0}})
    checkpoint(tmp_path / "started", 0, start={"name": "static_dp", "params": {}})
    choosing(tmp_path / "choosing", 0)
    choosing(tmp_path / "hurried", 0, every=1)
    plain = str(tmp_path / "plain")
    for other, message in (
        ([], "checkpoints must be two or more"),
        ([str(tmp_path / "even")], "its agent.even is True, that of the other False"),
        (
            [str(tmp_path / "started")],
            r"its agent.start is \{'name': 'static_dp'.*\}, that of the other None",
        ),
        (["zoo/routing"], "its env is routing, that of the other dp_tp"),
        (
            ["zoo/autoscaling"],
            "'zoo/autoscaling' is of agent=cma_es; those of agent=api and agent=portfolio alone",
        ),
        ([str(tmp_path / "choosing")], "its agent is portfolio, that of the other api"),
        ([plain + "/"], "is there twice"),
        ([str(tmp_path / "finer")], r"its env.scales is \{'requests': 1.0\}, that of the other None"),
        (["zoo/dp_tp"], r"its observation is .*'engines': \(8, 13\).*, that of the other .*\(2, 13\)"),
        ([str(tmp_path / "nothing")], "no checkpoint in"),
    ):
        with pytest.raises(ValueError, match=message):
            join([plain, *other], tmp_path / "out")
        assert not (tmp_path / "out").exists()
    for weights in ([1.0], [1.0, 0.0], [1.0, float("nan")], [1.0, 1.0, 1.0]):
        with pytest.raises(
            ValueError, match="weights must be none, or a positive number for each of the 2 check"
        ):
            join([plain, str(tmp_path / "finer")], tmp_path / "out", weights)
    with pytest.raises(ValueError, match=r"its agent\.every is 1, that of the other 2"):
        join([str(tmp_path / "choosing"), str(tmp_path / "hurried")], tmp_path / "out")
    before = (tmp_path / "plain" / "weights.pt").read_bytes()
    with pytest.raises(ValueError, match="is where the new checkpoint is to be"):
        join([str(tmp_path / "even"), plain], tmp_path / "plain")
    assert (tmp_path / "plain" / "weights.pt").read_bytes() == before


def training(folder: Path, seed: int, states: int = 300, **settings: Any) -> Batch:
    """Writes the end of a training at whose states a feature of the actions says what is best; returns these."""
    config = APIConfig(hidden=16, **settings)
    learner = APILearner(config, Task("dp_tp", ARGUMENTS, seed=seed))
    assert isinstance(learner.network, TrainableNetwork)
    rng = np.random.default_rng(seed)
    batch = Batch()
    for _ in range(states):
        state = rng.normal(size=learner.network.state.in_features).astype(np.float32)
        actions = rng.normal(size=(3, learner.network.action.in_features)).astype(np.float32)
        returns = -10.0 + 3.0 * actions[:, 0].astype(float)
        batch.add(state, actions, returns, 0)
    learner.batches = [batch]
    folder.mkdir(parents=True)
    learner.save_policy(folder)
    learner.save_training(folder)
    described = {"agent": config, "env": {"name": "dp_tp"}, "workload": ARGUMENTS["workload"]}
    write_description(folder, described, learner.world.observation, learner.world.action, {})
    return batch


def right(folder: Path, batch: Batch) -> float:
    """Share of states at which the best action has the highest score."""
    return float(
        np.mean(
            [
                scores(folder, state, actions).argmax() == returns.argmax()
                for state, actions, returns in zip(batch.states, batch.actions, batch.returns, strict=True)
            ]
        )
    )


@pytest.mark.full
def test_new_networks_learn_from_the_states_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(2):
        training(tmp_path / "runs" / str(seed) / "last", seed)
    unseen = training(tmp_path / "unseen", 9)
    names = [str(tmp_path / "runs" / str(seed)) for seed in range(2)]
    assert learn_together(names, tmp_path / "anew", 2, 40, 0) == 600
    join([f"{name}/last" for name in names], tmp_path / "joined")
    assert right(tmp_path / "joined", unseen) < 0.6
    assert right(tmp_path / "anew", unseen) > 0.8
    agent = read_config(tmp_path / "anew")["agent"]
    assert (agent["committee"], agent["epochs"]) == (2, 40)
    words = [f"checkpoints=[{','.join(names)}]", "epochs=40", "networks=2", f"out={tmp_path}/again"]
    assert command.main(words) == 0
    assert "Networks that learned from 600 states of 2 trainings: 2" in capsys.readouterr().out
    state, actions = unseen.states[0], unseen.actions[0]
    np.testing.assert_array_equal(
        scores(tmp_path / "again", state, actions), scores(tmp_path / "anew", state, actions)
    )


def test_states_that_say_nothing_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training(tmp_path / "one", 0)
    training(tmp_path / "quiet_hours_count", 1, cost_power=0.5)
    checkpoint(tmp_path / "no_states", 2)
    one = str(tmp_path / "one")
    with pytest.raises(ValueError, match=r"its agent\.cost_power is 0\.5, that of the other 1\.0"):
        learn_together([one, str(tmp_path / "quiet_hours_count")], tmp_path / "out", 1, 1, 0)
    with pytest.raises(ValueError, match=r"no states of a training in .*no_states"):
        learn_together([one, str(tmp_path / "no_states")], tmp_path / "out", 1, 1, 0)
    for seed in range(2):
        training(tmp_path / f"begun_{seed}", seed, states=0)
    with pytest.raises(ValueError, match="have met no states yet; train for longer"):
        learn_together([str(tmp_path / f"begun_{seed}") for seed in range(2)], tmp_path / "out", 1, 1, 0)
    with pytest.raises(ValueError, match="is there twice"):
        learn_together([one, one], tmp_path / "out", 1, 1, 0)
    for seed in range(2):
        training(tmp_path / f"started_{seed}", seed, start={"name": "static_dp"})
    with pytest.raises(ValueError, match="epochs is for agent=api without a start"):
        learn_together([str(tmp_path / f"started_{seed}") for seed in range(2)], tmp_path / "out", 1, 1, 0)
    for words, why in (
        (["epochs=0"], "epochs must be at least 1"),
        (["epochs=2", "networks=0"], "networks must be at least 1"),
        (["epochs=2", "weights=[1,2]"], "leave weights or epochs out"),
        (["networks=8"], "networks and seed are for new networks: set epochs"),
    ):
        assert command.main([f"checkpoints=[{one},{one}]", *words, f"out={tmp_path}/out"]) == 2
        assert why in capsys.readouterr().err


@pytest.mark.parametrize("env", full_except(["autoscaling", "deployment"], "autoscaling"))
def test_networks_of_other_environments_decide_together_too(tmp_path: Path, env: str) -> None:
    learner = APILearner(APIConfig(hidden=8, committee=2), Task(env, {}))
    assert isinstance(learner.network, TrainableNetwork)
    other = learner._new_network()
    assert isinstance(other, TrainableNetwork)
    learner.earlier = [other]
    learner.save_policy(tmp_path)
    read = read_network(learner.adapter, learner.world.observation, learner.config, tmp_path)
    assert isinstance(read, Committee)
    for one, again in zip([other, learner.network], read.networks, strict=True):
        torch.testing.assert_close(dict(one.state_dict()), dict(again.state_dict()))
    policy: Any = learner.policy()
    assert isinstance(policy.network, ScoreCommittee)


def test_the_command_writes_a_run_that_can_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(2):
        checkpoint(tmp_path / str(seed), seed)
    assert command.main([f"checkpoints=['{tmp_path}/[01]']", f"out={tmp_path}/both"]) == 0
    assert "2 networks of 2 checkpoints joined into an ensemble" in capsys.readouterr().out
    described = read_config(tmp_path / "both" / "checkpoint")
    assert described["env"] == {"name": "dp_tp"}
    assert described["workload"]["name"] == "flying_bursty"
    assert (
        f"| joined | {tmp_path}/0, {tmp_path}/1 |"
        in (tmp_path / "both" / "checkpoint" / "card.md").read_text()
    )
    episode = run_episode(make_env("dp_tp", **ARGUMENTS), load_policy(tmp_path / "both"), 0)
    assert len(episode.records.arrival_s) == 50
    assert command.main([f"checkpoints=[{tmp_path}/0]", f"out={tmp_path}/one"]) == 2
    assert "checkpoints must be two or more" in capsys.readouterr().err
