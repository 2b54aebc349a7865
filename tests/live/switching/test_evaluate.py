"""`runners.evaluate env=dp_tp backend=vllm`, with a server that only pretends to switch."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from serving_gym.runners import evaluate
from tests.live.fake_server import Behaviour, FakeServer
from tests.live.switching.fake import FakeSwitchingServer

WORDS = [
    "env=dp_tp",
    "cluster=tiny_llama_cpu_x2",
    "backend=vllm",
    "seeds=1",
    "workload=flying_bursty",
    "workload.num_requests=8",
    "workload.params.low_rate_rps=[20.0,30.0]",
    "workload.params.input_tokens=[8,40]",
    "workload.params.output_tokens=[2,8]",
    "env.decision_interval_s=0.1",
]


@pytest.mark.parametrize("policy", ["flying_serving", "static_tp"])
def test_a_policy_drives_the_switch(policy: str, tmp_path: Path) -> None:
    with FakeSwitchingServer(Behaviour(max_model_len=2048)) as server:
        words = [*WORDS, f"policy={policy}", f"backend.endpoints=[{server.url}]", f"out={tmp_path}"]
        assert evaluate.main(words) == 0
        assert server.book.layout == (2,)
        assert server.orders[0] == {"layout": [1, 1], "mode": "hard"}
    requests = pd.read_parquet(tmp_path / "requests.parquet")
    assert (requests["outcome"] == "finished").all()
    assert len(requests) == 8
    first, *_ = (json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines())
    assert (first["action"]["command"], first["action"]["layout"], first["refused"]) == ("Redeploy", [2], "")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["backend"] == "vllm"
    assert summary["metrics"]["commands_refused"]["iqm"] == 0


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert evaluate.main([*WORDS, "policy=static_tp", *words, f"out={tmp_path}"]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    with FakeServer() as plain:
        assert "is it a server with the plugin" in said(f"backend.endpoints=[{plain.url}]")
    assert "no server answers at" in said("backend.endpoints=[http://127.0.0.1:1]")
    assert "must name the one server" in said("backend.endpoints=[http://127.0.0.1:1,http://127.0.0.1:2]")
    assert "cluster.router must be one of" in said("backend.launch=true", "cluster.router=hold")
    assert "backend.python='/nowhere'" in said("backend.launch=true", "backend.python=/nowhere")
    assert "faults cannot be injected" in said(
        "backend.endpoints=[http://127.0.0.1:1]", "env.faults_per_gpu_hour=1"
    )
