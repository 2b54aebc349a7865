"""From the words of a command to what servers are launched with."""

from __future__ import annotations

import os
import sys

import pytest

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.live.launch_settings import environment
from serving_gym.runners.configuration.schema import BackendConfig
from serving_gym.runners.live.launching import fleet_launch_settings, launch_settings, slots_of


def words(**more: object) -> BackendConfig:
    return BackendConfig(name="vllm", launch=True, python=sys.executable, **more)  # type: ignore[arg-type]


def test_cores_or_gpus_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert slots_of(words(), [1, 2, 1]) == ("0", "1|2", "3")
    assert slots_of(words(), [2, 2, 2]) == ("0|1", "2|3", "0|1")  # there are no more cores
    assert slots_of(words(device="cuda"), [1, 2]) == ("0", "1,2")
    assert slots_of(words(slots=("3", "0-1")), [1, 2]) == ("3", "0-1")
    with pytest.raises(ValueError, match="must name a slot for each of 2 servers, got 1"):
        slots_of(words(slots=("0",)), [1, 1])


def test_a_fleet_is_launched_place_by_place() -> None:
    wide = ReplicaSpec("llama-3.1-8b", "H100", tp_size=2, memory_utilization=0.4, max_num_seqs=64)
    fleet = FleetConfig(groups=(GroupSpec(wide, 1, 2),), order="priority")
    config = words(device="cuda", serves="folder", sleep_mode=True, max_model_len=8192)
    one, other = fleet_launch_settings(config, fleet)
    assert (one.slot, other.slot) == ("0,1", "2,3")
    assert (one.tp_size, one.memory_utilization, one.max_num_seqs, one.order) == (2, 0.4, 64, "priority")
    assert (one.device, one.model, one.sleep_mode, one.max_model_len) == ("cuda", "folder", True, 8192)


def test_an_engine_of_a_node_is_launched_as_wide_as_it_is() -> None:
    spec = ClusterSpec(num_gpus=2, base_width=2, block_size=32, max_num_seqs=8, kv_blocks_override=100)
    settings = launch_settings(words(), spec)
    assert (settings.tp_size, settings.slot, settings.kv_blocks, settings.max_num_seqs) == (2, "0|1", 100, 8)
    assert environment(settings)["TORCH_COMPILE_DISABLE"] == "1"
    on_gpus = launch_settings(words(device="cuda", slots=("4,5", "6,7")), spec)
    assert (on_gpus.device, on_gpus.slot) == ("cuda", "4,5")
    alone = launch_settings(words(), ClusterSpec(num_gpus=1))
    assert "TORCH_COMPILE_DISABLE" not in environment(alone)


@pytest.mark.parametrize(
    ("asked", "said"), [(None, None), (True, "--async-scheduling"), (False, "--no-async-scheduling")]
)
def test_servers_schedule_as_their_cluster_is_said_to(asked: bool | None, said: str | None) -> None:
    flags = {"--async-scheduling", "--no-async-scheduling"}
    config = words(device="cuda")
    fleet = FleetConfig(groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 1),), async_scheduling=asked)
    node = launch_settings(config, ClusterSpec(num_gpus=1, async_scheduling=asked))
    for settings in (node, *fleet_launch_settings(config, fleet)):
        assert flags & set(settings.arguments("folder", 1)) == ({said} if said else set())


def test_on_a_cpu_none_schedules_asynchronously() -> None:
    with pytest.raises(ValueError, match=r"cluster\.async_scheduling=true needs backend\.device=cuda"):
        launch_settings(words(), ClusterSpec(num_gpus=1, async_scheduling=True))


def test_no_launched_server_schedules_as_before_v1() -> None:
    fleet = FleetConfig(groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 1),), scheduler="v0")
    with pytest.raises(ValueError, match=r"cluster\.scheduler=v0 needs backend\.launch=false"):
        fleet_launch_settings(words(device="cuda"), fleet)
    with pytest.raises(ValueError, match=r"cluster\.scheduler=v0 needs backend\.launch=false"):
        launch_settings(words(), ClusterSpec(num_gpus=1, scheduler="v0"))


def test_a_length_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"backend\.max_model_len must be at least 1"):
        words(max_model_len=0)
    with pytest.raises(ValueError, match=r"backend\.control_within_s must be positive"):
        words(control_within_s=0.0)
