"""Environments that start and stop servers, from the words of a command to processes, and none of these left behind."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from serving_gym.envs.deployment.state import Deploy
from serving_gym.envs.interface.metrics import FINISHED
from serving_gym.envs.live.transitions import SlotState
from serving_gym.envs.machines.cluster import Deployment, Replica, ReplicaKind
from serving_gym.envs.workload.formats import write_trace
from serving_gym.runners import evaluate
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.schema import EvaluateConfig
from serving_gym.runners.live.attach import live_env
from tests.live.test_sharing import two_models
from tests.processes import is_running

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """\
    #!{python}
    import os, subprocess, sys, time
    sys.path.insert(0, {root!r})
    from tests.live.fake_server import Behaviour, FakeServer
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("pids", child.pid, os.getpid(), flush=True)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    time.sleep(float(os.environ.get("FAKE_START_S", 0)))
    with FakeServer(Behaviour(max_model_len=16384, num_blocks=1024, token_s=0.0), port=port):
        time.sleep(600)
    """


@pytest.fixture
def words(tmp_path) -> list[str]:
    """Words that every command here has: servers are processes that speak as vLLM does."""
    script = tmp_path / "python"
    script.write_text(textwrap.dedent(SCRIPT).format(python=sys.executable, root=str(ROOT)), encoding="utf-8")
    script.chmod(0o755)
    return [
        *("backend.launch=true", f"backend.python={script}", "backend.envelope.min_dwell_s=0"),
        *("backend.scrape_interval_s=0.1", "split=all", "seeds=1", "policy=stay"),
    ]


@pytest.fixture
def deployment(words) -> list[str]:
    return [
        *("env=deployment", "cluster=machines_tiny_cpu_x2", *words, "workload.num_requests=40"),
        *("workload.params.mean_rps=10", "workload.params.long_answer_factor=1", "env.span_s=1"),
        *("env.num_types=1", "env.past_requests=100", "env.past_spans=4", "env.profiling=closed_form"),
    ]


@pytest.fixture
def sharing(words, tmp_path) -> list[str]:
    path = write_trace(two_models(10, gap_s=0.1), tmp_path / "trace.parquet")
    return [
        *("env=sharing", "cluster=nodes_tiny_cpu_x2", *words, f"workload.path={path}"),
        *("workload=file", "policy=first_fit"),
    ]


def started(folder: Path) -> set[int]:
    """Every process that servers of a run were, or had started."""
    logs = [log.read_text() for log in folder.glob("*/vllm.log")]
    lines = [line for log in logs for line in log.splitlines() if line.startswith("pids")]
    return {int(pid) for line in lines for pid in line.split()[1:]}


def test_ctrl_c_in_the_middle_of_a_switch_leaves_no_process(deployment, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_START_S", "1.5")  # longer than a decision interval
    config = composed("evaluate", EvaluateConfig, [*deployment, "backend=vllm"])
    with pytest.raises(KeyboardInterrupt), live_env(config, tmp_path) as (env, _):  # noqa: PT012
        cluster = env.config.cluster.cluster
        apart = Deployment(cluster, (Replica(ReplicaKind(1), (0,)), Replica(ReplicaKind(1), (1,))))
        env.reset(seed=0)
        env.step(Deploy(apart, np.ones((2, 1))))
        *_, info = env.step(Deploy(Deployment(cluster, (Replica(ReplicaKind(2), (0, 1)),)), np.ones((1, 1))))
        assert info["refused"] == ""
        assert env.core.fleet.switch is not None
        while env.core.fleet.slots[2].state is SlotState.STOPPED:
            env.step(None)
        wide = env.core.fleet.slots[2].server.settings
        assert (wide.slot, wide.tp_size, wide.kv_blocks) == ("0|1", 2, 511)
        raise KeyboardInterrupt
    pids = started(tmp_path)
    assert len(pids) >= 4
    assert not any(map(is_running, pids))


def test_ctrl_c_in_the_middle_of_a_load_leaves_no_process(sharing, tmp_path):
    config = composed("evaluate", EvaluateConfig, [*sharing, "backend=vllm"])
    with pytest.raises(KeyboardInterrupt), live_env(config, tmp_path) as (env, _):  # noqa: PT012
        env.reset(seed=0)
        env.step(4)
        env.step(5)
        assert env.state.instances["status"].any()
        raise KeyboardInterrupt
    assert not any(map(is_running, started(tmp_path)))


def test_both_bodies_of_a_deployment_by_one_command(deployment, tmp_path):
    both = ["backend=both", "rivals=[vllm_static]", "repeats=1", f"out={tmp_path / 'out'}"]
    assert evaluate.main([*deployment, *both]) == 0
    found = json.loads((tmp_path / "out" / "gap.json").read_text())
    assert set(found["policies"]) == {"stay", "vllm_static"}
    assert found["transitions"]["start_s"]["simulated"][0] == pytest.approx(22.6)
    decisions = [json.loads(line) for line in (tmp_path / "out" / "decisions.jsonl").read_text().splitlines()]
    assert decisions[0]["executed"]["replicas"]
    assert not any(map(is_running, started(tmp_path / "out" / "servers")))


def test_sharing_by_one_command(sharing, tmp_path):
    assert evaluate.main([*sharing, "backend=vllm", f"out={tmp_path / 'out'}"]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["metrics"]["completed"]["iqm"] == 10
    pids = started(tmp_path / "out" / "servers")
    assert pids
    assert not any(map(is_running, pids))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ('backend.slots=["0"]', "must name a slot for each of 2 servers, got 1"),
        ('backend.slots=["0","0"]', "must differ where each is a rank"),
        ("cluster.num_machines=2", "cluster.num_machines must be 1 on launched servers, got 2"),
        ("backend.speed=2", "backend.speed must be 1 with env=deployment"),
        ("cluster=fleet_tiny_cpu_x2", "choose a cluster with num_machines"),
    ],
)
def test_mistakes(deployment, tmp_path, capsys, word, message):
    assert evaluate.main([*deployment, "backend=vllm", word, f"out={tmp_path / 'out'}"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("env.token_scheduler=policy", "vLLM gives out its iterations itself"),
        ("cluster=fleet_tiny_cpu_x2", "choose a cluster with nodes"),
    ],
)
def test_mistakes_with_shared_nodes(sharing, tmp_path, capsys, word, message):
    assert evaluate.main([*sharing, "backend=vllm", word, f"out={tmp_path / 'out'}"]) == 2
    assert message in capsys.readouterr().err


def test_outcomes_are_whole(deployment, tmp_path):
    """Through processes, a switch loses nobody."""
    config = composed("evaluate", EvaluateConfig, [*deployment, "backend=vllm"])
    with live_env(config, tmp_path) as (env, _):
        cluster = env.config.cluster.cluster
        alone = Deployment(cluster, (Replica(ReplicaKind(1), (0,)),))
        wide = Deployment(cluster, (Replica(ReplicaKind(2), (0, 1)),))
        env.reset(seed=0)
        env.step(Deploy(alone, np.ones((1, 1))))
        env.step(Deploy(wide, np.ones((1, 1))))
        while not env.core.done:
            env.step(None)
        assert (env.records().outcome == FINISHED).all()
        assert len(env.transition_times()["start_s"]) == 2
