"""Domain randomisation: the world of an episode differs from the profile, and policies keep the profile."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from serving_gym.baselines.registry import make_policy
from serving_gym.envs.interface.fleet import FleetConfig, SlowNode
from serving_gym.envs.interface.randomise import NOMINAL, NUM_LEVELS, RandomiseSpec
from serving_gym.envs.routing.batch import RoutingBatch
from serving_gym.envs.routing.config import RoutingConfig
from serving_gym.envs.routing.episode import RoutingEpisode
from serving_gym.envs.simulator.autoscaling.simulator import piece_seed
from serving_gym.envs.workload.predictions import PredictionSpec, predict_lengths
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.schema import EvaluateConfig
from tests.defaults import make_env, make_vector_env
from tests.environments.cases import CASES, NAMES

SETTINGS: dict[str, dict[str, Any]] = {
    name: {**settings, "cluster": replace(settings["cluster"], front_end="included")}
    for name, settings in CASES.items()
}
GROUPS = {"autoscaling": 1, "deployment": 1, "dp_tp": 1, "routing": 1, "sharing": 2}
WITH_PREDICTOR = ("autoscaling", "deployment", "routing")
BOTH = RandomiseSpec(speed=0.5, front_end=0.5)
MOST_STEPS = 40


def env_of(name: str, **changes: Any) -> Any:
    return make_env(name, **{**SETTINGS[name], **changes})


def seed_with(wanted, name: str, spec: RandomiseSpec = BOTH) -> int:
    """The first seed whose factors are wanted."""
    return next(seed for seed in range(10_000) if wanted(spec.draw(seed, GROUPS[name])))


def first_action(name: str, mask: np.ndarray) -> Any:
    """Placements go to the first place that can take them; elsewhere everything stays as it is."""
    return int(np.flatnonzero(mask)[0]) if name in ("routing", "sharing") else None


def play(env: Any, name: str, seed: int) -> list[tuple[dict[str, np.ndarray], float, float]]:
    """Observations, rewards and times of an episode."""
    observation, info = env.reset(seed=seed)
    steps = [(observation, 0.0, 0.0)]
    over = False
    while not over and len(steps) < 10_000:
        observation, reward, terminated, truncated, info = env.step(first_action(name, info["action_mask"]))
        steps.append((dict(observation), reward, info["dt"]))
        over = terminated or truncated
    assert over
    return steps


def same(ours: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> bool:
    return ours.keys() == others.keys() and all(np.array_equal(ours[key], others[key]) for key in ours)


def alike(ours: list, others: list) -> bool:
    """Whether two episodes are the same to the last number."""
    return len(ours) == len(others) and all(
        same(a[0], b[0]) and a[1:] == b[1:] for a, b in zip(ours, others, strict=True)
    )


def mean_s(env: Any, what: str) -> float:
    """Mean latency of the finished requests of an episode, seconds."""
    latency_s = getattr(env.records(), what)
    return float(latency_s[np.isfinite(latency_s)].mean())


# -- what is drawn -----------------------------------------------------------------------------------------------------


def test_nothing_is_drawn_by_default():
    assert RandomiseSpec().draw(3, 4) is NOMINAL
    assert RandomiseSpec().levels == ()


def test_factors_lie_within_the_half_widths_and_reach_towards_both_ends():
    spec = RandomiseSpec(speed=0.2, front_end=0.3, gauge_age_s=2.0, prediction=0.4)
    drawn = [spec.draw(seed, 2) for seed in range(400)]
    assert {factor for each in drawn for factor in each.iteration} == set(spec.levels)
    assert spec.levels[0] == pytest.approx(math.exp(-0.2))
    assert spec.levels[NUM_LEVELS // 2] == 1.0
    assert spec.levels[-1] == pytest.approx(math.exp(0.2))
    for logs, half_width in (
        ([math.log(each.front_end) for each in drawn], 0.3),
        ([math.log(each.prediction) for each in drawn], 0.4),
        ([each.gauge_age_s - 1.0 for each in drawn], 1.0),
    ):
        assert -half_width <= min(logs) < -0.9 * half_width
        assert 0.9 * half_width < max(logs) <= half_width


def test_a_field_does_not_change_what_the_others_draw():
    whole = RandomiseSpec(0.2, 0.3, 2.0, 0.4).draw(7, 3)
    assert RandomiseSpec(speed=0.2).draw(7, 3).iteration == whole.iteration
    assert RandomiseSpec(front_end=0.3).draw(7, 3).front_end == whole.front_end
    assert RandomiseSpec(gauge_age_s=2.0).draw(7, 3).gauge_age_s == whole.gauge_age_s
    assert RandomiseSpec(prediction=0.4).draw(7, 3).prediction == whole.prediction


# -- in the environments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_drawn_factor_of_one_is_the_nominal_world(name):
    """Rows of other speeds beside the nominal ones change nothing, to the last number."""
    spec = RandomiseSpec(speed=0.5)
    seed = seed_with(lambda drawn: set(drawn.iteration) == {1.0}, name, spec)
    assert alike(play(env_of(name), name, seed), play(env_of(name, randomise=spec), name, seed))


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_is_a_world(name):
    env, usual = env_of(name, randomise=BOTH), env_of(name)
    seed = seed_with(lambda drawn: 1.0 not in drawn.iteration, name)
    first = play(env, name, seed)
    arrivals_s = env.records().arrival_s
    assert alike(first, play(env, name, seed))
    assert not alike(first, play(usual, name, seed))
    assert np.array_equal(arrivals_s, usual.records().arrival_s)


@pytest.mark.parametrize("name", NAMES)
def test_policies_are_not_shown_what_was_drawn(name):
    seed = seed_with(lambda drawn: 1.0 not in drawn.iteration, name)
    env, usual = env_of(name, randomise=BOTH), env_of(name)
    assert same(dict(env.reset(seed=seed)[0]), dict(usual.reset(seed=seed)[0]))
    if name in ("autoscaling", "routing"):
        assert np.array_equal(env.policy_spec.engines.decode_s, usual.policy_spec.engines.decode_s)


@pytest.mark.parametrize("name", NAMES)
def test_slower_engines_answer_later_and_faster_ones_sooner(name):
    spec = RandomiseSpec(speed=0.5)
    env, usual = env_of(name, randomise=spec), env_of(name)
    for wanted, sign in (
        (lambda drawn: min(drawn.iteration) > 1.3, 1.0),
        (lambda drawn: max(drawn.iteration) < 0.77, -1.0),
    ):
        seed = seed_with(wanted, name, spec)
        play(env, name, seed)
        play(usual, name, seed)
        ratio = mean_s(env, "e2e_s") / mean_s(usual, "e2e_s")
        assert sign * math.log(ratio) > 0.1, ratio


@pytest.mark.parametrize("name", NAMES)
def test_a_slower_front_end_gives_first_tokens_later(name):
    spec = RandomiseSpec(front_end=1.0)
    env, usual = env_of(name, randomise=spec), env_of(name)
    for wanted, sign in (
        (lambda drawn: drawn.front_end > 2.0, 1.0),
        (lambda drawn: drawn.front_end < 0.5, -1.0),
    ):
        seed = seed_with(wanted, name, spec)
        play(env, name, seed)
        play(usual, name, seed)
        assert sign * (mean_s(env, "ttft_s") - mean_s(usual, "ttft_s")) > 0.0


@pytest.mark.parametrize("name", NAMES)
def test_vector_environments_draw_alike(name):
    slowest, fastest = max(BOTH.levels), min(BOTH.levels)
    seeds = [
        seed_with(lambda drawn: set(drawn.iteration) == {slowest}, name),
        seed_with(lambda drawn: set(drawn.iteration) == {fastest}, name),
    ]
    vector = make_vector_env(name, 2, **{**SETTINGS[name], "randomise": BOTH})
    scalars = [env_of(name, randomise=BOTH) for _ in seeds]
    many, info = vector.reset(seed=seeds)
    ones = [env.reset(seed=seed)[0] for env, seed in zip(scalars, seeds, strict=True)]
    for _ in range(MOST_STEPS):
        masks = info["action_mask"]
        for i, one in enumerate(ones):
            assert same(dict(one), {key: many[key][i] for key in many})
        actions = np.stack([usual_action(vector, mask) for mask in masks])
        many, rewards, terminated, truncated, info = vector.step(actions)
        steps = [env.step(action) for env, action in zip(scalars, actions, strict=True)]
        assert np.array_equal(rewards, [step[1] for step in steps])
        if (terminated | truncated).any():
            break
        ones = [step[0] for step in steps]


def usual_action(vector: Any, mask: np.ndarray) -> Any:
    """The first possible entry of every lever."""
    widths = getattr(vector.single_action_space, "nvec", None)
    if widths is None:
        return np.int64(np.flatnonzero(mask)[0])
    return np.array([np.flatnonzero(own)[0] for own in np.split(mask, np.cumsum(widths)[:-1])], np.int64)


@pytest.mark.parametrize("name", NAMES)
def test_a_fork_keeps_its_world(name):
    env = env_of(name, randomise=BOTH)
    seed = seed_with(lambda drawn: min(drawn.iteration) > 1.3 and drawn.front_end > 1.3, name)
    _, info = env.reset(seed=seed)
    _, _, terminated, truncated, info = env.step(first_action(name, info["action_mask"]))
    assert not terminated
    assert not truncated
    fork = env.fork()
    over, mask = False, info["action_mask"]
    while not over:
        ours = env.step(first_action(name, mask))
        others = fork.step(first_action(name, mask))
        assert same(dict(ours[0]), dict(others[0]))
        assert ours[1:4] == others[1:4]
        over, mask = ours[2] or ours[3], ours[4]["action_mask"]


# -- routing -----------------------------------------------------------------------------------------------------------


def test_groups_differ_and_a_slow_down_comes_on_top():
    group = SETTINGS["routing"]["cluster"].groups[0]
    fleet = FleetConfig(
        (replace(group, count=1), replace(group, count=2)), slow_nodes=(SlowNode(0.0, 1, 2.0),)
    )
    spec = RandomiseSpec(speed=0.5)
    seed = next(seed for seed in range(100) if len(set(spec.draw(seed, 2).iteration)) == 2)
    factors = spec.draw(seed, 2).iteration
    env = env_of("routing", cluster=fleet, randomise=spec)
    env.reset(seed=seed)
    simulator = env.core.simulator
    decode_ps = simulator.tables.decode_ps
    by_place = decode_ps[simulator.world.engines["kind"], 8] / decode_ps[env.core.desk.kinds, 8]
    expected = [factors[0], 2.0 * factors[1], factors[1]]
    assert by_place == pytest.approx(expected, rel=1e-6)
    assert set(simulator.tables.kinds["speed"]) == {1.0}


def test_the_gauges_are_read_at_an_interval_that_is_drawn():
    env = env_of("routing", randomise=RandomiseSpec(gauge_age_s=2.0), gauge_interval_s=0.5)
    intervals_s = []
    for seed in range(20):
        env.reset(seed=seed)
        intervals_s.append(env.core.desk.desk["gauge_interval_ps"][0] / 1e12)
    assert min(intervals_s) >= 0.5
    assert max(intervals_s) <= 2.5
    assert max(intervals_s) - min(intervals_s) > 1.0


@pytest.mark.parametrize("name", WITH_PREDICTOR)
def test_the_predictor_errs_by_what_is_drawn(name):
    spec, predictor, seed = RandomiseSpec(prediction=1.0), PredictionSpec("lognormal"), 4
    env = env_of(name, randomise=spec, prediction=predictor)
    env.reset(seed=seed)
    factor = spec.draw(seed, GROUPS[name]).prediction
    assert abs(math.log(factor)) > 0.1
    drawn = PredictionSpec("lognormal", sigma=predictor.sigma * factor)
    simulator = env.core.simulator
    if name == "deployment":
        used = simulator.traffic.endpoint

        def by(own):
            lengths = predict_lengths(own, simulator.workload, seed)
            return env.core.typing.types.classify(simulator.workload.input_tokens, lengths)
    else:
        used = simulator.gate.predicted if name == "autoscaling" else env.core.desk.predicted
        of_errors = piece_seed(seed, 0) if name == "autoscaling" else seed

        def by(own):
            return predict_lengths(own, simulator.workload, of_errors)

    assert np.array_equal(used, by(drawn))
    assert not np.array_equal(used, by(predictor))


def test_rollouts_inside_the_kernel_are_in_the_same_world():
    """What the same score brings that decides outside."""
    seed = seed_with(lambda drawn: min(drawn.iteration) > 1.3, "routing")
    batch = RoutingBatch([RoutingEpisode(RoutingConfig(**SETTINGS["routing"], randomise=BOTH))])
    batch.reset([0], [seed])
    policy = make_policy("linear_score")
    env = env_of("routing", randomise=BOTH)
    observation, _ = env.reset(seed=seed)
    first = policy.act(observation, env.state)
    total, over, action = 0.0, False, first
    while not over:
        observation, reward, terminated, truncated, _ = env.step(action)
        total, over = total + reward, terminated or truncated
        action = None if over else policy.act(observation, env.state)
    outcomes, _ = batch.roll(np.array([first]), policy.in_kernel, np.array([np.inf]), 10_000)
    assert outcomes.rewards(env.config.objective)[0] == pytest.approx(total, rel=1e-9)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["speed", "front_end", "gauge_age_s", "prediction"])
@pytest.mark.parametrize("value", [-0.1, 61.0, float("nan")])
def test_values_out_of_range_are_refused(field, value):
    with pytest.raises(ValueError, match=rf"randomise\.{field} must lie in \[0, (2|60)\], got {value}"):
        RandomiseSpec(**{field: value})


@pytest.mark.parametrize("name", NAMES)
def test_what_an_environment_does_not_have_is_refused(name):
    if name != "routing":
        with pytest.raises(ValueError, match=r"randomise\.gauge_age_s must be 0, got 1\.0: only routing"):
            env_of(name, randomise=RandomiseSpec(gauge_age_s=1.0))
    if name not in WITH_PREDICTOR:
        with pytest.raises(ValueError, match=r"randomise\.prediction must be 0, got 0\.2: the environment"):
            env_of(name, randomise=RandomiseSpec(prediction=0.2))
    else:
        oracle = {"randomise": RandomiseSpec(prediction=0.2), "prediction": PredictionSpec("oracle")}
        with pytest.raises(
            ValueError, match=r"randomise\.prediction must be 0, got 0\.2: prediction 'oracle'"
        ):
            env_of(name, **oracle)
    without = replace(SETTINGS[name]["cluster"], front_end="none")
    with pytest.raises(
        ValueError, match=r"randomise\.front_end must be 0, got 0\.5: cluster\.front_end is none"
    ):
        env_of(name, cluster=without, randomise=BOTH)


def test_it_is_set_by_words_and_refused_on_live_servers():
    words = ["env=routing", "policy=jsq", "env.randomise.speed=0.2"]
    config = composed("evaluate", EvaluateConfig, words)
    assert config.environment.settings.randomise == RandomiseSpec(speed=0.2)
    for backend in ("vllm", "both"):
        live = [f"backend={backend}", "backend.launch=true", "cluster=fleet_tiny_cpu_x2"]
        with pytest.raises(ValueError, match=r"randomise\.speed must be 0, got 0\.2: live servers"):
            composed("evaluate", EvaluateConfig, [*words, *live])
