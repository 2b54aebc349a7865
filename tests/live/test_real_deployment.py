"""Deployment of the real engine on this machine's cores: counts, order and completeness, never latencies.

Run with `SERVING_GYM_VLLM_PYTHON=/path/to/python python -m pytest -m vllm`; that Python needs vLLM 0.32 (CPU build).
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from serving_gym.envs.deployment.live.env import LiveDeploymentEnv
from serving_gym.envs.deployment.live.fleet import DividedFleet
from serving_gym.envs.deployment.live.platform import Platform
from serving_gym.envs.deployment.state import Deploy
from serving_gym.envs.interface.metrics import FINISHED, UNFINISHED
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.live.envelope import EnvelopeSettings
from serving_gym.envs.live.launch_settings import PYTHON_VARIABLE, LaunchSettings
from serving_gym.envs.live.launcher import LocalServer
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.live.transitions import Slot, SlotState
from serving_gym.envs.machines.cluster import Deployment, Replica, ReplicaKind
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from tests.processes import is_running

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        not os.environ.get(PYTHON_VARIABLE), reason=f"{PYTHON_VARIABLE} names no Python with vLLM"
    ),
]

SPEC = DeploymentSpec(
    model="tiny-llama",
    gpu="cpu",
    engine="",
    profile="tiny-llama_cpu",
    num_machines=1,
    gpus_per_machine=2,
    max_pp=1,
    block_size=32,
    max_num_seqs=16,
    max_num_batched_tokens=512,
    kv_blocks=511,
)
APART = Deployment(SPEC.cluster, (Replica(ReplicaKind(1), (0,)), Replica(ReplicaKind(1), (1,))))
MERGED = Deployment(SPEC.cluster, (Replica(ReplicaKind(2), (0, 1)),))
MOST_STEPS = 90


def test_two_replicas_become_one_of_both_cores_under_load(tmp_path: Path) -> None:
    """What runs is drained, what comes meanwhile waits, and the replica of two ranks serves it: nobody is lost."""
    requests = 900
    load = Workload(np.arange(requests) * 1.0, np.full(requests, 64), np.full(requests, 16))
    path = write_trace(load, tmp_path / "trace.parquet")
    with ExitStack() as stack:
        platform = Platform(LaunchSettings(start_within_s=400.0), ("0", "1"))
        slots = [Slot(LocalServer(platform.base, tmp_path / str(n)), lambda: 0) for n in range(4)]
        limits = EnvelopeSettings(min_dwell_s=0.0)
        fleet = DividedFleet(slots, platform, Deployment(SPEC.cluster), 16, "fcfs", LiveSettings(), limits)
        stack.callback(fleet.close)
        env = LiveDeploymentEnv(
            fleet,
            10.0,
            workload=WorkloadSpec(name="file", path=str(path), split="all"),
            cluster=SPEC,
            split="all",
            span_s=5.0,
            num_types=1,
            past_requests=100,
            past_spans=4,
            profiling="closed_form",
            drain_limit_s=60.0,
        )
        env.reset(seed=0)
        *_, info = env.step(Deploy(APART, np.ones((2, 1))))
        assert info["executed"]["replicas"] == [[0], [1]]
        env.step(None)
        before = [slot.server.pid for slot in slots[:2]]
        assert all(pid is not None and is_running(pid) for pid in before)
        *_, info = env.step(Deploy(MERGED, np.ones((1, 1))))
        assert (info["refused"], info["reward_terms"]["switch"]) == ("", -2)
        for _ in range(MOST_STEPS):
            if fleet.switch is None:
                break
            env.step(None)
        (switch,) = fleet.switches
        assert switch.failed == 0, slots[2].steps
        assert not any(is_running(pid) for pid in before if pid is not None)
        for _ in range(3):  # the wide one serves, first what has waited
            env.step(None)
        assert env.state.engines["status"].tolist() == [EngineStatus.ACTIVE]
        assert env.state.engines["width"].tolist() == [2]
        assert env.state.num_pooled == 0
        assert [str(slot.state) for slot in slots] == ["stopped", "stopped", SlotState.READY, "stopped"]
        # twice the KV of a replica on one core: each rank has half of the heads
        assert env.state.engines["kv_capacity_blocks"][0] == 2 * 512 - 1
        records = env.records()
        assert set(records.outcome) <= {FINISHED, UNFINISHED}
        done = records.outcome == FINISHED
        assert done.sum() >= len(done) - 16
        assert (records.generated_tokens[done] == 16).all()
        assert set(records.engine[done]) == {0, 1, 2}
    assert not any(slot.server.pid for slot in slots)
