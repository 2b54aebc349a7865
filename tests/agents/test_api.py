"""Approximate policy iteration: it learns an instance whose optimum is known, and its parts do what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from serving_gym.agents.environments.dp_tp.candidates import (
    encode_actions,
    encode_state,
    shortlist,
    stay_action,
)
from serving_gym.agents.environments.dp_tp.counterfactuals import DPTPCounterfactuals
from serving_gym.agents.environments.dp_tp.score_policy import find_options, next_step
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import Batch, relative_advantages
from serving_gym.agents.learners.api.data import in_spreads
from serving_gym.agents.learners.api.fit import fit
from serving_gym.agents.learners.api.learner import APILearner
from serving_gym.agents.learners.learner import Budget
from serving_gym.agents.networks.score_network import Committee, ScoreCommittee, TrainableNetwork
from serving_gym.envs.dp_tp.action import decode_action, encode_action
from serving_gym.envs.dp_tp.config import DPTPConfig
from serving_gym.envs.dp_tp.episode import DPTPEpisode
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.commands import Redeploy, SetLayout, SwitchMode
from serving_gym.envs.workload.registry import WorkloadSpec
from tests.defaults import Task
from tests.tiers import full_except

TWO_GPUS = ClusterSpec(num_gpus=2)
LIGHT = {"name": "flying_bursty", "num_requests": 200, "rate_scale": 0.3}


def arguments(**changes: Any) -> dict[str, Any]:
    return {"workload": WorkloadSpec(**LIGHT), "cluster": TWO_GPUS, "split": "train", **changes}


def episode_return(core: DPTPEpisode, decide: Any, seed: int) -> float:
    """Return of a validation episode; `decide` maps the core to an action."""
    core.reset(seed, split="validation")
    total = 0.0
    while not core.done:
        total += core.step(decide(core)).reward
    return total


def static(layout: tuple[int, ...]) -> Any:
    return lambda core: Redeploy(layout, weights="whole") if core.state.now_s == 0 else None


def greedy(learner: APILearner) -> Any:
    policy = learner.policy()
    shapes = learner.world.core.encoder.shapes
    engines, cluster = (np.empty(shapes[part], np.float32) for part in ("engines", "cluster"))
    policy.reset(learner.world.spec, 0)

    def decide(core: DPTPEpisode) -> Any:
        core.observe_into(engines, cluster)
        return policy.act({"engines": engines, "cluster": cluster}, core.state)

    return decide


@pytest.mark.parametrize("even", full_except([False, True], False))
def test_it_learns_to_merge_under_light_load(even: bool) -> None:
    """With few requests one engine over both GPUs is faster for each of them; apart, half of the node stands idle."""
    config = APIConfig(iterations=2, sample_every=2, even=even)
    learner = APILearner(config, Task("dp_tp", arguments(), seed=1))
    budget = Budget(total_steps=30_000)
    while not budget.over:
        learner.improve(budget)
    core = DPTPEpisode(DPTPConfig(**arguments()))
    for seed in range(3):
        merged = episode_return(core, static((2,)), seed)
        apart = episode_return(core, static((1, 1)), seed)
        learned = episode_return(core, greedy(learner), seed)
        assert merged > apart, "the instance is what it is meant to be"
        assert learned > 0.5 * (merged + apart)


def test_training_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    config, task = APIConfig(iterations=2, epochs=3), Task("dp_tp", arguments(), seed=1)
    first = APILearner(config, task)
    budget = Budget(total_steps=20_000)
    while (first.iteration < 1 or not first.gathered.states) and not budget.over:
        first.improve(budget)
    first.save_policy(tmp_path)
    first.save_training(tmp_path)
    second = APILearner(config, task)
    second.restore(tmp_path)
    assert second.iteration == first.iteration == 1
    assert len(second.gathered.states) == len(first.gathered.states) > 0
    for mine, theirs in zip(first.network.parameters(), second.network.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    for name in ("states", "actions", "returns"):
        for one, other in zip(getattr(first.batches[0], name), getattr(second.batches[0], name), strict=True):
            np.testing.assert_array_equal(one, other)
    assert first.rng.random() == second.rng.random()


def test_networks_decide_together_by_the_mean_of_their_scores() -> None:
    torch.manual_seed(0)
    networks = [TrainableNetwork(7, 5, 6) for _ in range(3)]
    states, actions = torch.randn(11, 7), torch.randn(11, 4, 5)
    one = Committee(networks)
    expected = torch.stack([each(states, actions) for each in networks]).mean(dim=0)
    torch.testing.assert_close(one(states, actions), expected)
    exported = one.export()
    for state, choices, scores in zip(
        states.numpy(), actions.numpy(), expected.detach().numpy(), strict=True
    ):
        np.testing.assert_allclose(exported.scores(state, choices), scores, rtol=1e-4, atol=1e-6)


def decides(learner: APILearner) -> int:
    """How many networks decide in rollouts."""
    network = learner.world.present.network
    return len(network.middle_weight) if isinstance(network, ScoreCommittee) else 1


def test_a_committee_is_of_the_last_networks_and_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    config, task = (
        APIConfig(iterations=4, epochs=2, hidden=8, committee=2),
        Task("dp_tp", arguments(), seed=1),
    )
    first = APILearner(config, task)
    trained: list[nn.Module] = []
    budget = Budget(total_steps=30_000)
    while first.iteration < 3:
        before = first.iteration
        first.improve(budget)
        if first.iteration > before:
            trained.append(first.network)
            assert [*first.earlier, first.network] == trained[
                -2:
            ]  # the one that nothing has trained has no say
            assert decides(first) == len(trained[-2:])
    first.save_policy(tmp_path)
    first.save_training(tmp_path)
    second = APILearner(config, task)
    second.restore(tmp_path)
    assert len(second.earlier) == 1
    assert decides(second) == 2
    for one, again in zip([*first.earlier, first.network], [*second.earlier, second.network], strict=True):
        for weight, same in zip(one.parameters(), again.parameters(), strict=True):
            torch.testing.assert_close(weight, same)
    core = DPTPEpisode(DPTPConfig(**arguments()))
    assert episode_return(core, greedy(first), 0) == episode_return(core, greedy(second), 0)


def test_one_decides_alone_where_there_is_a_start_and_in_routing() -> None:
    assert APIConfig(committee=3, start={"name": "static_dp"}).members == 1
    with pytest.raises(ValueError, match=r"agent\.committee must be at least 1"):
        APIConfig(committee=0)
    with pytest.raises(
        ValueError, match=r"agent\.committee is for env=autoscaling\|deployment\|dp_tp alone, got 2"
    ):
        APILearner(APIConfig(committee=2), Task("routing", {}))


def test_other_environments_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no env 'cooking' to learn"):
        APILearner(APIConfig(), Task("cooking", {}))


def test_shortlist_keeps_one_of_each_kind_of_layout_the_nearest() -> None:
    target = (4, 2, 1, 1)
    mask = np.ones(78, bool).tobytes()
    layouts = {decode_action(int(action), 8).layout for action in shortlist(target, mask)}
    assert len(layouts) == len({tuple(sorted(layout)) for layout in layouts}) == 10
    assert target in layouts
    assert (4, 2, 2) in layouts, "only the last two base engines change, not the first four"


def test_even_layouts_are_reached_one_group_after_another() -> None:
    """While there are requests, half of a node goes on serving as the other half is merged."""
    core = DPTPEpisode(DPTPConfig(**arguments(cluster=ClusterSpec())))
    core.reset(0)
    core.step(Redeploy((2, 2, 2, 2), weights="whole"), 30.0)
    assert next_step(core.state, (2, 2, 2, 2)) is None
    assert next_step(core.state, (1,) * 8) == SetLayout((1,) * 8, SwitchMode.HARD)
    seen = []
    while core.state.layout != (4, 4):
        options = find_options(core.observe(), core.state, core.mask(), None, even=True)
        assert [layout for layout in options.wanted if len(set(layout)) > 1] in (
            [],
            [core.state.target_layout],
        )
        step = options.command(options.wanted.index((4, 4)), core.state)
        seen.append(core.state.layout)
        assert step is None or step.mode == SwitchMode.SOFT
        assert step is None or not core.state.transitions, "what is being merged is waited for"
        assert not core.step(step, 0.5).refused
    assert {layout for layout in seen if layout != (2, 2, 2, 2)} <= {(4, 2, 2), (2, 2, 4)}
    assert len(set(seen)) == 2


def test_nothing_is_merged_soon_after_a_split() -> None:
    """But for what is being merged already; and a policy waits as long as it is told."""
    core = DPTPEpisode(DPTPConfig(**arguments(cluster=ClusterSpec())))
    core.reset(0)
    core.step(Redeploy((2, 2, 2, 2), weights="whole"), 30.0)
    options = find_options(core.observe(), core.state, core.mask(), None, even=True, merges=False)
    assert set(options.wanted) == {(2, 2, 2, 2), (1,) * 8}
    core.step(next_step(core.state, (4, 4)), 10.0)
    assert sorted(core.state.layout) == [2, 2, 4]
    options = find_options(core.observe(), core.state, core.mask(), None, even=True, merges=False)
    assert (4, 4) in options.wanted

    config = APIConfig(even=True, dwell_s=50.0)
    learner = APILearner(config, Task("dp_tp", arguments(cluster=ClusterSpec()), seed=1))
    policy = learner.policy()
    core.reset(0)
    policy.reset(learner.world.spec, 0)
    core.step(Redeploy((2, 2, 2, 2), weights="whole"), 20.0)
    rng = np.random.default_rng(0)
    widest, split_s = 2, -np.inf
    for _ in range(200):
        policy.network.out_weight[:] = rng.standard_normal(len(policy.network.out_weight))
        before, action = core.state, policy.act(core.observe(), core.state)
        if action is not None and len(action.layout) > len(before.target_layout):
            split_s = before.now_s
        if action is not None and len(action.layout) < len(before.target_layout):
            assert before.now_s - split_s >= 50.0 or len(set(before.target_layout)) > 1
        core.step(action)
        widest = max(widest, *core.state.layout)
    assert widest > 2


def test_rollouts_go_all_the_way_to_the_layout_that_they_try() -> None:
    config = APIConfig(even=True, horizon=20, commit=20)
    world = DPTPCounterfactuals(
        config, Task("dp_tp", arguments(cluster=ClusterSpec())), np.random.default_rng(0)
    )
    world.core.reset(0)
    world.core.step(Redeploy((2, 2, 2, 2), weights="whole"), 30.0)
    core = world.core.fork()
    expected = core.step(next_step(core.state, (4, 4)), 1.0).reward
    while core.state.layout != (4, 4):
        expected += core.step(next_step(core.state, (4, 4)), 1.0).reward
    expected += core.step(None, 50.0 - core.state.now_s).reward
    found = world._rollout(next_step(world.core.state, (4, 4)), (4, 4))
    assert found == pytest.approx(expected, rel=1e-6)


class _Splits:
    """A policy that wants two engines of two GPUs."""

    def choose(self, known: Any, options: Any) -> int:
        return options.wanted.index((1, 1)) if (1, 1) in options.wanted else int(options.stay)


@pytest.mark.parametrize(("linger_s", "least", "most"), [(0.0, 0.0, 0.15), (60.0, 0.25, 0.65)])
def test_what_chance_begins_with_is_kept_to(linger_s: float, least: float, most: float) -> None:
    """Where chance comes once in 20 s the policy takes it back at once, or half of the time is chance's."""
    config = APIConfig(even=True, exploration=0.05, linger_s=linger_s, sample_every=1_000_000)
    world = DPTPCounterfactuals(config, Task("dp_tp", arguments()), np.random.default_rng(0))
    world.present = _Splits()
    merged = []
    for _ in range(3000):
        world.play(Budget(total_steps=10_000), Batch())
        merged.append(world.core.state.target_layout == (2,))
    assert least <= np.mean(merged) <= most


