import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from runners import evaluate, simulate
from tests.live.conftest import MakeServer

WORDS = [
    "backend=vllm",
    "workload=azure_conv_fitted",
    "workload.num_requests=6",
    "workload.rate_rps=40",
    "router=jsq",
]
LENGTHS = ["slos.standard={ttft_s: 0.5, tpot_s: 0.05}"]


def test_the_same_stream_and_the_same_files(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(num_blocks=10**6, max_model_len=10**6, token_s=0.0)
    words = [*WORDS, *LENGTHS, f"out={tmp_path}"]
    assert simulate.main([*words[1:-1], f"out={tmp_path / 'sim'}"]) == 0
    assert simulate.main([*words[:-1], f"backend.endpoints=[{server.url}]", f"out={tmp_path / 'live'}"]) == 0
    simulated, live = (pd.read_parquet(tmp_path / body / "requests.parquet") for body in ("sim", "live"))
    assert list(simulated.columns) == list(live.columns)
    for column in ("arrival_s", "input_tokens", "output_tokens", "generated_tokens", "outcome"):
        assert simulated[column].tolist() == live[column].tolist()
    summaries = [json.loads((tmp_path / body / "summary.json").read_text()) for body in ("sim", "live")]
    used = {"gpu_hours", "energy_kwh", "cost_usd"}  # nobody meters running servers
    assert summaries[0]["metrics"].keys() == summaries[1]["metrics"].keys() | used
    assert summaries[1]["backend"] == "vllm"
    detailed = [json.loads((tmp_path / body / "requests.json").read_text()) for body in ("sim", "live")]
    assert detailed[0].keys() == detailed[1].keys()
    assert [len(gaps) for gaps in detailed[1]["itls"]] == (live["generated_tokens"] - 1).tolist()


def test_an_interrupt_drops_what_is_in_flight(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(num_blocks=10**6, max_model_len=10**6, token_s=30.0)
    words = [*WORDS, f"backend.endpoints=[{server.url}]", f"out={tmp_path}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "runners.simulate", *words],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a background job ignores interrupts
    )
    wait_for(lambda: len(server.bodies) == 6 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.strip().endswith("error: interrupted")
    wait_for(lambda: server.aborted == 6)


def wait_for(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["backend=vllm"], "needs either running servers, as in backend.endpoints=[http://127.0.0.1:8000]"),
        (["backend=vllm", "backend.endpoints=[http://127.0.0.1:1]", "backend.launch=true"], "needs either"),
        (
            ["backend=vllm", "backend.endpoints=[http://127.0.0.1:1]"],
            "no server answers at http://127.0.0.1:1",
        ),
        (["backend=vllm", "backend.endpoints=http://127.0.0.1:1"], "backend.endpoints must be a list"),
        (["backend=vllm", "backend.launch=true", "backend.python=/nowhere"], "backend.python='/nowhere'"),
        (["backend=vllm", "backend.launch=true", "backend.sped=2"], "did you mean 'speed'?"),
        (["backend=vllm", "backend.launch=true", "backend.speed=0"], "backend.speed must be positive, got 0"),
        (["backend=vlm"], "unknown backend 'vlm'; did you mean 'vllm'?"),
        (["cluster.profile=/nowhere.yaml"], "cannot use '/nowhere.yaml'"),
        (["cluster=tiny_llama_cpu"], "unknown model 'tiny-llama'"),
    ],
)
def test_mistakes(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["workload.num_requests=2", *words, f"out={tmp_path}"]) == 2
    captured = capsys.readouterr().err.strip()
    assert said in captured
    assert len(captured.splitlines()) == 1


def test_environments_say_that_they_are_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["env=deployment", "policy=oserve", "backend=vllm", "backend.launch=true", f"out={tmp_path}"]
    assert evaluate.main(words) == 2
    assert "env=deployment runs on backend=simulator only" in capsys.readouterr().err
