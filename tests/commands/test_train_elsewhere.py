"""`runners.train` with further fleets, nodes and settings to train on: `also_clusters`, `also_env`, `also_fleets`."""

from __future__ import annotations

import itertools
import json

import pytest
import yaml

from serving_gym.runners import train
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.train_config import TrainConfig


def test_a_router_is_trained_with_other_settings_as_well() -> None:
    words = ["env=routing", "agent=api", "also_env=[{gauge_interval_s: 1.0, retry_s: 0.2}]"]
    config = composed("train", TrainConfig, words)
    (settings,) = (each.arguments for each in config.others.values())
    here = config.environment.arguments
    assert (here["gauge_interval_s"], settings["gauge_interval_s"], settings["retry_s"]) == (0.0, 1.0, 0.2)
    assert {name for name in here if here[name] != settings[name]} == {"gauge_interval_s", "retry_s"}


def test_an_imitator_is_trained_on_other_nodes_and_requests_as_they_are() -> None:
    words = ["also_clusters=[nodes_warm_slow]", "also_workloads=[functions_mostly_large]"]
    config = composed("train", TrainConfig, ["experiment=sharing_warm", "agent=dagger", *words])
    slower, larger = (each.arguments for each in config.others.values())
    assert slower["workload"] == config.workload
    assert slower["cluster"].load_bytes_per_s < config.cluster["load_bytes_per_s"]
    assert larger["workload"].params["ratio"] == [1, 1, 4]
    assert larger["cluster"].load_bytes_per_s == config.cluster["load_bytes_per_s"]


def test_more_requests_come_to_a_larger_fleet() -> None:
    words = ["env=routing", "agent=api", "workload=routing_mixture", "cluster=fleet_mixed_x4"]
    config = composed("train", TrainConfig, [*words, "also_clusters=[fleet_h100_x4,fleet_mixed_x16]"])
    as_large, larger = (each.arguments for each in config.others.values())
    assert as_large["workload"] == config.workload
    assert larger["workload"].num_requests == 4 * config.workload.num_requests
    rates = [[part["rate_rps"] for part in each["workload"].params["parts"]] for each in (as_large, larger)]
    assert rates[1] == [4.0 * rate for rate in rates[0]]


def test_a_router_is_trained_and_validated_on_random_fleets(tmp_path) -> None:
    few = [
        "also_fleets=any",
        "also_fleets.number=2",
        "also_fleets.validation=1",
        "also_fleets.sessions_share=0",
    ]
    small = ["workload.num_requests=40", "num_envs=2", "agent.iterations=1", "agent.sample_every=1"]
    ends = ["agent.hidden=4", "total_steps=4000", "validations=1", "validation_seeds=2", "baselines=[jsq]"]
    words = ["env=routing", "agent=api", *few, *small, *ends, "seeds=1", "launcher.workers=1"]
    assert train.main([*words, f"out={tmp_path}"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    first = next(row for row in rows if row["kind"] == "validation")
    assert first["return"] == pytest.approx(-1.0)  # in shares of what the start has on each validation fleet
    config = yaml.safe_load((tmp_path / "checkpoint" / "config.yaml").read_text())
    assert (config["also_fleets"]["number"], config["also_fleets"]["validation"]) == (2, 1)


def test_random_fleets_differ_and_stay_with_the_seed() -> None:
    words = [
        "env=routing",
        "agent=api",
        "also_fleets=any",
        "also_fleets.number=4",
        "also_fleets.validation=2",
    ]
    config, again = (composed("train", TrainConfig, words) for _ in range(2))
    settings = [each.settings for each in (*config.others.values(), *config.validation_fleets.values())]
    assert [each.settings for each in again.others.values()] == settings[:4]
    assert all(one.cluster != other.cluster for one, other in itertools.combinations(settings, 2))
    assert {each.slos == config.environment.settings.slos for each in settings} == {True}