@pytest.mark.parametrize(
    ("power", "expected"),
    [(1.0, [0.0, -0.5, -3.0]), (0.5, [0.0, -0.5 * 10**0.5, -3.0 * 10**0.5]), (0.0, [0.0, -5.0, -30.0])],
)
def test_advantages_are_relative_to_a_power_of_the_cost(power: float, expected: list[float]) -> None:
    (found,) = relative_advantages([np.array([-9.0, -14.0, -99.0])], APIConfig(cost_power=power))
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("power", [-0.1, 1.5])
def test_powers_of_the_cost_are_shares(power: float) -> None:
    with pytest.raises(ValueError, match=r"agent.cost_power must lie in \[0, 1\]"):
        APIConfig(cost_power=power)


def test_an_even_shortlist_has_layouts_of_equal_engines_and_one_way_to_each() -> None:
    possible = np.ones(78, bool)
    commands = [decode_action(int(action), 8) for action in shortlist((2, 2, 2, 2), possible.tobytes(), True)]
    assert {command.layout: command.mode for command in commands} == {
        (8,): SwitchMode.SOFT,
        (4, 4): SwitchMode.SOFT,
        (2, 2, 2, 2): SwitchMode.SEQUENTIAL,  # to stay
        (1,) * 8: SwitchMode.HARD,
    }
    from_uneven = [
        decode_action(int(action), 8) for action in shortlist((4, 2, 1, 1), possible.tobytes(), True)
    ]
    assert len(from_uneven) == 5
    assert SetLayout((4, 2, 1, 1), SwitchMode.SEQUENTIAL) in from_uneven
    without = possible.copy()
    without[encode_action(SetLayout((4, 4), SwitchMode.SOFT))] = False
    without[[encode_action(SetLayout((8,), mode)) for mode in SwitchMode]] = False
    left = [decode_action(int(action), 8) for action in shortlist((2, 2, 2, 2), without.tobytes(), True)]
    assert SetLayout((4, 4), SwitchMode.SEQUENTIAL) in left
    assert (8,) not in {command.layout for command in left}


