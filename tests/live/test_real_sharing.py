"""Sharing of this machine's cores by several models on the real engine: counts, order and completeness, no latencies.

Run with `SERVING_GYM_VLLM_PYTHON=/path/to/python python -m pytest -m vllm`; that Python needs vLLM 0.32 (CPU build).
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from serving_gym.envs.interface.metrics import FINISHED
from serving_gym.envs.interface.sharing import Event, InstanceStatus
from serving_gym.envs.live.envelope import EnvelopeSettings
from serving_gym.envs.live.launch_settings import PYTHON_VARIABLE, LaunchSettings
from serving_gym.envs.live.launcher import LocalServer
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.live.transitions import Slot
from serving_gym.envs.machines.shared_nodes import NodeSpec, SharingSpec
from serving_gym.envs.sharing.live.env import LiveSharingEnv
from serving_gym.envs.sharing.live.fleet import SharedFleet
from serving_gym.envs.simulator.sharing.build import ManagerSpec
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

SPEC = SharingSpec(
    nodes=(NodeSpec("gpu", "cpu", 2, memory_gb=0.05),),
    engine="",
    slots_per_node=1,
    max_num_seqs=16,
    block_tokens=32,
    max_tokens=2048,
    load_fixed_s=22.6,
    keep_alive_s=5.0,
)


def test_three_models_take_turns_on_two_cores(tmp_path: Path) -> None:
    """Two are loaded at once; the third has to wait until one of them has been idle for too long and is unloaded."""
    load = Workload(
        arrival_s=np.array([0.0, 0.1, 0.2, 1.0, 1.1, 1.2]),
        input_tokens=np.full(6, 64),
        output_tokens=np.full(6, 16),
        models=tuple(f"tiny-llama#{number}" for number in range(3)),
        model_id=np.array([0, 1, 2, 0, 1, 2]),
    )
    path = write_trace(load, tmp_path / "trace.parquet")

    with ExitStack() as stack:
        slots: list[Slot] = []

        def make_fleet(episode):
            base = [
                LaunchSettings(slot=core, max_model_len=2048, start_within_s=400.0) for core in ("0", "1")
            ]
            slots.extend(Slot(LocalServer(each, tmp_path / each.slot), lambda: 0) for each in base)
            limits = EnvelopeSettings(min_dwell_s=0.0)
            fleet = SharedFleet(
                slots,
                episode.setting,
                lambda model, node: base[node],
                episode.config.manager,
                "fcfs",
                LiveSettings(),
                limits,
            )
            stack.callback(fleet.close)
            return fleet

        env = LiveSharingEnv(
            make_fleet,
            10.0,
            workload=WorkloadSpec(name="file", path=str(path), split="all"),
            cluster=SPEC,
            split="all",
            manager=ManagerSpec(patience_s=900.0, least_tokens=4096),
            drain_limit_s=900.0,
        )
        _, info = env.reset(seed=0)
        loaded, pids = [], set()
        while not env.core.done:
            assert env.state.event == Event.PLACEMENT
            place = int(np.flatnonzero(info["action_mask"])[0])
            *_, info = env.step(place)
            assert info["refused"] == ""
            pids |= {slot.server.pid for slot in slots}
            if place >= len(slots):
                loaded.append(info["executed"])
        assert [entry["request"] for entry in loaded] == [0, 1, 2]
        assert [entry["slot"] for entry in loaded[:2]] == [0, 1]
        records = env.records()
        assert (records.outcome == FINISHED).all()
        assert (records.generated_tokens == 16).all()
        assert (records.engine[[0, 1]] == records.engine[[3, 4]]).all()
        assert records.first_token_s[2] > records.finish_s[[0, 1, 3, 4]].min()
        status = env.state.instances["status"].tolist()
        assert InstanceStatus.SERVING in status
        assert len(env.transition_times()["start_s"]) == 3
        assert env.state.num_ooms == 0
    assert not any(slot.server.pid for slot in slots)
    assert not any(is_running(pid) for pid in pids if pid is not None)
