"""The same figures wherever an episode runs: alone, in a place of a vector environment, in another process."""

from __future__ import annotations

import pytest
from gymnasium.vector import AutoresetMode

from serving_gym.envs.registration import make_vector_env
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.configuration.schema import CompareConfig, LauncherConfig
from serving_gym.runners.rollouts import launchers
from serving_gym.runners.rollouts.launchers import Job, Rollouts, pays, run_jobs
from serving_gym.runners.rollouts.rollout import run_episode, run_vector_episodes

POLICIES = ("round_robin", "jsq")
SEEDS = (3, 4, 5)


@pytest.fixture(scope="module")
def config() -> CompareConfig:
    words = ["env=routing", f"policies=[{','.join(POLICIES)}]", "workload.num_requests=80", "plots=false"]
    return composed("compare", CompareConfig, words)


@pytest.mark.parametrize("name", ["jsq", "zoo/routing"])
def test_episodes_of_a_vector_environment_have_the_figures_of_the_scalar_one(config, name):
    scalar = config.environment.make()
    vector = make_vector_env(
        "routing", len(SEEDS), autoreset_mode=AutoresetMode.DISABLED, **config.environment.arguments
    )
    policies = [load_policy(name) for _ in SEEDS]
    together = run_vector_episodes(vector, policies, scalar.policy_spec, SEEDS)
    assert together is not None
    for seed, episode in zip(SEEDS, together, strict=True):
        alone = run_episode(scalar, load_policy(name), seed)
        assert episode.actions == alone.actions
        for figure in ("return", "slo_attainment", "ttft_p99_s", "tpot_p50_s", "goodput_rps"):
            assert episode.metrics[figure] == alone.metrics[figure], figure


def test_a_policy_that_says_more_than_a_place_is_run_alone(config):
    from serving_gym.envs.routing.state import Dispatch

    class Prioritising:
        name, clairvoyant = "prioritising", False

        def reset(self, spec, seed):
            pass

        def act(self, observation, state):
            return Dispatch(0, priority=1)

    vector = make_vector_env(
        "routing", 1, autoreset_mode=AutoresetMode.DISABLED, **config.environment.arguments
    )
    spec = config.environment.make().policy_spec
    assert run_vector_episodes(vector, [Prioritising()], spec, [0]) is None


def test_worker_processes_return_the_same_figures_in_the_same_order(config, monkeypatch):
    monkeypatch.setattr(launchers, "pays", lambda work_s, workers: True)
    settings = [config.environment]
    jobs = [Job(name, seed) for seed in SEEDS for name in POLICIES]
    found = []
    for workers in (1, 2):
        rollouts = Rollouts(settings, {name: name for name in POLICIES}, scores_only=True)
        found.append([each.metrics for each in run_jobs(LauncherConfig(workers=workers), rollouts, jobs)])
        assert len(rollouts.policies) == len(POLICIES)
    assert found[0] == found[1]
    assert len({each["return"] for each in found[0]}) == len(jobs)


def test_processes_are_started_where_that_saves_time():
    assert pays(60.0, 2)
    assert not pays(10.0, 2)
    assert not pays(60.0, 1)