def test_action_vectors_tell_what_would_change() -> None:
    engines = np.zeros((8, 13), np.float32)
    engines[:, 6] = np.arange(8)  # running
    target = (4, 4)
    actions = np.array(
        [
            stay_action(target),
            encode_action(SetLayout((4, 2, 2), SwitchMode.HARD)),
            encode_action(SetLayout((8,), SwitchMode.SOFT)),
        ]
    )
    stay, split, merge = encode_actions(engines, target, actions)
    ranks = 4
    assert stay[ranks : ranks + 3].tolist() == [0.0, 0.0, 0.0]
    assert split[ranks : ranks + 3].tolist() == [0.5, 0.0, 0.5]
    assert merge[ranks : ranks + 3].tolist() == [1.0, 1.0, 0.0]
    assert split[ranks + 3 + 3] == pytest.approx((4 + 5 + 6 + 7) / 8)
    assert merge[ranks + 3] == pytest.approx(28 / 8)
    assert split[-2] == 1.0, "hard"
    assert merge[-3] == 1.0, "soft"


def test_permuted_nodes_look_alike_to_the_state_vector() -> None:
    rng = np.random.default_rng(0)
    engines, cluster = rng.random((8, 13)).astype(np.float32), rng.random(18).astype(np.float32)
    np.testing.assert_allclose(
        encode_state(engines, cluster, (4, 4)), encode_state(engines[::-1].copy(), cluster, (4, 4)), rtol=1e-5
    )


