"""Decisions taken inside the kernel are those that the same score takes outside, and bring the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serving_gym.agents.environments.routing.adapter import RoutingAdapter
from serving_gym.agents.networks.set_network import SetNetwork
from serving_gym.agents.policies.network_policy import NetworkPolicy, place_scores
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.interface.fleet import Crash, FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.routing.batch import RoutingBatch
from serving_gym.envs.routing.config import FaultRates, RoutingConfig
from serving_gym.envs.routing.episode import RoutingEpisode
from serving_gym.envs.routing.spaces import make_spaces
from serving_gym.envs.workload.registry import WorkloadSpec

TWO_SPEEDS = FleetConfig(
    groups=(
        GroupSpec(ReplicaSpec("llama-3.1-8b", "A100-80GB"), 2),
        GroupSpec(ReplicaSpec("llama-3.1-8b", "H100", tp_size=2), 1),
    )
)
SETTINGS = {
    "usual": {},
    "more_rows_than_places": {"max_places": 5},
    "held_and_lost": {
        "cluster": FleetConfig(
            groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 2),),
            crashes=(Crash(0.6, 0), Crash(0.9, 1)),
            start_fixed_s=0.5,
            storage_bytes_per_s=1e11,
        ),
        "queue_capacity": 8,
        "drain_limit_s": 1.0,
    },
    "sessions": {
        "workload": WorkloadSpec(
            "chat_sessions",
            num_requests=120,
            rate_rps=20.0,
            params={"think_median_s": 1.0, "turns_median": 3.0, "patience_s": 4.0},
        )
    },
    "faults": {"faults": FaultRates(crashes_per_hour=400.0, slow_downs_per_hour=400.0, slow_s=2.0)},
}


MOST = 150


def episodes(**changes):
    workload = WorkloadSpec(name="azure_conv_fitted", num_requests=120, rate_scale=6.0)
    config = RoutingConfig(**{"workload": workload, "cluster": TWO_SPEEDS, "split": "test", **changes})
    batch = RoutingBatch([RoutingEpisode(config) for _ in range(3)])
    return batch, batch.reset(range(3), [1, 2, 3])


def network_policy(batch, direct=False):
    torch.manual_seed(1)
    observation, action = make_spaces(batch.episodes[0])
    context = observation["request"].shape[0] + observation["cluster"].shape[0]
    adapter = RoutingAdapter()
    network = SetNetwork(context, observation["places"].shape[1], 16, (8,), adapter.present, direct=direct)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3.0)  # so that scores differ
        if network.direct is not None:
            network.direct.copy_(torch.linspace(-1.0, 1.0, len(network.direct)))
    scorer = network.export()
    scores = place_scores(scorer, ("request", "cluster"))
    return NetworkPolicy(scores, adapter, "x", observation, action, in_kernel=scorer.in_kernel())


@pytest.mark.parametrize("kind", ["sum", "network", "both"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_it_is_what_deciding_outside_brings(setting, kind):
    batch, seen = episodes(**SETTINGS[setting])
    policy = make_policy("linear_score") if kind == "sum" else network_policy(batch, kind == "both")
    window_s = np.array([0.5, np.inf, np.inf])
    forks = batch.branch([0, 1, 2])
    first = np.where(seen.masks[:, 0], 0, batch.hold)
    rolled, decisions = forks.roll(first, policy.in_kernel, window_s, MOST)

    rewards, elapsed_s, taken = np.zeros(3), np.zeros(3), 0
    going, actions, chosen = np.ones(3, bool), first, set()
    for _ in range(MOST):
        seen, outcomes = batch.step(actions)
        rewards += np.where(going, outcomes.rewards(batch.episodes[0].config.objective), 0.0)
        elapsed_s += np.where(going, outcomes.dt_s, 0.0)
        taken += int(going.sum())
        going &= (elapsed_s < window_s - 1e-9) & ~batch.done
        if not going.any():
            break
        observation = {"places": seen.places, "request": seen.request, "cluster": seen.cluster}
        actions = policy.act_batch(observation, seen.masks)
        chosen |= set(actions[going].tolist())
    objective = forks.episodes[0].config.objective
    np.testing.assert_allclose(rolled.rewards(objective), rewards, rtol=1e-9)
    np.testing.assert_allclose(rolled.dt_s, elapsed_s, rtol=1e-9)
    assert decisions == taken
    assert len(chosen) > 1
    if setting == "held_and_lost":
        assert batch.hold in chosen
        assert rolled.table[:, 3].sum() > 0


def test_it_can_be_gone_on_from():
    batch, _ = episodes()
    policy = make_policy("linear_score")
    objective = batch.episodes[0].config.objective
    forever, first = np.full(3, np.inf), np.zeros(3, np.int64)
    whole, all_of_them = batch.branch([0, 1, 2]).roll(first, policy.in_kernel, forever, 1 << 40)
    seen, _ = batch.branch([0, 1, 2]).step(first)
    second = policy.act_batch({"places": seen.places}, seen.masks)
    some, one_each = batch.roll(first, policy.in_kernel, forever, 1)
    assert one_each == 3
    assert not batch.done.any()
    rest, others = batch.roll(second, policy.in_kernel, forever, 1 << 40)
    assert batch.done.all()
    assert others == all_of_them - 3
    np.testing.assert_allclose(
        some.rewards(objective) + rest.rewards(objective), whole.rewards(objective), rtol=1e-9
    )


def test_a_network_of_more_layers_stays_outside():
    assert SetNetwork(5, 20, 8, (8, 8), 1).export().in_kernel() is None


def test_squares_weigh_late_first_tokens_also_of_requests_that_still_wait():
    batch, seen = episodes()
    policy = make_policy("linear_score")
    first = np.where(seen.masks[:, 0], 0, batch.hold)
    squares, until_s = [], []
    for window_s in (0.5, np.inf):
        forks = batch.branch([0, 1, 2])
        rolled, _ = forks.roll(first, policy.in_kernel, np.full(3, window_s), 10**6)
        squares.append(rolled.squares)
        until_s.append([episode.simulator.now_s for episode in forks.episodes])
    (promise,) = batch.episodes[0].slos
    for i, episode in enumerate(forks.episodes):
        records = episode.simulator.results()
        for square, until in zip(squares, until_s, strict=True):
            here = records.arrival_s <= until[i]
            waited = np.minimum(records.ttft_s[here], until[i] - records.arrival_s[here])
            assert square[i] == pytest.approx(np.sum((waited / promise.ttft_s) ** 2), rel=1e-9)


@pytest.mark.parametrize("kind", ["sum", "network"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_copies_in_the_kernel_bring_what_forks_bring(setting, kind):
    """Also where requests come and go between two calls, and where the control plane is needed."""
    batch, _ = episodes(**SETTINGS[setting])
    score = (make_policy("linear_score") if kind == "sum" else network_policy(batch)).in_kernel
    objective = batch.episodes[0].config.objective
    owners = np.array([0, 0, 1, 2, 2, 1])
    window_s = np.array([0.5, 0.3, np.inf, np.inf, 1.0, 0.2])
    for step in range(40):
        first = np.where(np.arange(6) % 2, 0, step % 2).astype(np.int64)
        if step % 8 == 0:
            forks, decisions = batch.branch(owners.tolist()).roll(first, score, window_s, MOST)
            copies, also = batch.roll_branches(owners.tolist(), first, score, window_s, MOST)
            np.testing.assert_array_equal(copies.table, forks.table)
            np.testing.assert_array_equal(copies.unfinished, forks.unfinished)
            np.testing.assert_array_equal(copies.rewards(objective), forks.rewards(objective))
            assert copies.truncated.tolist() == forks.truncated.tolist()
            assert copies.terminated.tolist() == forks.terminated.tolist()
            assert decisions == also
        batch.step(np.full(3, step % 2))
    batch.roll(np.zeros(3, np.int64), score, np.full(3, np.inf), 1 << 40)
    assert batch.done.all()
    forks, none = batch.branch(owners.tolist()).roll(first, score, window_s, MOST)
    copies, also = batch.roll_branches(owners.tolist(), first, score, window_s, MOST)
    assert none == also == 0
    np.testing.assert_array_equal(copies.rewards(objective), forks.rewards(objective))
    np.testing.assert_array_equal(copies.unfinished, forks.unfinished)
