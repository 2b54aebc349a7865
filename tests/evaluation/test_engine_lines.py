"""The first lines of a run say where the times of its engines come from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.machines.shared_nodes import SharingSpec
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.runners.reporting.engine_lines import engine_lines, say_engines

H100 = ReplicaSpec("llama-3.1-8b", "H100")


def test_every_kind_of_a_fleet_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetConfig((GroupSpec(H100, 1), GroupSpec(H100, 2), GroupSpec(replace(H100, tp_size=2), 1)))
    say_engines(fleet)
    one, two = capsys.readouterr().err.splitlines()
    assert one.startswith("llama-3.1-8b on 1 x H100 by vllm-0.24: measured (on vLLM 0.24.0, 2026-11-26)")
    assert one.endswith("clients see tokens later by 2.6 ms + 0.13 ms a request that decodes beside")
    assert two.startswith("llama-3.1-8b on 2 x H100 by vllm-0.24: transferred (")


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (ClusterSpec(front_end="none"), "front_end=none: clients see tokens as they are computed"),
        (ClusterSpec(engine=""), "no front end is known"),
        (DeploymentSpec(engine="vllm-0.15"), "+ 1 iteration where it waits"),
        (SharingSpec(), "4 x A100-80GB: times by vllm-0.24, front_end=included"),
    ],
)
def test_what_clients_see_is_said(cluster: ClusterSpec | DeploymentSpec | SharingSpec, said: str) -> None:
    assert any(said in line for line in engine_lines(cluster))