def test_fit_finds_the_best_action_in_spite_of_rare_disasters() -> None:
    """Action 1 is usually a little better than action 0, but where the state says so it is a disaster."""
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (512, 2)).astype(np.float32)
    actions = np.broadcast_to(np.eye(2, dtype=np.float32), (512, 2, 2)).copy()
    disaster = states[:, 0] > 0.8
    advantages = np.zeros((512, 2), np.float32)
    advantages[:, 1] = np.where(disaster, -100.0, 0.1)
    torch.manual_seed(0)
    network = TrainableNetwork(2, 2, 16)
    config = APIConfig(epochs=200, learning_rate=5e-3, entropy_weights=(0.3, 1e-3))
    fit(
        network,
        states,
        actions,
        advantages,
        np.ones((512, 2), bool),
        config,
        torch.Generator().manual_seed(0),
    )
    run = network.export()
    chosen = np.array([np.argmax(run.scores(state, actions[0])) for state in states])
    assert (chosen[disaster] == 0).all()
    assert (chosen[states[:, 0] < 0.5] == 1).mean() > 0.95


def test_advantages_are_in_the_spreads_of_their_own_kind() -> None:
    small = [np.array([-1.0, 1.0]), np.array([-3.0, 3.0, np.nan])]
    large = [1000.0 * values for values in small]
    kinds = np.array(["chat", "chat", "long contexts", "long contexts"])
    table = in_spreads([*small, *large], kinds, widest=3)
    np.testing.assert_allclose(table[:2], table[2:], rtol=1e-6)
    np.testing.assert_allclose(table[0], [-1 / 5**0.5, 1 / 5**0.5, np.nan], rtol=1e-6)
    assert np.isnan(table[1, 2])


