"""Autoscaling of the real engine on this machine's CPU: counts, order and completeness, never latencies.

Run with `SERVING_GYM_VLLM_PYTHON=/path/to/python python -m pytest -m vllm`; that Python needs vLLM 0.32 (CPU build).
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from serving_gym.envs.autoscaling.live.env import LiveAutoscalingEnv
from serving_gym.envs.autoscaling.live.fleet import ScaledFleet
from serving_gym.envs.autoscaling.state import AutoscalingSpec, InstanceStatus
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.metrics import FINISHED, UNFINISHED
from serving_gym.envs.interface.scaling import Operation, ScaleChange
from serving_gym.envs.live.envelope import EnvelopeSettings
from serving_gym.envs.live.launch_settings import PYTHON_VARIABLE, LaunchSettings
from serving_gym.envs.live.launcher import LocalServer
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.live.transitions import Slot, SlotState
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

TINY = ReplicaSpec(
    "tiny-llama", "cpu", block_size=32, max_num_seqs=16, kv_blocks=511, profile="tiny-llama_cpu"
)
MOST_STEPS = 60


def test_a_server_is_started_under_load_and_takes_over_from_the_first(tmp_path: Path) -> None:
    """The second server starts at once; the first goes when the second serves; nobody is lost on the way."""
    requests = 600
    load = Workload(np.arange(requests) * 1.0, np.full(requests, 64), np.full(requests, 16))
    path = write_trace(load, tmp_path / "trace.parquet")
    with ExitStack() as stack:
        slots = [
            Slot(LocalServer(LaunchSettings(slot=core), tmp_path / core), lambda: 0) for core in ("0", "1")
        ]
        limits = EnvelopeSettings(min_dwell_s=0.0, most_usage_after=1.0)
        fleet = ScaledFleet(slots, [16, 16], "fcfs", LiveSettings(), limits)
        stack.callback(fleet.close)
        env = LiveAutoscalingEnv(
            fleet,
            10.0,
            workload=WorkloadSpec(name="file", path=str(path), split="all"),
            cluster=FleetConfig(groups=(GroupSpec(TINY, 1, 2),), start_fixed_s=45.0),
            split="all",
            decision_interval_s=5.0,
            episode_s=600.0,
            history_s=60.0,
            drain_limit_s=60.0,
        )
        env.reset(seed=0)
        (own,) = env.policy_spec.setting_of(AutoscalingSpec).endpoints
        *_, info = env.step((ScaleChange(own, Operation.START, 1),))
        assert info["executed"] == [{"operation": "start", "places": [1]}]
        assert env.state.endpoints[0].starting["place"].tolist() == [1]
        for _ in range(MOST_STEPS):
            if slots[1].state is SlotState.READY:
                break
            env.step(None)
        assert slots[1].state is SlotState.READY, slots[1].steps
        first = slots[0].server.pid
        env.step(None)  # both serve
        *_, info = env.step((ScaleChange(own, Operation.STOP, 1, places=(0,)),))
        assert (info["executed"], info["refused"]) == ([{"operation": "stop", "places": [0]}], "")
        for _ in range(MOST_STEPS):
            if slots[0].state is SlotState.STOPPED:
                break
            env.step(None)
        assert slots[0].state is SlotState.STOPPED, slots[0].steps
        assert first is not None
        assert not is_running(first)
        for _ in range(2):  # the second serves alone
            *_, info = env.step(None)
            assert not info["overrides"]
        records = env.records()
        assert set(records.outcome) <= {FINISHED, UNFINISHED}
        done = records.outcome == FINISHED
        assert done.sum() >= len(done) - 16
        assert (records.generated_tokens[done] == 16).all()
        assert set(records.engine[done]) == {0, 1}
        assert env.state.endpoints[0].instances["status"].tolist() == [InstanceStatus.RUNNING]
        assert len(env.transition_times()["start_s"]) == 2
    assert not any(slot.server.pid for slot in slots)
