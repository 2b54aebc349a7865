import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from serving_gym.runners import compare, evaluate, simulate
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
    assert [*simulated.columns, "send_lag_s"] == list(live.columns)
    for column in ("arrival_s", "input_tokens", "output_tokens", "generated_tokens", "outcome"):
        assert simulated[column].tolist() == live[column].tolist()
    summaries = [json.loads((tmp_path / body / "summary.json").read_text()) for body in ("sim", "live")]
    used = {"gpu_hours", "energy_kwh", "cost_usd"}  # nobody meters running servers
    assert summaries[0]["metrics"].keys() == summaries[1]["metrics"].keys() | used
    assert summaries[1]["backend"] == "vllm"
    detailed = [json.loads((tmp_path / body / "requests.json").read_text()) for body in ("sim", "live")]
    assert detailed[0].keys() == detailed[1].keys()
    assert [len(gaps) for gaps in detailed[1]["itls"]] == (live["generated_tokens"] - 1).tolist()


@pytest.mark.full
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
    ],
)
def test_mistakes(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["workload.num_requests=2", *words, f"out={tmp_path}"]) == 2
    captured = capsys.readouterr().err.strip()
    assert said in captured
    assert len(captured.splitlines()) == 1


ROUTING = [
    "env=routing",
    "cluster=fleet_h100_x4",
    "cluster.groups=[{replica: {model: llama-3.1-8b, gpu: H100}, count: 2}]",
    "workload.num_requests=6",
    "workload.rate_scale=5",
    "seeds=1",
]


def big(make_server: MakeServer) -> list[str]:
    """Two servers that hold any request, and the words that name them."""
    servers = [make_server(num_blocks=10**6, max_model_len=10**6, token_s=0.0) for _ in range(2)]
    return [f"backend.endpoints=[{','.join(server.url for server in servers)}]"]


def test_one_word_takes_a_policy_to_live_servers(make_server: MakeServer, tmp_path: Path) -> None:
    words = [*ROUTING, "policy=preserve"]
    assert evaluate.main([*words, f"out={tmp_path / 'sim'}"]) == 0
    live = ["backend=vllm", *big(make_server), f"out={tmp_path / 'live'}"]
    assert evaluate.main([*words, *live]) == 0
    names = sorted(path.name for path in (tmp_path / "sim").iterdir() if path.is_file())
    assert names == sorted(path.name for path in (tmp_path / "live").iterdir() if path.is_file())
    requests = [pd.read_parquet(tmp_path / body / "requests.parquet") for body in ("sim", "live")]
    for column in ("arrival_s", "input_tokens", "output_tokens", "generated_tokens", "outcome"):
        assert requests[0][column].tolist() == requests[1][column].tolist()
    summaries = [json.loads((tmp_path / body / "summary.json").read_text()) for body in ("sim", "live")]
    assert summaries[0]["metrics"].keys() == summaries[1]["metrics"].keys()
    decisions = [
        json.loads(line) for line in (tmp_path / "live" / "decisions.jsonl").read_text().splitlines()
    ]
    assert all(decision["executed"] in (0, 1) for decision in decisions)
    assert len(decisions) + sum(len(decision["overrides"]) for decision in decisions) >= 6


def test_both_bodies_and_the_gap(make_server: MakeServer, tmp_path: Path) -> None:
    words = [*ROUTING, "policy=jsq", "backend=both", *big(make_server), "rivals=[round_robin,random]"]
    assert evaluate.main([*words, "backend.decide_within_s=null", "repeats=1", f"out={tmp_path}"]) == 0
    found = json.loads((tmp_path / "gap.json").read_text())
    assert set(found["policies"]) == {"jsq", "round_robin", "random"}
    assert found["ranking"]["pairs"] == 3
    assert found["overrides"] == {"jsq": 0, "round_robin": 0, "random": 0}
    assert found["decisions"] == {"jsq": 6, "round_robin": 6, "random": 6}
    assert found["gap"]["ttft_p50_s"]["ape_median"] > 0


def test_a_comparison_on_live_servers(make_server: MakeServer, tmp_path: Path) -> None:
    words = [*ROUTING, "backend=vllm", *big(make_server), "policies=[round_robin,jsq]", "plots=false"]
    assert compare.main([*words, f"out={tmp_path}"]) == 0
    assert json.loads((tmp_path / "comparison.json").read_text())["backend"] == "vllm"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["env=deployment", "policy=oserve"], "env=deployment starts and stops servers itself"),
        (["env=autoscaling", "policy=hpa_waiting"], "env=autoscaling starts and stops servers itself"),
        (["env=routing", "policy=jsq"], "cluster.groups has 4 places"),
        (
            ["env=routing", "policy=jsq", "backend.decide_within_s=0"],
            "decide_within_s must be positive, got 0",
        ),
        (["env=routing", "policy=jsq", "backend.device=tpu"], "backend.device 'tpu'"),
    ],
)
def test_what_live_servers_cannot_do_is_said_in_a_sentence(
    make_server: MakeServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    url = make_server().url
    assert evaluate.main([*words, "backend=vllm", f"backend.endpoints=[{url}]", f"out={tmp_path}"]) == 2
    assert message in capsys.readouterr().err
