"""`Serving/Autoscaling-v1`: its promises over whole episodes, forks, pickles, what pays, mistakes, and its picture."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from serving_gym.envs.autoscaling.action import mask_from_state, vector_from_changes
from serving_gym.envs.autoscaling.observation import CLOCK_FEATURES, ENDPOINT_FEATURES
from serving_gym.envs.interface.fleet import Crash, FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.metrics import FAILED
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.scaling import (
    Endpoint,
    MachineSpec,
    Operation,
    QueueSpec,
    Release,
    ReleaseLevel,
    ScaleChange,
)
from tests.defaults import make_env, make_vector_env
from tests.environments.autoscaling.samples import ONE, REGIONS, VARIANTS, masked_action, play

HERE = Endpoint("llama-3.1-8b", "local")


@pytest.fixture(params=sorted(VARIANTS))
def env(request):
    return make_env("autoscaling", **VARIANTS[request.param])


def feature(observation, name: str) -> np.ndarray:
    return observation["endpoints"][:, ENDPOINT_FEATURES.index(name)]


def total(infos, term: str) -> float:
    return sum(info["reward_terms"].get(term, 0.0) for info in infos)


def test_spaces_have_the_documented_shapes(env):
    count = len(env.core.spec.endpoints)
    assert env.observation_space["endpoints"].shape == (count, len(ENDPOINT_FEATURES)) == (count, 34)
    assert env.observation_space["clock"].shape == (len(CLOCK_FEATURES),) == (5,)
    assert env.action_space.nvec.tolist() == [5, 2, 3] * count


def test_a_whole_episode_keeps_every_promise(env):
    rng = np.random.default_rng(0)
    keys, terms, total_dt = None, None, 0.0
    alone = len(env.core.spec.endpoints) == 1
    for step, (observation, reward, *_, info) in enumerate(play(env, 3, lambda e: masked_action(e, rng))):
        assert env.observation_space.contains(observation), f"step {step}"
        keys = keys or set(info)
        assert set(info) == keys
        assert info["action_mask"].shape == (sum(env.action_space.nvec),)
        assert all(
            mask.any() for mask in np.split(info["action_mask"], np.cumsum(env.action_space.nvec)[:-1])
        )
        if alone:
            assert info["refused"] == ""
        if step:
            terms = terms or set(info["reward_terms"])
            assert set(info["reward_terms"]) == terms
            objective = env.config.objective
            weighted = sum(
                getattr(objective, name.partition("/")[0]) * value
                for name, value in info["reward_terms"].items()
            )
            assert type(reward) is float
            assert reward == pytest.approx(objective.scale * weighted, abs=1e-9)
            total_dt += info["dt"]
    assert env.core.done
    assert env.state.now_s == pytest.approx(total_dt)
    records = env.records()
    assert records.finished.all()
    arrived = env.core.simulator.world.stats[:, 0].sum()
    assert (
        len(records)
        == arrived
        == sum(len(env.core.stream.piece(i)) for i in range(env.core.stream.num_pieces))
    )


def test_what_is_possible_follows_from_the_state(env):
    rng = np.random.default_rng(4)
    for *_, info in play(env, 6, lambda e: masked_action(e, rng)):
        mask = mask_from_state(env.core.spec, env.state)
        np.testing.assert_array_equal(mask, info["action_mask"])


def test_the_vector_nearest_to_what_an_autoscaler_says():
    env = make_env("autoscaling", **REGIONS)
    env.reset(seed=0)
    here, there = Endpoint("llama-3.1-8b", "east"), Endpoint("llama-2-13b", "west")
    said = (
        ScaleChange(here, Operation.RECLAIM, 1),
        ScaleChange(here, Operation.START, 3),
        ScaleChange(there, Operation.DONATE, 1),
        Release(there, 2),
    )
    vector = vector_from_changes(env.core.spec, env.state, said).reshape(4, 3)
    assert vector[env.core.spec.endpoints.index(here)].tolist() == [4, 1, 1]  # two at most, from machines
    assert vector[env.core.spec.endpoints.index(there)].tolist() == [1, 0, 2]
    np.testing.assert_array_equal(
        vector_from_changes(env.core.spec, env.state, ()),
        env.core.levers.nothing(env.core.simulator),
    )


def test_machine_hours_by_status_add_up(env):
    rng = np.random.default_rng(1)
    for _ in play(env, 5, lambda e: masked_action(e, rng)):
        inventory = env.core.simulator.plane.inventory
        held = env.core.simulator.held().sum()
        assert held + inventory.vacant.sum() == env.core.simulator.machines.owned.sum()
        assert inventory.vacant.min() >= 0
        assert inventory.spot.min() >= 0
    hours = {name: float(values.sum()) for name, values in env.core.instance_hours.items()}
    kept = env.core.simulator.plane.meter.kept_ps(env.core.simulator.now_ps).sum() / 3.6e15
    assert hours["starting"] + hours["running"] + hours["draining"] == pytest.approx(kept, abs=1e-9)
    gpus = env.core.simulator.layout.kinds[0][1]
    assert env.gpu_seconds == pytest.approx(3600 * gpus * kept)


def test_the_terms_are_what_the_records_and_the_clock_say():
    env = make_env("autoscaling", **{**ONE, "machines": MachineSpec(gpu_usd_per_h={"H100": 7.2})})
    infos = [info for *_, info in play(env, 1, lambda e: None)][1:]
    records, slo = env.records(), env.core.slos[0]
    late = (records.ttft_s > slo.ttft_s)[records.class_id == 0]
    assert -total(infos, "ttft_attainment/iw_f") == late.sum()
    assert -total(infos, "gpu_usd") == pytest.approx(2 * 7.2 * env.state.now_s / 3600)
    assert total(infos, "startup_usd") == total(infos, "spot_rent_usd") == 0.0
    assert total(infos, "goodput") == env.core.simulator.world.stats[:, 10].sum()


def test_spot_and_starts_cost_what_they_take():
    machines = MachineSpec(gpu_usd_per_h={"H100": 3.6}, start_s=150.0, spot_revenue_ratio=0.5)
    env = make_env("autoscaling", **{**ONE, "machines": machines})
    env.reset(seed=0)
    *_, info = env.step((ScaleChange(HERE, Operation.START, 1),))  # 300 s: 150 s of it starting
    assert info["reward_terms"]["startup_usd"] == pytest.approx(-0.15)
    assert info["reward_terms"]["gpu_usd"] == pytest.approx(-0.9)
    assert info["reward_terms"]["switch"] == -1
    *_, info = env.step((ScaleChange(HERE, Operation.DONATE, 1),))
    drained = env.core.instance_hours["draining"].sum() * 3600
    leased = 300.0 - drained
    assert 0 <= drained < 60
    assert info["reward_terms"]["spot_rent_usd"] == pytest.approx(-leased * 1e-3)
    assert info["reward_terms"]["spot_revenue_usd"] == pytest.approx(leased * 0.5e-3)


def test_the_same_seed_is_the_same_episode_whatever_is_done():
    first, second = (make_env("autoscaling", **REGIONS) for _ in range(2))
    rng = np.random.default_rng(0)
    list(play(first, 7, lambda e: None))
    list(play(second, 7, lambda e: masked_action(e, rng)))
    one, two = first.records(), second.records()
    for name in ("arrival_s", "input_tokens", "output_tokens", "class_id"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_what_goes_wrong_in_the_fleet_goes_wrong_here():
    cluster = replace(ONE["cluster"], crashes=(Crash(200.0, 0),))
    env = make_env("autoscaling", **{**ONE, "cluster": cluster})
    infos = [info for *_, info in play(env, 0, lambda e: None)][1:]
    assert env.records().outcome.max() == FAILED
    assert -total(infos, "abandoned") == (env.records().outcome == FAILED).sum()
    assert env.core.instance_hours["starting"].sum() > 0


def test_episodes_repeat_and_splits_differ():
    env = make_env("autoscaling", **ONE)
    runs = []
    for options in ({}, {}, {"split": "test"}):
        observation, _ = env.reset(seed=4, options=options)
        rewards = [env.step(None)[1] for _ in range(3)]
        runs.append((observation["endpoints"].tolist(), rewards))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("when", [0, 1, 4])
def test_a_fork_continues_to_the_same_numbers(env, when):
    rng = np.random.default_rng(2)
    env.reset(seed=2)
    for _ in range(min(when, 2 if env.config.workload.num_requests else when)):
        if not env.core.done:
            env.step(masked_action(env, rng))
    if env.core.done:
        return
    twin, copied = env.fork(), pickle.loads(pickle.dumps(env))
    action = masked_action(env, rng)
    results = []
    for own in (env, twin, copied):
        steps = [own.step(action)]
        while not own.core.done:
            steps.append(own.step(None))
        results.append(
            (
                [step[1] for step in steps],
                steps[-1][0]["endpoints"].tolist(),
                np.nansum(own.records().finish_s),
                [rows.history.rows.tolist() for rows in own.state.endpoints],
            )
        )
    assert results[0] == results[1] == results[2]


def test_a_fork_outlives_a_new_episode():
    env = make_env("autoscaling", **ONE)
    env.reset(seed=1)
    twin, expected = env.fork(), env.state.coming[0].rows.copy()
    env.reset(seed=2)
    np.testing.assert_array_equal(twin.state.coming[0].rows, expected)
    assert not np.array_equal(env.state.coming[0].rows, expected)


def test_time_in_slices_is_time_in_one_piece():
    """Decisions that change nothing change nothing."""
    whole = make_env("autoscaling", **{**REGIONS, "decision_interval_s": 900.0})
    slices = make_env("autoscaling", **{**REGIONS, "decision_interval_s": 100.0})
    results = []
    for env in (whole, slices):
        list(play(env, 3, lambda e: None))
        records = env.records()
        history = [own.history.rows for own in env.state.endpoints]
        results.append((records, history))
    np.testing.assert_array_equal(results[0][0].finish_s, results[1][0].finish_s)
    for one, two in zip(results[0][1], results[1][1], strict=True):
        for name in one.dtype.names:
            np.testing.assert_allclose(one[name], two[name], rtol=1e-9, atol=1e-9, err_msg=name)


def test_batched_is_scalar_step_by_step():
    batched = make_vector_env("autoscaling", 2, **REGIONS)
    alone = [make_env("autoscaling", **REGIONS) for _ in range(2)]
    observation, infos = batched.reset(seed=11)
    for i, env in enumerate(alone):
        own, _ = env.reset(seed=11 + i)
        np.testing.assert_array_equal(observation["endpoints"][i], own["endpoints"])
    rng = np.random.default_rng(0)
    over = False
    while not over:
        actions = np.stack([masked_action(env, rng) for env in alone])
        observation, rewards, terminated, truncated, infos = batched.step(actions)
        for i, env in enumerate(alone):
            own, reward, end, cut, info = env.step(actions[i])
            assert (rewards[i], terminated[i], truncated[i]) == (reward, end, cut)
            over = end or cut
            shown = infos["final_obs"][i]["endpoints"] if over else observation["endpoints"][i]
            np.testing.assert_array_equal(shown, own["endpoints"])
            mask = infos["final_info"]["action_mask"][i] if over else infos["action_mask"][i]
            np.testing.assert_array_equal(mask, info["action_mask"])
    assert not batched.episodes[0].done  # it has begun anew


# -- what pays ---------------------------------------------------------------------------------------------------------


def returns(choose, seeds=(0, 1), **config) -> float:
    """Mean return of a way to decide, given the number of the decision and the environment."""
    env, values = make_env("autoscaling", **{**ONE, **config}), []
    for seed in seeds:
        env.reset(seed=seed)
        value, number = 0.0, 0
        while not env.core.done:
            value += env.step(choose(number, env))[1]
            number += 1
        values.append(value)
    return float(np.mean(values))


def test_to_go_before_the_end_does_not_pay():
    """Whoever takes its instances away before the last step leaves requests that are charged as abandoned."""
    config = {
        "min_instances": 0,
        "cluster": replace(ONE["cluster"], groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 1, 4),)),
    }
    last = int(ONE["episode_s"] / 300.0) - 1

    def leave(number, env):
        return (ScaleChange(HERE, Operation.STOP, 1),) if number == last else None

    assert returns(leave, **config) < returns(lambda number, env: None, **config) - 1.0


def test_to_hoard_what_can_wait_does_not_pay():
    """Non-interactive requests that are held to the end are served then, and charged for once more."""
    env = make_env("autoscaling", **ONE)
    infos = [info for *_, info in play(env, 0, lambda e: (Release(HERE, 0),))][1:]
    records, spec = env.records(), env.core.spec
    held = records.class_id == 2
    tokens = records.input_tokens[held].sum() / spec.capacity_tps[0, 0]
    assert -infos[-1]["reward_terms"]["backlog_usd"] / spec.gpu_usd_per_h[0] * 3600 > tokens
    assert total(infos[:-1], "backlog_usd") == 0
    slow = {"queue": QueueSpec(levels=(ReleaseLevel(0.0, 0.0), ReleaseLevel(0.6, 0.5)), level=1)}
    hoard = returns(lambda number, env: (Release(HERE, 0),), **slow)
    assert hoard < returns(lambda number, env: None, **slow)


def test_no_instance_is_worse_than_one():
    config = {"min_instances": 0}

    def nobody(number, env):
        return (ScaleChange(HERE, Operation.STOP, 2),) if number == 0 else None

    assert returns(nobody, **config) < 10 * returns(lambda number, env: None, **config)


# -- observation -------------------------------------------------------------------------------------------------------


def test_the_observation_shows_what_the_state_says():
    env = make_env("autoscaling", **REGIONS)
    observation, _ = env.reset(seed=0)
    changes = (
        ScaleChange(Endpoint("llama-3.1-8b", "east"), Operation.RECLAIM, 1),
        ScaleChange(Endpoint("llama-2-13b", "west"), Operation.DONATE, 1),
    )
    observation, *_ = env.step(changes)
    scales, state = env.config.scales, env.state
    for row, own in enumerate(state.endpoints):
        assert feature(observation, "running")[row] == pytest.approx(
            np.log1p(len(own.running) / scales.instances)
        )
        assert feature(observation, "spot")[row] == pytest.approx(np.log1p(own.spot.sum() / scales.instances))
        assert feature(observation, "kv_usage")[row] == pytest.approx(own.utilization(), abs=1e-6)
        rows = own.history.last(300.0)
        theta = env.core.spec.capacity_tps[env.core.spec.models.index(own.endpoint.model), 0]
        load = rows["input_tokens"].sum() / 300.0 / theta
        assert feature(observation, "load_interval")[row] == pytest.approx(np.log1p(load), rel=1e-5)
    assert observation["clock"][-1] == pytest.approx(1 - 300.0 / ONE["episode_s"])


def test_history_reaches_back_and_the_future_is_not_in_it():
    env = make_env("autoscaling", **ONE)
    env.reset(seed=0)
    before = env.state
    assert len(before.endpoints[0].history) == 120
    assert before.endpoints[0].history.end_s == 0.0
    env.step(None)
    after = env.state.endpoints[0]
    assert len(after.history) == 125
    np.testing.assert_array_equal(after.history.rows[:120], before.endpoints[0].history.rows)
    records = env.records()
    interactive = records.class_id < 2
    assert after.history.rows[120:]["requests"].sum() == (records.arrival_s[interactive] < 300.0).sum()
    assert len(after.recent) == 60
    np.testing.assert_allclose(
        after.recent.rebinned("input_tokens", 60.0), after.history.rows["input_tokens"][-5:]
    )


def test_the_day_before_is_like_the_day():
    env = make_env("autoscaling", **{**ONE, "history_s": 8 * 86_400.0, "history_bin_s": 900.0})
    observation, _ = env.reset(seed=3)
    expected = env.state.coming[0].rows["input_tokens"][0] / 900.0
    theta = env.core.spec.capacity_tps[0, 0]
    assert np.expm1(feature(observation, "forecast_interval")[0]) * theta == pytest.approx(expected, rel=0.3)


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"cluster": 3}, "choose a cluster with groups"),
        ({"decision_interval_s": 0.0}, "decision_interval_s must be positive"),
        ({"max_change": 0}, "max_change must be at least 1"),
        ({"history_s": 30.0}, "history_s must be at least history_bin_s"),
        ({"machines": MachineSpec(per_region={"2xH100": 3})}, "2xH100"),
        ({"machines": MachineSpec(per_region={"1xH100": 1})}, "has 1 1xH100, but instances"),
        ({"machines": MachineSpec(without_weights=("llama-3.1-8b@east",))}, "llama-3.1-8b@local"),
        ({"slos": {}}, "slos has no entry for class"),
        (
            {"cluster": FleetConfig(ONE["cluster"].groups, prefix_caching=True)},
            "prefix_caching must be false",
        ),
    ],
)
def test_mistakes_are_told(config, words):
    with pytest.raises(ValueError, match=words):
        make_env("autoscaling", **{**ONE, **config}).reset(seed=0)


def test_what_cannot_be_is_left_out_and_explained():
    env = make_env("autoscaling", **ONE)
    env.reset(seed=0)
    *_, info = env.step(
        (
            ScaleChange(HERE, Operation.START, 3),
            ScaleChange(HERE, Operation.RECLAIM, 1),
            ScaleChange(Endpoint("llama-3.1-8b", "mars"), Operation.START, 1),
            Release(HERE, 9),
        )
    )
    assert info["num_refused"] == 4
    assert info["refused"].split("; ") == [
        "2 of 3: llama-3.1-8b in local has no more places for 1xH100",
        "0 of 1: llama-3.1-8b in local has no more places for 1xH100",
        "there is no endpoint llama-3.1-8b in mars",
        "there is no release level 9",
        "there are 3",
    ]
    assert len(env.state.endpoints[0].instances) == 4
    with pytest.raises(ValueError, match="action must be 3 integers"):
        env.step(np.array([9, 0, 0]))


def test_latencies_are_those_of_the_records():
    env = make_env("autoscaling", **REGIONS)
    list(play(env, 0, lambda e: None))
    records = env.records()
    interactive = records.class_id < 2
    for name in ("ttft", "e2e"):
        for percent in (50, 95):
            exact = np.percentile(getattr(records, f"{name}_s")[interactive], percent, method="inverted_cdf")
            assert env.core.latency(name, percent, ("iw_f", "iw_n")) == pytest.approx(exact, rel=0.011)
    assert env.core.latency("tpot", 50, endpoint=0) > 0
    with pytest.raises(ValueError, match="unknown class 'fast'"):
        env.core.latency("ttft", 50, ("fast",))


def test_records_that_were_not_kept():
    env = make_env("autoscaling", **ONE, keep_records=False)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="keep_records is false"):
        env.records()


@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_it_can_be_looked_at(mode):
    env = make_env("autoscaling", **REGIONS, render_mode=mode)
    env.reset(seed=0)
    env.step(None)
    picture = env.render()
    if mode == "ansi":
        assert picture.count("running") == 4
        assert "Mon 14:05" in picture
    else:
        assert picture.dtype == np.uint8
        assert picture.shape[2] == 3


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weights_that_are_no_weights_are_refused(weight):
    with pytest.raises(ValueError, match=r"objective\.gpu_usd must be finite and not negative"):
        Objective(gpu_usd=weight)
