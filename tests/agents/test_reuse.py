"""What an agent learns of when models are asked for again, and who goes for a newcomer by that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from agents.learner import Budget, Task, make_learner
from agents.reuse.config import ReuseConfig
from agents.reuse.learner import ReuseLearner
from agents.reuse.moments import DEMAND, DEMAND_FEATURES, joined, moments_of
from agents.reuse.network import SPANS_S, ReuseNetwork, gittins, loss_of, targets
from envs.registration import make_env
from envs.sharing.config import SharingConfig
from envs.sharing.deciders import SharingDeciders
from envs.sharing.episode import SharingEpisode
from envs.sharing.state import Event, InstanceStatus
from envs.simulator.sharing.features import PLACE_FEATURES
from envs.workload.registry import WorkloadSpec
from envs.workload.schema import Workload
from runners.rollout import run_episode
from tests.agents.test_sharing import WARM

_LATENCY_SCALE_S = 0.5
QUICK = ReuseConfig(width=8, episodes=2, passes=1, batch_size=16)


def asked_at(*times_s: tuple[float, ...]) -> Workload:
    """Requests of some models at given times."""
    arrival_s = np.concatenate(times_s)
    order, ones = np.argsort(arrival_s), np.ones(len(arrival_s), np.int64)
    model = np.repeat(np.arange(len(times_s)), [len(each) for each in times_s])
    return Workload(
        arrival_s=arrival_s[order],
        input_tokens=ones,
        output_tokens=ones,
        model_id=model[order].astype(np.int32),
        models=tuple(f"llama-2-7b#{number}" for number in range(len(times_s))),
    )


def test_a_moment_shows_what_the_observation_shows():
    deciders = SharingDeciders([SharingEpisode(SharingConfig(**WARM))])
    seen, episode, compared = deciders.reset([0], [3]), deciders.episodes[0], 0
    workload = episode.simulator.workload
    while not episode.done:
        if episode.event == Event.PLACEMENT:
            state = episode.state
            model = state.requests["model"][state.offered]
            own = (workload.model_id == model) & (workload.arrival_s <= state.now_s + 1e-9)
            until_now = asked_at(tuple(workload.arrival_s[own].tolist()), (state.now_s + 1e-6,))
            moment = moments_of(until_now, 1, _LATENCY_SCALE_S, _Latest()).seen[0]
            for slot in np.flatnonzero(state.instances["model"] == model):
                np.testing.assert_allclose(seen.places[0, slot, DEMAND], moment, atol=2e-4)
                compared += 1
        seen, _ = deciders.step(seen.places[:, :, 0].argmax(axis=1))
    assert compared > 3


class _Latest:
    """Draws the end of every interval."""

    def random(self, number: int) -> np.ndarray:
        return np.full(number, 1.0)


def test_moments_say_how_long_it_is_until_the_next_request():
    moments = moments_of(asked_at((0.0, 100.0, 300.0), (50.0,)), 40, 1.0, np.random.default_rng(0))
    at_s = np.expm1(moments.seen[:40, DEMAND_FEATURES.index("known_s")])
    after = np.searchsorted([0.0, 100.0, 300.0], at_s, side="right")
    np.testing.assert_allclose(moments.until_s[:40], np.array([0.0, 100.0, 300.0])[after] - at_s, atol=1e-3)
    assert moments.asked[:40].all()
    assert not moments.asked[40:].any()
    np.testing.assert_allclose(
        moments.until_s[40:] + np.expm1(moments.seen[40:, DEMAND_FEATURES.index("known_s")]), 250.0, atol=1e-3
    )
    assert len(joined([moments, moments], 100)) == 100


def test_what_was_not_seen_to_end_says_nothing_of_later_spans():
    moments = moments_of(asked_at((0.0, 10.0), (0.0, 1000.0)), 1, 1.0, _Latest())
    moments = replace(moments, until_s=np.array([5.0, 5.0]), asked=np.array([True, False]))
    hit, known = targets(moments)
    assert hit[0].argmax() == np.searchsorted(SPANS_S, 5.0)
    assert hit.sum() == 1
    assert known[0].sum() == np.searchsorted(SPANS_S, 5.0) + 1, "up to the span of the request"
    assert known[1].sum() == np.searchsorted(SPANS_S, 5.0), "up to the last span that passed in whole"


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.1])
def test_the_index_of_requests_without_memory_is_their_rate(rate):
    spans = np.diff(SPANS_S, prepend=0.0)
    index = gittins((1.0 - np.exp(-rate * spans))[None])
    assert index[0] == pytest.approx(rate, rel=0.02)


def test_the_index_of_a_timer_rises_until_it_is_due():
    due = np.zeros((2, len(SPANS_S)))
    due[0, np.searchsorted(SPANS_S, 280.0)] = 1.0  # in 200 to 280 s
    due[1, np.searchsorted(SPANS_S, 16.0)] = 1.0
    late, soon = gittins(due)
    assert late == pytest.approx(1.0 / 240.0)
    assert soon == pytest.approx(1.0 / 12.0)


def test_the_network_finds_rates():
    """Half of the models are asked for every ten seconds on the mean, the others every two hundred."""
    rng = np.random.default_rng(0)
    gaps = np.array([10.0, 200.0] * 60)
    times_s = [rng.exponential(gap, size=int(3000 / gap)).cumsum() for gap in gaps]
    workload = asked_at(*(tuple(each[each < 1500.0]) for each in times_s))
    moments = moments_of(workload, 30, _LATENCY_SCALE_S, rng)
    torch.manual_seed(0)
    network = ReuseNetwork(16)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    hit, known = targets(moments)
    for _ in range(200):
        loss = loss_of(network(torch.from_numpy(moments.seen)), hit, known)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    worth = network.export().worth(moments.seen).reshape(len(gaps), -1).mean(axis=1)
    assert worth[gaps == 10.0].mean() == pytest.approx(0.1, rel=0.35)
    assert worth[gaps == 200.0].mean() < 0.25 * worth[gaps == 10.0].mean()


def test_numpy_says_what_torch_says():
    torch.manual_seed(1)
    network, seen = ReuseNetwork(8), torch.rand(5, len(DEMAND_FEATURES)) * 8
    with torch.no_grad():
        expected = torch.sigmoid(network(seen)).numpy()
    np.testing.assert_allclose(network.export().hazards(seen.numpy()), expected, rtol=1e-5)


def state_of_three(env, models, idle_s):
    """A node with idle instances, told from what the environment shows."""
    env.reset(seed=0)
    state = env.unwrapped.state
    instances = state.instances.copy()
    for slot, (model, idle) in enumerate(zip(models, idle_s, strict=True)):
        row = instances[slot]
        row["model"], row["status"], row["idle_s"] = model, InstanceStatus.SERVING, idle
    rows = np.zeros((len(instances) + 1, len(PLACE_FEATURES)), np.float32)
    rows[: len(models), PLACE_FEATURES.index("replaces")] = 1
    return replace(state, instances=instances), rows


def test_a_spare_goes_first_and_companions_count():
    env = make_env("sharing", **WARM)
    policy = ReuseLearner(QUICK, Task("sharing", WARM)).policy()
    policy.reset(env.unwrapped.policy_spec, 0)
    slots = np.arange(3)
    state, rows = state_of_three(env, [2, 3, 3], [30.0, 20.0, 10.0])
    alone = policy.lost(rows, state, slots)
    assert alone[1] < alone[2] < alone[0], "of two of a model the one that has been idle longer"
    assert alone[1] == pytest.approx(0.0, abs=1e-6)
    state, rows = state_of_three(env, [2, 3, 4], [30.0, 20.0, 10.0])
    alone = policy.lost(rows, state, slots)
    rows[2, PLACE_FEATURES.index("replaces")] = 2
    together = policy.lost(rows, state, slots)
    assert together[2] == pytest.approx(alone[2] + alone[0]), (
        "with it goes the one that has been idle the longest"
    )
    np.testing.assert_array_equal(together[:2], alone[:2])


def test_training_goes_on_where_it_was(tmp_path):
    first = make_learner(QUICK, Task("sharing", WARM))
    budget = Budget(2000)
    first.improve(budget)
    assert 0 < budget.steps <= 2 * QUICK.moments * 8
    first.save_policy(tmp_path)
    first.save_training(tmp_path)
    again = make_learner(QUICK, Task("sharing", WARM, seed=1))
    again.restore(tmp_path)
    env = make_env("sharing", **WARM)
    same = [run_episode(env, learner.policy(), 3).metrics["return"] for learner in (first, again)]
    assert same[0] == same[1]
    assert again.rng.bit_generator.state == first.rng.bit_generator.state


def test_it_is_about_shared_nodes():
    with pytest.raises(ValueError, match=r"agent=reuse learns which instances to keep.* got env=routing"):
        ReuseLearner(QUICK, Task("routing", {}))
    chat = {**WARM, "workload": WorkloadSpec("azure_conv_fitted", num_requests=30)}
    with pytest.raises(ValueError, match="workload 'azure_conv_fitted' names no models"):
        ReuseLearner(QUICK, Task("sharing", WARM, also=(chat,)))
    with pytest.raises(ValueError, match="width must be at least 1"):
        ReuseConfig(width=0)
    with pytest.raises(ValueError, match="fill must be positive"):
        ReuseConfig(fill=0.0)
