"""The guard on late first tokens: what passes, inside the kernel and outside, and where it is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from serving_gym.agents.checkpoint import load_policy, replacing, write_description
from serving_gym.agents.environments.routing.adapter import RoutingAdapter
from serving_gym.agents.environments.routing.guard import GuardConfig, guarded, passing
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.learner import APILearner
from serving_gym.agents.learners.learner import build_agent_config
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.routing.batch import RoutingBatch
from serving_gym.envs.routing.config import RoutingConfig, RoutingScales
from serving_gym.envs.routing.episode import RoutingEpisode
from serving_gym.envs.routing.spaces import make_spaces
from serving_gym.envs.simulator.kernel.features import CLUSTER_FEATURES, PLACE_FEATURES, REQUEST_FEATURES
from serving_gym.envs.simulator.kernel.place_guard import narrow_many
from serving_gym.envs.simulator.kernel.place_scores import choose_place
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import Task, make_env

UNEQUAL = FleetConfig(
    groups=(
        GroupSpec(ReplicaSpec("llama-3.1-8b", "A100-80GB"), 2),
        GroupSpec(ReplicaSpec("llama-3.1-8b", "H100", tp_size=2), 1),
    )
)
BUSY = {
    "workload": WorkloadSpec(name="azure_code_fitted", num_requests=150, rate_rps=8.0),
    "cluster": UNEQUAL,
    "split": "test",
}
SMALL = APIConfig(iterations=1, horizon=5, sample_every=1, epochs=2, hidden=8)
SCALES = RoutingScales()


def shown(value: float, scale: float) -> float:
    return float(np.log1p(value / scale))


def example() -> dict[str, np.ndarray]:
    """A prompt of 1000 tokens and three places; the last minute's mean prompt is one of 500.

    First tokens are expected after

    | place | prompts that wait | its own | an iteration | in all |
    |---|---|---|---|---|
    | 0, slow | 0 s | 0.2 s | 0.02 s | 0.22 s |
    | 1, fast | 0.5 s | 0.1 s | 0.02 s | 0.62 s |
    | 2, fast, half of it cached | 0.2 s | 0.05 s | 0.02 s | 0.27 s |

    and the slow one prefills 5000 tokens a second, the fast ones 10,000: at the mean of these, each counted as often as
    it is fast, 225 / 25 = 9 thousand, 500 tokens take 1/18 s.
    """
    places = np.zeros((1, 3, len(PLACE_FEATURES)), np.float32)
    rows = ((0.0, 0.2, 0.0), (0.5, 0.1, 0.0), (0.2, 0.05, 0.5))
    for place, (backlog_s, own_s, hit) in zip(places[0], rows, strict=True):
        place[PLACE_FEATURES.index("prefill_backlog_s")] = shown(backlog_s, SCALES.prefill_s)
        place[PLACE_FEATURES.index("own_prefill_s")] = shown(own_s, SCALES.prefill_s)
        place[PLACE_FEATURES.index("iteration_s")] = shown(0.02, SCALES.iteration_s)
        place[PLACE_FEATURES.index("prefix_hit")] = hit
    request = np.zeros((1, len(REQUEST_FEATURES) + 1), np.float32)
    request[0, REQUEST_FEATURES.index("input_tokens")] = shown(1000, SCALES.prompt_tokens)
    cluster = np.zeros((1, len(CLUSTER_FEATURES)), np.float32)
    cluster[0, CLUSTER_FEATURES.index("requests_long")] = shown(4.0, SCALES.request_rate)
    cluster[0, CLUSTER_FEATURES.index("prompt_tokens_long")] = shown(2000.0, SCALES.token_rate)
    return {"places": places, "request": request, "cluster": cluster}


@pytest.mark.parametrize(
    ("times_least", "times_usual", "soon_s", "able", "passing"),
    [
        (1.0, 0.0, 0.0, (1, 1, 1), (1, 0, 0)),  # 0.22 s
        (1.2, 0.0, 0.0, (1, 1, 1), (1, 0, 0)),  # 0.264 s
        (1.25, 0.0, 0.0, (1, 1, 1), (1, 0, 1)),  # 0.275 s
        (2.9, 0.0, 0.0, (1, 1, 1), (1, 1, 1)),  # 0.638 s
        (1.0, 4.8, 0.0, (1, 1, 1), (1, 0, 0)),  # 4.8 / 18 s = 0.267 s
        (1.0, 4.9, 0.0, (1, 1, 1), (1, 0, 1)),  # 0.272 s
        (1.0, 11.1, 0.0, (1, 1, 1), (1, 0, 1)),  # 0.617 s
        (1.0, 11.2, 0.0, (1, 1, 1), (1, 1, 1)),  # 0.622 s
        (1.0, 0.0, 0.0, (0, 1, 1), (0, 0, 1)),  # the least of those that can
        (1.0, 0.0, 0.0, (0, 1, 0), (0, 1, 0)),
        (1.0, 10.3, 0.0, (1, 1, 0), (1, 0, 0)),  # 0.618 s: of the two that can, 125 / 15 thousand tokens/s
        (1.0, 10.4, 0.0, (1, 1, 0), (1, 1, 0)),  # 0.624 s
        (1.0, 13.0, 0.0, (0, 0, 0), (0, 0, 0)),
        (1.0, 0.0, 0.26, (1, 1, 1), (1, 0, 0)),  # soon enough is what comes within so long
        (1.0, 0.0, 0.28, (1, 1, 1), (1, 0, 1)),
        (1.0, 4.9, 0.1, (1, 1, 1), (1, 0, 1)),
        (1.0, 4.9, 0.63, (1, 1, 1), (1, 1, 1)),
    ],
)
def test_it_leaves_out_what_would_be_much_later(times_least, times_usual, soon_s, able, passing) -> None:
    seen = example()
    masks = np.array([[*able, 1]], bool)
    guard = GuardConfig(times_least, times_usual, soon_s).numbers()
    allowed = guarded(guard, seen, masks)
    assert allowed[0].tolist() == [*map(bool, passing), True]
    assert masks[0].tolist() == [*map(bool, able), True], "what it is given stays as it is"


@pytest.mark.parametrize(
    ("age_s", "passing"),
    [(0.0, (1, 0, 0)), (0.65, (1, 0, 0)), (0.75, (1, 0, 1)), (2.0, (1, 0, 1)), (2.3, (1, 1, 1))],
)
def test_where_gauges_are_old_it_keeps_less_back(age_s, passing) -> None:
    seen = example()
    seen["cluster"][0, CLUSTER_FEATURES.index("gauge_age_s")] = shown(age_s, SCALES.prefill_s)
    guard = GuardConfig(1.0, 0.0, 0.1, soon_of_age=0.23).numbers()  # 0.1 s and 0.23 s a second
    allowed = guarded(guard, seen, np.ones((1, 4), bool))
    assert allowed[0].tolist() == [*map(bool, passing), True]


@pytest.mark.parametrize(
    ("share", "passing"),
    [(0.0, (1, 0, 0)), (0.2, (1, 0, 0)), (0.4, (1, 0, 1)), (1.0, (1, 0, 1))],
)
def test_where_answers_have_come_slowly_it_keeps_less_back(share, passing) -> None:
    seen = example()
    seen["cluster"][0, CLUSTER_FEATURES.index("tpot_misses_short")] = share
    guard = GuardConfig(1.0, 0.0, 0.1, soon_of_slow=0.5).numbers()  # 0.1 s and 0.5 s of the share
    allowed = guarded(guard, seen, np.ones((1, 4), bool))
    assert allowed[0].tolist() == [*map(bool, passing), True]


@pytest.mark.parametrize(
    ("in_flight", "slots", "passing"),
    [
        (9, 10.0, (1, 0, 0)),  # a slot is left at the first place: 0.22 s
        (10, 10.0, (1, 0, 0)),  # one in ten of 0.5 s more: 0.27 s, the least as before
        (11, 10.0, (0, 0, 1)),  # 0.32 s, and 0.27 s at the third
        (100, math.inf, (1, 0, 0)),
    ],
)
def test_where_all_slots_are_taken_others_end_first(in_flight, slots, passing) -> None:
    seen = example()
    first = seen["places"][0, 0]
    first[PLACE_FEATURES.index("in_flight")] = shown(in_flight, SCALES.requests)
    first[PLACE_FEATURES.index("drain_s")] = shown(0.499, SCALES.decode_s)
    allowed = guarded(GuardConfig(1.0, 0.0, slots=slots).numbers(), seen, np.ones((1, 4), bool))
    assert allowed[0].tolist() == [*map(bool, passing), True]


def test_where_all_is_cached_the_least_alone_counts() -> None:
    seen = example()
    seen["places"][0, :, PLACE_FEATURES.index("prefix_hit")] = 1.0
    seen["places"][0, :, PLACE_FEATURES.index("own_prefill_s")] = 0.0
    allowed = guarded(GuardConfig(1.0, 100.0).numbers(), seen, np.ones((1, 4), bool))
    assert allowed[0].tolist() == [True, False, False, True]


def test_what_a_training_takes_for_the_present_choice_passes_too() -> None:
    seen, valid = example(), np.ones((1, 3), bool)
    states = np.concatenate([seen["request"], seen["cluster"]], axis=1)
    narrow = passing(GuardConfig(1.25, 0.0), states, seen["places"], valid)
    assert narrow.tolist() == [[True, False, True]]
    for guard, expected in ((GuardConfig(1.25, 0.0), narrow), (None, valid)):
        learner = APILearner(replace(SMALL, guard=guard), Task("routing", BUSY))
        np.testing.assert_array_equal(learner._passing(states, seen["places"], valid), expected)


def policy(guard: GuardConfig | None, batch: RoutingBatch):
    torch.manual_seed(1)
    observation, action = make_spaces(batch.episodes[0])
    adapter, config = RoutingAdapter(), replace(SMALL, guard=guard)
    network = adapter.score_network(observation, config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3.0)  # so that scores differ
    return adapter.score_policy(network, observation, action, config, "x")


def played(chosen_by, batch: RoutingBatch, first: np.ndarray) -> tuple[np.ndarray, list[list[int]]]:
    """Returns of episodes that are decided outside the kernel, and the places that each was sent to."""
    rewards, actions, chosen = np.zeros(len(first)), first, []
    while not batch.done.all():
        seen, outcomes = batch.step(actions)
        rewards += outcomes.rewards(batch.episodes[0].config.objective)
        observation = {"places": seen.places, "request": seen.request, "cluster": seen.cluster}
        actions = chosen_by.act_batch(observation, seen.masks)
        chosen.append(actions.tolist())
    return rewards, chosen


def test_it_decides_inside_the_kernel_as_outside_and_one_that_lets_all_pass_changes_nothing() -> None:
    batch = RoutingBatch([RoutingEpisode(RoutingConfig(**BUSY)) for _ in range(2)])
    batch.reset([0, 1], [1, 2])
    first, forever = np.zeros(2, np.int64), np.full(2, np.inf)
    returns = {}
    for name, guard in {
        "none": None,
        "wide": GuardConfig(1e6, 1e6),
        "narrow": GuardConfig(1.1, 3.0, soon_of_slow=0.1, slots=16),
    }.items():
        one = policy(guard, batch)
        rolled, _ = batch.branch([0, 1]).roll(first, one.in_kernel, forever, 1 << 40)
        returns[name] = rolled.rewards(batch.episodes[0].config.objective)
        outside, chosen = played(one, batch.branch([0, 1]), first)
        np.testing.assert_allclose(outside, returns[name], rtol=1e-9)
        assert len(np.unique(chosen)) > 1
    np.testing.assert_array_equal(returns["none"], returns["wide"])
    assert (returns["none"] != returns["narrow"]).all()
    assert len(narrow_many.signatures) == 1


def test_it_is_saved_with_the_network_and_decides_alone_as_in_a_batch(tmp_path) -> None:
    env = make_env("routing", **BUSY)
    config = replace(SMALL, guard=GuardConfig(1.1, 3.0))
    learner = APILearner(config, Task("routing", BUSY))
    for name, agent in {"guarded": config, "plain": replace(config, guard=None)}.items():
        with replacing(tmp_path / name) as folder:
            learner.save_policy(folder)
            settings = {"env": {"name": "routing"}, "agent": agent, "workload": BUSY["workload"]}
            write_description(folder, settings, env.observation_space, env.action_space, {})
    saved = yaml.safe_load((tmp_path / "guarded" / "config.yaml").read_text(encoding="utf-8"))
    assert saved["agent"]["guard"] == {
        "times_least": 1.1,
        "times_usual": 3.0,
        "soon_s": 0.0,
        "soon_of_age": 0.0,
        "soon_of_slow": 0.0,
        "slots": math.inf,
    }
    ours, plain = load_policy(tmp_path / "guarded"), load_policy(tmp_path / "plain")
    episode = run_episode(env, ours, 1)
    batched, chosen = played(
        ours, begun := RoutingBatch([RoutingEpisode(RoutingConfig(**BUSY))]), first_of(begun, ours)
    )
    assert episode.metrics["return"] == pytest.approx(batched[0], rel=1e-6)
    assert episode.metrics["return"] != run_episode(env, plain, 1).metrics["return"]
    assert len(np.unique(chosen)) > 1


def first_of(batch: RoutingBatch, chosen_by) -> np.ndarray:
    """Begins episode 1 and says where its first request goes."""
    seen = batch.reset([0], [1])
    observation = {"places": seen.places, "request": seen.request, "cluster": seen.cluster}
    return np.asarray(chosen_by.act_batch(observation, seen.masks))


@pytest.mark.parametrize("guard", [None, GuardConfig(1.1, 3.0, 0.1, soon_of_slow=0.1, slots=3.0)])
def test_one_decision_is_made_in_the_kernel_as_many_are_in_numpy(guard) -> None:
    chooser = policy(guard, RoutingBatch([RoutingEpisode(RoutingConfig(**BUSY))]))
    chooser.reset(make_env("routing", **BUSY).unwrapped.policy_spec, 0)
    rng, chosen = np.random.default_rng(5), []
    for places in (3, 64, 2, 16) * 10:
        seen = {
            "places": rng.random((places, len(PLACE_FEATURES)), np.float32),
            "request": rng.random(chooser.observation["request"].shape, np.float32),
            "cluster": rng.random(len(CLUSTER_FEATURES), np.float32),
        }
        able = rng.random(places) < rng.choice([0.0, 0.5, 1.0])
        alone = chooser.act(seen, SimpleNamespace(can_take=able, request=None))
        batch = {name: values[None] for name, values in seen.items()}
        assert len(chooser._space.rows) >= places
        assert alone == chooser.act_batch(batch, np.array([[*able, True]]))[0]
        assert able[alone] if able.any() else alone == places
        chosen.append(alone)
    assert len(set(chosen)) > 8
    assert len(choose_place.signatures) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"times_least": 0.9}, "agent.guard.times_least must be finite and at least 1, got 0.9"),
        ({"times_least": float("inf")}, "agent.guard.times_least must be finite"),
        ({"times_usual": -1.0}, "agent.guard.times_usual must be finite and not negative, got -1.0"),
        ({"soon_s": -0.1}, "agent.guard.soon_s must be finite and not negative, got -0.1"),
        ({"soon_of_age": -1.0}, "agent.guard.soon_of_age must be finite and not negative, got -1.0"),
        ({"soon_of_slow": -1.0}, "agent.guard.soon_of_slow must be finite and not negative, got -1.0"),
        ({"slots": 0.5}, "agent.guard.slots must be at least 1, got 0.5"),
        ({"slots": float("nan")}, "agent.guard.slots must be at least 1, got nan"),
        ({"times_usual": float("nan")}, "agent.guard.times_usual must be finite"),
        ({"times_usually": 3.0}, "agent.guard.times_usual"),
        ({"times_least": True}, "agent.guard.times_least must be a number, got True"),
        ({"times_usual": "many"}, "agent.guard.times_usual must be a number, got 'many'"),
        (
            2.0,
            "agent.guard must be null or have some of times_least, times_usual, soon_s, soon_of_age, soon_of_slow and",
        ),
    ],
)
def test_settings_that_are_refused(values: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_agent_config({"name": "api", "guard": values})


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            Task(
                "dp_tp", {"workload": WorkloadSpec(name="flying_bursty"), "cluster": ClusterSpec(num_gpus=2)}
            ),
            "agent.guard is for env=routing alone, got env=dp_tp",
        ),
        (
            Task("routing", {**BUSY, "scales": RoutingScales(prefill_s=0.2)}),
            "agent.guard needs the usual scales of the observation",
        ),
    ],
)
def test_where_it_is_refused(task: Task, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        APILearner(replace(SMALL, guard=GuardConfig()), task)