def test_the_last_weights_are_averaged_and_states_varied() -> None:
    """With a rate of learning that is too high weights jump about; their mean over the end lies between them."""
    rng = np.random.default_rng(0)
    data = (
        rng.normal(size=(64, 2)).astype(np.float32),
        rng.normal(size=(64, 3, 2)).astype(np.float32),
        rng.normal(size=(64, 3)).astype(np.float32),
        np.ones((64, 3), bool),
    )
    weights, seen = {}, []

    def vary(states: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        seen.append(len(states))
        return states

    for averaged, epochs in ((0.0, 3), (0.0, 4), (0.5, 4)):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        scorer = _Joined(network)
        config = APIConfig(epochs=epochs, batch_size=64, learning_rate=0.1, averaged=averaged)
        fit(scorer, *data, config, torch.Generator().manual_seed(0), vary)
        weights[averaged, epochs] = torch.cat([each.detach().flatten() for each in network.parameters()])
    assert seen == [64] * 11
    assert (weights[0.5, 4] != weights[0.0, 4]).any()
    start, end = weights[0.0, 3], weights[0.0, 4]
    assert (weights[0.5, 4] - end).abs().mean() < (start - end).abs().mean()


class _Joined(nn.Module):
    """Scores of actions from a state and theirs by one network."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([states.unsqueeze(1).expand(-1, actions.shape[1], -1), actions], dim=2)
        return self.network(rows).squeeze(2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"averaged": 1.5}, "agent.averaged must lie in"),
        ({"linger_s": -1.0}, "agent.linger_s must be finite and not negative, got -1.0"),
        ({"dwell_s": float("inf")}, "agent.dwell_s must be finite and not negative, got inf"),
        ({"largest_fleet": 0.5}, "agent.largest_fleet must be finite and at least 1"),
        ({"largest_fleet": float("inf")}, "agent.largest_fleet must be finite and at least 1"),
    ],
)
def test_what_is_not_allowed_is_said(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        APIConfig(**settings)


def test_larger_fleets_are_for_routing_alone() -> None:
    with pytest.raises(
        ValueError, match=r"agent.largest_fleet is for env=routing alone, got 4.0 in env=dp_tp"
    ):
        APILearner(APIConfig(largest_fleet=4.0), Task("dp_tp", arguments()))


@pytest.mark.parametrize("tail", [-1.0, float("nan"), float("inf")])
def test_a_weight_of_the_tail_is_a_number_that_is_not_negative(tail: float) -> None:
    with pytest.raises(ValueError, match=r"agent.tail must be finite and not negative"):
        APIConfig(tail=tail)


def test_only_a_router_minds_late_first_tokens() -> None:
    with pytest.raises(ValueError, match=r"agent.tail is for env=routing alone, got 1.0 in env=dp_tp"):
        APILearner(APIConfig(tail=1.0), Task("dp_tp", arguments()))
