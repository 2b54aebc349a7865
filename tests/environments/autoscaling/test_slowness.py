"""How much slower engines are than they are known to be, as it is seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from serving_gym.envs.autoscaling.observation import ENDPOINT_FEATURES
from serving_gym.envs.autoscaling.slowness import first_places, slowness_of
from serving_gym.envs.interface.fleet import SlowNode
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE, Endpoint
from tests.defaults import make_env
from tests.environments.autoscaling.samples import ONE, play

BIN_S = 60.0
# Two places of one kind, the second of a model with a slower profile: 10 ms and 1 ms for each request beside the first.
ENGINES = NominalEngines(
    models=("small", "large"),
    regions=("east", "east"),
    gpus=("H100", "H100"),
    num_gpus=np.array([1, 1]),
    block_size=np.array([16, 16]),
    kv_capacity_tokens=np.array([16_000, 16_000]),
    max_num_seqs=np.array([8, 8]),
    max_num_batched_tokens=np.array([512, 512]),
    prefill_s_per_token=np.array([1e-4, 2e-4]),
    decode_s=np.array([[0.010 + 0.001 * max(batch - 1, 0) for batch in range(9)]] * 2) * [[1.0], [2.0]],
    kv_s_per_token=np.array([1e-6, 2e-6]),
)


def traffic(*bins, **values):
    """(1, T, columns): two instances, four requests inside, prompts of 1000 tokens and answers of 200."""
    usual = {
        "mean_instances": 2.0,
        "mean_concurrency": 4.0,
        "requests": 12.0,
        "input_tokens": 12_000.0,
        "finished": 12.0,
        "output_tokens": 2400.0,
        "tpot_sum_s": 12 * 0.02,
    }
    rows = np.zeros(max(len(bins), 1), TRAFFIC_DTYPE)
    for row, own in zip(rows, bins or ({},), strict=True):
        for name, value in {**usual, **values, **own}.items():
            row[name] = value
    return rows.view(np.float64).reshape(1, len(rows), -1)


def found(rows, place=0):
    return float(slowness_of(rows, BIN_S, ENGINES, np.array([place]))[0])


def test_by_hand():
    """Two requests an iteration: 11 ms, and 2 x 1100 tokens of context; a hundredth of the time goes to prompts."""
    iteration_s = 0.011 + 2 * 1100 * 1e-6
    of_prompts = 12_000 / (2 * 60.0) * 1e-4
    assert found(traffic()) == pytest.approx(0.02 / (iteration_s + of_prompts * 0.02))


def test_engines_that_take_so_many_times_as_long_are_found_to():
    """At the same load: TPOT (1 - f r) = f d."""
    iteration_s, of_prompts = 0.011 + 2 * 1100 * 1e-6, 0.01
    for factor in (0.8, 1.0, 1.2, 5.0):
        tpot_s = factor * iteration_s / (1.0 - factor * of_prompts)
        assert found(traffic(tpot_sum_s=12 * tpot_s)) == pytest.approx(factor)


def test_each_endpoint_is_held_against_the_profile_of_its_engines():
    assert found(traffic(), place=1) < 0.6 * found(traffic(), place=0)
    places = first_places(ENGINES, (Endpoint("large", "east"), Endpoint("small", "east")))
    np.testing.assert_array_equal(places, [1, 0])


def test_nothing_is_known_before_an_answer_has_ended():
    assert found(traffic(finished=0.0, tpot_sum_s=0.0, output_tokens=0.0)) == 1.0
    assert found(traffic(mean_instances=0.0)) == 1.0


def test_bins_without_an_instance_do_not_count():
    """Days before the episode are known by their arrivals alone."""
    before = dict.fromkeys(("mean_instances", "mean_concurrency", "finished", "tpot_sum_s"), 0.0)
    assert found(traffic({**before, "input_tokens": 1e6}, {})) == pytest.approx(found(traffic()))


def test_those_that_wait_are_in_no_iteration():
    """Eight run at most, whoever else is inside."""
    assert found(traffic(mean_concurrency=16.0)) == pytest.approx(found(traffic(mean_concurrency=400.0)))
    assert found(traffic(mean_concurrency=16.0)) < found(traffic(mean_concurrency=8.0))


@pytest.mark.parametrize(("factor", "low", "high"), [(1.0, 0.95, 1.12), (1.2, 1.15, 1.35), (2.0, 1.8, 2.4)])
def test_simulated_engines_are_found_out(factor, low, high):
    cluster = replace(ONE["cluster"], slow_nodes=tuple(SlowNode(0.0, place, factor) for place in range(4)))
    env = make_env("autoscaling", **{**ONE, "cluster": cluster if factor != 1.0 else ONE["cluster"]})
    column = ENDPOINT_FEATURES.index("slowness")
    seen = [observation["endpoints"][0, column] for observation, *_ in play(env, 3, lambda _: None)]
    assert seen[0] == 1.0
    assert low < np.median(seen[1:]) < high
