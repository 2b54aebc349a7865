"""What clients see of a simulated episode, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from serving_gym.baselines.registry import make_policy
from serving_gym.calibration.engines import Frontend
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.rollouts.rollout import run_episode
from serving_gym.runners.validation.front_end import as_clients_see_it, shifted
from tests.defaults import make_env


@pytest.fixture(scope="module")
def world():
    """A simulated episode on two engines, and its setting."""
    fleet = FleetConfig(groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 2),))
    workload = WorkloadSpec(name="sharegpt_poisson", num_requests=40, rate_rps=20.0, split="all")
    env = make_env("routing", workload=workload, cluster=fleet, split="all")
    return run_episode(env, make_policy("round_robin"), 0), env.unwrapped


def test_every_token_comes_later_by_the_front_end_of_its_engine(world):
    records = world[0].records
    later = shifted(records, [Frontend(0.5, 0.001, 2.0), Frontend()])
    there = records.engine == 0
    assert 0 < there.sum() < len(there)
    np.testing.assert_array_equal(later.first_token_s[~there], records.first_token_s[~there])
    tpot_s = (records.finish_s - records.first_token_s) / np.maximum(records.output_tokens - 1, 1)
    waited = records.first_scheduled_s > records.arrival_s  # for the iteration in flight
    assert 0 < waited[there].sum() < there.sum()
    delay_s = 0.5 + 0.001 * records.input_tokens + 2 * tpot_s * waited
    np.testing.assert_allclose((later.first_token_s - records.first_token_s)[there], delay_s[there])
    np.testing.assert_allclose((later.finish_s - records.finish_s)[there], delay_s[there])


def test_requests_that_decode_beside_it_make_a_first_token_late(world):
    records = world[0].records
    later = shifted(records, [Frontend(request_s=0.25), Frontend()])
    for i in range(len(records)):
        first_s = records.first_token_s[i]
        there = (records.engine == records.engine[i]) & (np.arange(len(records)) != i)
        beside = int((there & (records.first_token_s <= first_s) & (records.finish_s > first_s)).sum())
        delay_s = 0.25 * beside if records.engine[i] == 0 else 0.0
        assert later.first_token_s[i] - first_s == pytest.approx(delay_s)
        assert later.finish_s[i] - records.finish_s[i] == pytest.approx(delay_s)
    assert (later.first_token_s > records.first_token_s).sum() > 5


@pytest.mark.parametrize("term", ["latency", "goodput", "ttft_attainment"])
def test_the_return_is_that_of_the_later_records(world, term):
    episode, env = world
    weights = {
        "latency": 0.0,
        "goodput": 0.0,
        "ttft_attainment": 0.0,
        "tpot_attainment": 0.0,
        "abandoned": 0.0,
    }
    objective = Objective(**(weights | {term: 3.0}))
    slo = env.policy_spec.slos[0]
    late = as_clients_see_it(episode, [Frontend(2 * slo.ttft_s)] * 2, env.policy_spec, objective)
    count, scale = len(episode.records.index), objective.scale
    good = episode.metrics["slo_attainment"] * count
    expected = {
        "latency": -3 * scale * 2 * count,
        "goodput": -3 * scale * good,
        "ttft_attainment": -3 * scale * count,
    }
    gained = late.metrics["return"] - episode.metrics["return"]
    assert gained == pytest.approx(expected[term])
    assert late.metrics["slo_attainment"] == 0
    mean_s = episode.metrics["e2e_mean_finished_s"] + 2 * slo.ttft_s
    assert late.metrics["e2e_mean_finished_s"] == pytest.approx(mean_s)


def test_what_never_finished_stays_lost(world):
    records = world[0].records
    lost = records.finish_s.copy()
    lost[3] = np.nan
    later = shifted(replace(records, finish_s=lost), [Frontend(0.5)] * 2)
    assert np.isnan(later.finish_s[3])
