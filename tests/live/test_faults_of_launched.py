"""Launched servers that stop answering or die in the middle of a command: started again, and no record is lost."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from serving_gym.runners import evaluate, simulate
from serving_gym.runners.reporting.line_writer import read_lines
from tests.live.test_launched_commands import ROOT, SCRIPT, started
from tests.processes import is_running

SWITCHING = SCRIPT.replace(
    "from tests.live.fake_server import Behaviour, FakeServer",
    "from tests.live.fake_server import Behaviour\n"
    "    from tests.live.switching.fake import FakeSwitchingServer as FakeServer",
)
COMMANDS = {
    "routing": [
        *("env=routing", "policy=round_robin", "cluster=fleet_tiny_cpu_x2", "workload=sharegpt_poisson"),
        *("workload.rate_rps=20", "workload.num_requests=120"),
    ],
    "autoscaling": [
        *("env=autoscaling", "policy=fixed_instances", "cluster=fleet_tiny_cpu_scaled"),
        *(
            "workload=sharegpt_poisson",
            "workload.rate_rps=20",
            "env.episode_s=6",
            "env.decision_interval_s=1",
        ),
    ],
    "dp_tp": [
        *("env=dp_tp", "policy=static_tp", "cluster=tiny_llama_cpu_x2", "workload=flying_bursty"),
        *("workload.num_requests=80", "workload.params.low_rate_rps=[15.0,20.0]"),
        *("workload.params.input_tokens=[8,40]", "workload.params.output_tokens=[2,8]"),
        "env.decision_interval_s=0.2",
    ],
    "deployment": [
        *(
            "env=deployment",
            "policy=vllm_static",
            "cluster=machines_tiny_cpu_x2",
            "workload.num_requests=100",
        ),
        *("workload.params.mean_rps=20", "workload.params.long_answer_factor=1", "env.span_s=1"),
        *("env.num_types=1", "env.past_requests=100", "env.past_spans=4", "env.profiling=closed_form"),
    ],
}


class Fault(threading.Thread):
    """Signals one of a run's servers when some requests have ended.

    Attributes:
        pid: Its process.
        found_s: Time until it was gone, seconds.
    """

    def __init__(self, out: Path, number: signal.Signals) -> None:
        super().__init__(daemon=True)
        self.out, self.number, self.pid, self.found_s = out, number, 0, float("inf")

    def run(self) -> None:
        while len(read_lines(self.out / "requests.jsonl")) < 5:
            time.sleep(0.05)
        log = sorted(self.out.glob("server*/**/vllm.log"))[0]
        self.pid = int(log.read_text().split("pids ")[1].split()[1])
        os.kill(self.pid, self.number)
        begun_s = time.monotonic()
        while is_running(self.pid):
            time.sleep(0.05)
        self.found_s = time.monotonic() - begun_s


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    for name, text in (("python", SCRIPT), ("switching", SWITCHING)):
        script = tmp_path / name
        script.write_text(
            textwrap.dedent(text).format(python=sys.executable, root=str(ROOT)), encoding="utf-8"
        )
        script.chmod(0o755)
    return [
        *(
            "backend=vllm",
            "backend.launch=true",
            f"backend.python={tmp_path / 'python'}",
            "split=all",
            "seeds=1",
        ),
        *("backend.scrape_interval_s=0.1", "backend.hung_after_s=1", f"out={tmp_path / 'out'}"),
    ]


@pytest.mark.parametrize(
    ("env", "number"),
    [
        ("routing", signal.SIGSTOP),
        ("autoscaling", signal.SIGSTOP),
        ("deployment", signal.SIGSTOP),
        ("dp_tp", signal.SIGSTOP),
        ("dp_tp", signal.SIGKILL),
    ],
)
def test_a_run_goes_on(
    env: str, number: signal.Signals, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = Fault(tmp_path / "out", number)
    fault.start()
    if env == "dp_tp":
        words = [*words, f"backend.python={tmp_path / 'switching'}"]
    assert evaluate.main([*words, *COMMANDS[env]]) == 0
    said = capsys.readouterr()
    assert fault.found_s < 15
    requests = pd.read_parquet(tmp_path / "out" / "requests.parquet")
    if "workload.num_requests" in str(COMMANDS[env]):
        assert len(requests) == int(str(COMMANDS[env]).split("num_requests=")[1].split("'")[0])
    lost = requests[requests["outcome"] != "finished"]
    assert (lost["reason"] != "").all()
    assert len(lost) <= len(requests) // 2
    last = requests["finish_s"].max()
    assert (requests["arrival_s"] > 0.5 * last).any()  # it served on afterwards
    assert "and was killed" in said.err if number == signal.SIGSTOP else "ended by itself" in said.err
    pids = started(tmp_path / "out" / ("servers/server" if env == "dp_tp" else "servers"))
    assert len(pids) >= 4
    assert not any(map(is_running, pids))


def test_a_stream_of_requests_goes_on(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = Fault(tmp_path / "out", signal.SIGKILL)
    fault.start()
    own = [word for word in words if not word.startswith(("split", "seeds"))]
    stream = ["workload=sharegpt_poisson", "workload.rate_rps=20", "workload.num_requests=100"]
    assert simulate.main([*own, *stream, "cluster=tiny_llama_cpu"]) == 0
    assert "ended by itself; it is started again" in capsys.readouterr().err
    requests = pd.read_parquet(tmp_path / "out" / "requests.parquet")
    assert len(requests) == 100
    assert (requests["outcome"] == "finished").sum() > 80
