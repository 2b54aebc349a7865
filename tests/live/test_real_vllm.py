"""The real engine on this machine's CPU: counts, order and completeness, never latencies.

Run with `SERVING_GYM_VLLM_PYTHON=/path/to/python python -m pytest -m vllm`; that Python needs vLLM 0.32 (CPU build).
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serving_gym.calibration.hardware import GpuSpec
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.metrics import FINISHED, REFUSED, UNFINISHED
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.live.backend import LiveBackend
from serving_gym.envs.live.launch_settings import PYTHON_VARIABLE, LaunchSettings
from serving_gym.envs.live.launcher import LocalServer
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.measuring.loads import Limits
from serving_gym.runners.measuring.measure import measure, profile_of
from serving_gym.runners.measuring.model import served_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        not os.environ.get(PYTHON_VARIABLE), reason=f"{PYTHON_VARIABLE} names no Python with vLLM"
    ),
]

SPEC = ClusterSpec(num_gpus=1, router="jsq", order="priority", max_num_seqs=16, block_size=32, max_group=1)
SLOS = (SLO(1.0, 0.1),)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(LaunchSettings(order="priority"), tmp_path_factory.mktemp("vllm")) as server:
        yield server


@pytest.fixture
def backend(server: LocalServer) -> Iterator[LiveBackend]:
    with LiveBackend(SPEC, SLOS, LiveSettings((server.url,))) as backend:
        yield backend


def workload(n: int = 24, output: int = 40) -> Workload:
    rng = np.random.default_rng(0)
    return Workload(
        arrival_s=np.arange(n) * 0.05,
        input_tokens=rng.integers(8, 400, n),
        output_tokens=rng.integers(1, output + 1, n),
        priority=rng.integers(0, 3, n),
    )


def test_exact_lengths_and_complete_records(backend: LiveBackend) -> None:
    (server,) = backend.servers
    assert (server.model, server.max_model_len, server.version[:4]) == ("tiny", 2048, "0.32")
    assert (server.cache.num_blocks, server.cache.block_size) == (511, 32)
    load = workload()
    backend.reset(load)
    backend.run_to_completion(limit_s=120.0)
    records = backend.results()
    assert (records.outcome == FINISHED).all(), backend.details()["errors"]
    assert records.generated_tokens.tolist() == load.output_tokens.tolist()
    assert (records.first_scheduled_s <= records.first_token_s).all()
    assert (records.first_token_s <= records.finish_s).all()
    assert [len(gaps) + 1 for gaps in backend.details()["itls"]] == load.output_tokens.tolist()
    row = backend.observe().engines[0]
    assert row["prefilled_tokens"] == load.input_tokens.sum()
    assert row["generated_tokens"] == load.output_tokens.sum()


def test_the_state_under_load_and_a_reset_in_its_midst(backend: LiveBackend) -> None:
    n = 24
    backend.reset(Workload(np.zeros(n), np.full(n, 64), np.full(n, 600)))
    backend.advance(4.0)
    state = backend.observe()
    row = state.engines[0]
    assert state.stale == ()
    assert (row["num_running"], row["num_waiting"]) == (16, 8)
    assert row["kv_used_blocks"] > 0
    assert row["context_tokens"] > 16 * 64
    assert (backend.results().outcome == UNFINISHED).all()
    state = backend.reset(workload(2))
    assert (state.engines[0]["num_running"], state.engines[0]["kv_used_blocks"]) == (0, 0)


def test_what_is_longer_than_the_model_allows_is_refused(backend: LiveBackend) -> None:
    backend.reset(Workload(np.zeros(2), np.array([64, 2000]), np.array([4, 100]), np.array([4, 100])))
    backend.run_to_completion(limit_s=60.0)
    assert backend.results().outcome.tolist() == [FINISHED, REFUSED]


def test_a_profile_from_the_log(server: LocalServer) -> None:
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=512, max_model_len=1024, kv_tokens=511 * 32)
    measurement = asyncio.run(measure(server.url, server.log, lambda _: limits, 4096, repeats=1))
    assert not measurement.contradictions
    assert {number for number, _ in measurement.steps} == set(range(len(measurement.loads)))
    model = served_model(None, measurement.server.root, "tiny-llama")
    gpu = GpuSpec("cpu", 16e9, 40e9, {"bf16": 500e9}, 40e9)
    profile = profile_of(measurement, model, gpu, 1, "2026-01-01", "test")
    assert profile.held_out["decode_step"]["n"] > 0
    assert profile.held_out["prefill_step"]["n"] > 0
    latency = profile.latency_model(1)
    assert 0 < latency.iteration_s(1, 64) < latency.iteration_s(1, 64, [(0, 500)])


def test_nothing_is_left_of_a_stopped_server(tmp_path: Path) -> None:
    with LocalServer(LaunchSettings(), tmp_path / "vllm") as server:
        group = server.pid
    assert group is not None
    left = [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/stat")
        if path.exists() and path.read_text().rsplit(")", 1)[1].split()[2] == str(group)
    ]
    assert left == []
