"""What an agent learns of when models are asked for again, and who goes for a newcomer by that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from serving_gym.agents.checkpoint import load_policy, replacing, write_description
from serving_gym.agents.learners.learner import Budget, make_learner
from serving_gym.agents.learners.reuse.config import ReuseConfig
from serving_gym.agents.learners.reuse.learner import ReuseLearner
from serving_gym.agents.learners.reuse.moments import (
    DEMAND,
    DEMAND_FEATURES,
    SCALE_S,
    draw_moments,
    joined,
    moments_of,
)
from serving_gym.agents.learners.reuse.network import SPANS_S, ReuseNetwork, gittins, loss_of, targets
from serving_gym.envs.interface.sharing import Event, InstanceStatus
from serving_gym.envs.sharing.batch import SharingBatch
from serving_gym.envs.sharing.config import SharingConfig, SharingScales
from serving_gym.envs.sharing.episode import SharingEpisode
from serving_gym.envs.simulator.sharing.features import PLACE_FEATURES
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.rollouts.rollout import run_episode
from tests.agents.test_sharing import LIGHT, WARM
from tests.defaults import Task, make_env
from tests.environments.sharing.samples import GPU

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
    batch = SharingBatch([SharingEpisode(SharingConfig(**WARM))])
    seen, episode, compared = batch.reset([0], [3]), batch.episodes[0], 0
    workload = episode.simulator.workload
    while not episode.done:
        if episode.event == Event.PLACEMENT:
            state = episode.state
            model = state.requests["model"][state.offered]
            own = (workload.model_id == model) & (workload.arrival_s <= state.now_s + 1e-9)
            until_now = asked_at(tuple(workload.arrival_s[own].tolist()), (state.now_s + 1e-6,))
            moment = moments_of(until_now, 1, _Latest()).seen[0]
            for slot in np.flatnonzero(state.instances["model"] == model):
                np.testing.assert_allclose(seen.places[0, slot, DEMAND], moment, atol=2e-4)
                compared += 1
        seen, _ = batch.step(seen.places[:, :, 0].argmax(axis=1))
    assert compared > 3


class _Latest:
    """Draws the end of every interval."""

    def random(self, number: int) -> np.ndarray:
        return np.full(number, 1.0)


def test_moments_say_how_long_it_is_until_the_next_request():
    moments = moments_of(asked_at((0.0, 100.0, 300.0), (50.0,)), 40, np.random.default_rng(0))
    known_s = SCALE_S * np.expm1(moments.seen[:, DEMAND_FEATURES.index("known_s")])
    at_s = known_s[:40]
    after = np.searchsorted([0.0, 100.0, 300.0], at_s, side="right")
    np.testing.assert_allclose(moments.until_s[:40], np.array([0.0, 100.0, 300.0])[after] - at_s, atol=1e-3)
    assert moments.asked[:40].all()
    assert not moments.asked[40:].any()
    np.testing.assert_allclose(moments.until_s[40:] + known_s[40:], 250.0, atol=1e-3)
    assert len(joined([moments, moments], 100)) == 100


def test_what_was_not_seen_to_end_says_nothing_of_later_spans():
    moments = moments_of(asked_at((0.0, 10.0), (0.0, 1000.0)), 1, _Latest())
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
    moments = moments_of(workload, 30, rng)
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


def test_a_spare_goes_first():
    """Of three idle instances on a node: of model 2, and two of model 3."""
    env = make_env("sharing", **WARM)
    policy = ReuseLearner(QUICK, Task("sharing", WARM)).policy()
    policy.reset(env.unwrapped.policy_spec, 0)
    env.reset(seed=0)
    state = env.unwrapped.state
    instances = state.instances.copy()
    for slot, (model, idle_s) in enumerate([(2, 30.0), (3, 20.0), (3, 10.0)]):
        row = instances[slot]
        row["model"], row["node"], row["status"], row["idle_s"] = model, 0, InstanceStatus.SERVING, idle_s
    rows = np.zeros((len(instances) + 1, len(PLACE_FEATURES)), np.float32)
    rows[:3, PLACE_FEATURES.index("replaces")] = 1
    lost = policy.lost(rows, replace(state, instances=instances), np.arange(3))
    assert lost[1] < lost[2] < lost[0], "of two of a model the one that has been idle longer"
    assert lost[1] == pytest.approx(0.0, abs=1e-6)
    rows[:3, PLACE_FEATURES.index("replaces")] = 3
    together = policy.lost(rows, replace(state, instances=instances), np.arange(3))
    alone = replace(state, instances=np.where(np.arange(len(instances)) == 1, state.instances, instances))
    rows[:3, PLACE_FEATURES.index("replaces")] = 1
    each = policy.lost(rows, alone, np.array([0, 2]))
    np.testing.assert_allclose(together, each.sum(), rtol=1e-5, err_msg="of two that go together one counts")


def test_who_goes_with_an_instance_is_who_the_environment_unloads():
    """Small and large models share nodes, so that several small ones go for a large one."""
    mixed = WorkloadSpec(
        "functions_fitted",
        params={"num_models": 40, "sizes": ("llama-3.2-3b", "llama-2-13b"), "ratio": (2, 1), "minutes": 10},
    )
    cluster = replace(WARM["cluster"], nodes=(replace(GPU, count=2, memory_gb=60.0),), slots_per_node=8)
    batch = SharingBatch([SharingEpisode(SharingConfig(**WARM | {"workload": mixed, "cluster": cluster}))])
    seen, episode, compared = batch.reset([0], [1]), batch.episodes[0], 0
    policy = ReuseLearner(QUICK, Task("sharing", WARM)).policy()
    policy.setting = episode.setting
    while not episode.done:
        action, expected = int(seen.places[0, :, 0].argmax()), None
        before, replaces = episode.state, seen.places[0, :, PLACE_FEATURES.index("replaces")]
        if before.event == Event.PLACEMENT and (replaces > 1).any():
            action = int(np.flatnonzero(replaces > 1)[-1])
            companions = policy._companions(before, action, int(replaces[action]) - 1)
            expected = {action, *companions.tolist()}
        seen, _ = batch.step(np.array([action]))
        if expected is not None:
            was, now = before.instances["model"], episode.state.instances["model"]
            assert set(np.flatnonzero((was >= 0) & (now != was)).tolist()) == expected
            compared += 1
    assert compared > 10


def test_training_goes_on_as_if_it_had_not_been_interrupted(tmp_path):
    first = make_learner(QUICK, Task("sharing", WARM))
    budget = Budget(2000)
    first.improve(budget)
    assert 0 < budget.steps <= 2 * QUICK.moments * 8
    first.save_policy(tmp_path)
    first.save_training(tmp_path)
    again = make_learner(QUICK, Task("sharing", WARM, seed=1))
    again.restore(tmp_path)
    figures = [learner.improve(Budget(2000, steps=budget.steps)) for learner in (first, again)]
    assert figures[0] == figures[1]
    seen = np.random.default_rng(0).random((4, len(DEMAND_FEATURES)), np.float32) * 8
    hazards = [learner.policy().scorer.hazards(seen) for learner in (first, again)]
    np.testing.assert_array_equal(*hazards)


def test_a_checkpoint_says_what_was_learned_and_serves_other_nodes(tmp_path):
    learner = make_learner(replace(QUICK, passes=20), Task("sharing", WARM))
    held_out = draw_moments(learner.sources[0], 10**6, 100, np.random.default_rng(0))

    def loss():
        with torch.no_grad():
            return loss_of(learner.network(torch.from_numpy(held_out.seen)), *targets(held_out)).item()

    untrained = loss()
    for _ in range(8):
        learner.improve(Budget(10**6))
    assert loss() < 0.7 * untrained
    env = make_env("sharing", **WARM)
    settings = {"agent": learner.config, "env": {"name": "sharing"}, "workload": WARM["workload"]}
    with replacing(tmp_path / "checkpoint") as fresh:
        learner.save_policy(fresh)
        write_description(fresh, settings, env.observation_space, env.action_space, {})
    policy = load_policy(tmp_path / "checkpoint")
    seen = np.random.default_rng(0).random((4, len(DEMAND_FEATURES)), np.float32) * 8
    np.testing.assert_array_equal(policy.scorer.hazards(seen), learner.policy().scorer.hazards(seen))
    wider = replace(WARM["cluster"], nodes=(replace(GPU, count=2, memory_gb=24.0),))
    metrics = run_episode(make_env("sharing", **WARM | {"cluster": wider}), policy, 3).metrics
    assert metrics["commands_refused"] == 0


def test_it_is_about_shared_nodes():
    with pytest.raises(ValueError, match=r"agent=reuse learns which instances to keep.* got env=routing"):
        ReuseLearner(QUICK, Task("routing", {}))
    with pytest.raises(ValueError, match=r"env\.manager\.replace_idle=false; set it to true"):
        ReuseLearner(QUICK, Task("sharing", LIGHT))
    with pytest.raises(ValueError, match=r"env\.scales\.latency_s=0\.5, got 1\.0"):
        ReuseLearner(QUICK, Task("sharing", {**WARM, "scales": SharingScales(latency_s=1.0)}))
    chat = {**WARM, "workload": WorkloadSpec("azure_conv_fitted", num_requests=30)}
    with pytest.raises(ValueError, match="workload 'azure_conv_fitted' names no models"):
        ReuseLearner(QUICK, Task("sharing", WARM, also=(chat,)))
    with pytest.raises(ValueError, match="width must be at least 1"):
        ReuseConfig(width=0)
    with pytest.raises(ValueError, match="fill must be positive"):
        ReuseConfig(fill=0.0)
