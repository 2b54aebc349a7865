"""Fleets drawn at random: the same from a seed, others from another stream, at loads that they were asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from serving_gym.envs.deployment.profiling import SaturationRuns, WorkloadType, measured_rps
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.routing.config import RoutingConfig
from serving_gym.envs.routing.random_fleets import (
    TRAINING,
    VALIDATION,
    RandomFleets,
    fleet_rps,
    saturated_rps,
)
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec

H100 = ReplicaSpec("llama-3.1-8b", "H100", engine="vllm-0.24")
BASE = RoutingConfig(WorkloadSpec("azure_conv_fitted"), FleetConfig((GroupSpec(H100, 2),)))
FAMILY = RandomFleets(
    number=3,
    validation=1,
    places=(2, 6),
    models={"llama-3.1-8b": ["H100/1", "H100/2", "A100-80GB/1"], "qwen3-14b": ["H100/2"]},
    engines=("vllm-0.24", "vllm-0.15"),
    traffic={"azure_conv_fitted": [0.3, 0.9], "azure_code_fitted": [0.1, 0.3]},
    parts=2,
)
WITH_SESSIONS = replace(FAMILY, sessions={"chat_sessions": [0.4, 0.4]}, sessions_share=1.0)


def test_fleets_come_from_the_seed_alone_and_none_is_drawn_for_validation_too() -> None:
    drawn = [FAMILY.draw(BASE, 5, i) for i in range(6)]
    assert drawn == [FAMILY.draw(BASE, 5, i) for i in range(6)]
    assert drawn[0] != FAMILY.draw(BASE, 6, 0)
    assert not [one for one in drawn if one in [FAMILY.draw(BASE, 5, i, VALIDATION) for i in range(6)]]
    assert drawn[2] == FAMILY.draw(BASE, 5, 2, TRAINING)


def test_fleets_are_of_the_family_and_keep_what_is_not_drawn() -> None:
    drawn = [FAMILY.draw(replace(BASE, retry_s=0.3), 1, i) for i in range(20)]
    assert all(one.retry_s == 0.3 for one in drawn)
    assert {one.cluster.num_places for one in drawn} <= set(range(2, 7))
    assert {group.replica.model for one in drawn for group in one.cluster.groups} == set(FAMILY.models)
    assert {one.cluster.engine for one in drawn} == set(FAMILY.engines)
    assert any(len(one.cluster.groups) > 1 for one in drawn)
    assert any(one.gauge_interval_s == 0.0 for one in drawn)
    assert all(0.1 <= one.gauge_interval_s <= 10.0 for one in drawn if one.gauge_interval_s)
    assert not any(one.cluster.prefix_caching for one in drawn)


def test_engines_run_fewer_requests_at_once_where_that_is_asked_for() -> None:
    limited = [replace(FAMILY, slots=(2, 8), slots_share=1.0).draw(BASE, 1, i) for i in range(6)]
    slots = [group.replica.max_num_seqs for one in limited for group in one.cluster.groups]
    assert set(slots) <= set(range(2, 9))
    assert len(set(slots)) > 2
    usual = [FAMILY.draw(BASE, 1, i) for i in range(6)]
    kinds = [[(g.replica.gpu, g.replica.tp_size, g.count) for g in one.cluster.groups] for one in usual]
    same = [[(g.replica.gpu, g.replica.tp_size, g.count) for g in one.cluster.groups] for one in limited]
    assert kinds == same  # the limits are drawn by themselves
    few, many = limited[0].workload.params["parts"][0], usual[0].workload.params["parts"][0]
    assert few["rate_rps"] < many["rate_rps"]


def test_rates_are_shares_of_what_the_fleet_finishes() -> None:
    for i in range(4):
        one = FAMILY.draw(BASE, 2, i)
        for part in one.workload.params["parts"]:
            least, most = FAMILY.traffic[part["name"]]
            load = part["rate_rps"] / fleet_rps(one.cluster, part["name"])
            assert least * 0.999 <= load <= most * 1.001


def test_sessions_come_as_often_as_asked_for_where_prefixes_are_cached() -> None:
    one = WITH_SESSIONS.draw(BASE, 0, 0)
    assert one.cluster.prefix_caching
    part = one.workload.params["parts"][0]
    spec = WorkloadSpec(num_requests=one.workload.num_requests, **part)
    workload = WorkloadSource(spec).sample(3)
    comes_rps = len(workload) / workload.arrival_s[-1]
    assert comes_rps == pytest.approx(0.4 * fleet_rps(one.cluster, part["name"]), rel=0.3)


@pytest.mark.parametrize("workload", ["azure_conv_fitted", "azure_code_fitted", "mooncake_conv_fitted"])
def test_one_saturation_run_is_near_the_converged_rate(workload: str) -> None:
    drawn = WorkloadSource(WorkloadSpec(workload, num_requests=1000)).sample(0)
    lengths = WorkloadType(
        np.asarray(drawn.input_tokens, np.int64), np.asarray(drawn.output_tokens, np.int64)
    )
    converged = measured_rps(H100, lengths, SaturationRuns(precision=0.05))
    assert saturated_rps(H100, workload) == pytest.approx(converged, rel=0.12)


def test_an_engine_that_cannot_hold_the_model_finishes_nothing() -> None:
    too_large = ReplicaSpec("llama-3.1-70b", "H100", engine="vllm-0.24")
    assert saturated_rps(too_large, "azure_conv_fitted") == 0.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"number": -1}, "also_fleets.number"),
        ({"number": 0}, "also_fleets.validation needs fleets to train on"),
        ({"places": (4, 2)}, "also_fleets.places must be two numbers, least and most, got [4, 2]"),
        ({"slots": (0, 2)}, "also_fleets.slots must be two numbers, least and most, got [0, 2]"),
        ({"models": {}}, "also_fleets.models must not be empty"),
        ({"models": {"llama-3.1-9b": ["H100/1"]}}, "llama-3.1-8b"),
        ({"models": {"llama-3.1-8b": ["H100"]}}, "as GPU/TP, like H100/2, got 'H100'"),
        ({"models": {"llama-3.1-8b": ["H101/1"]}}, "H100"),
        ({"models": {"llama-3.1-8b": []}}, "at least one kind of engine"),
        ({"traffic": {"azure_conv_fitted": [0.0, 1.0]}}, "two positive shares of the capacity"),
        ({"traffic": {"azure_convfitted": [0.1, 1.0]}}, "azure_conv_fitted"),
        ({"sessions_share": 0.5}, "also_fleets.sessions must not be empty"),
        ({"sessions": {"azure_conv_fitted": [0.1, 0.2]}}, "must be of chat_sessions"),
        ({"gauge_age_s": 0.0}, "also_fleets.gauge_age_s must lie in [0.1, 60]"),
        ({"engines": ("vllm-0.25",)}, "vllm-0.24"),
    ],
)
def test_mistakes_get_one_sentence(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=r"also_fleets|unknown|must") as error:
        replace(FAMILY, **changes)
    assert said in str(error.value)


def test_a_fleet_that_could_serve_nothing_is_refused() -> None:
    family = replace(FAMILY, models={"llama-3.1-70b": ["H100/1"]})
    with pytest.raises(ValueError, match=r"llama-3\.1-70b on 1 x H100"):
        family.draw(BASE, 0, 0)


def test_traffic_of_other_classes_than_the_base_is_refused() -> None:
    family = replace(FAMILY, traffic={"flying_priority": [0.1, 0.2]}, parts=1)
    with pytest.raises(ValueError, match=r"also_fleets\.traffic"):
        family.draw(BASE, 0, 0)
