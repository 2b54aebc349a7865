"""What a run has recorded when it ends early, and how it goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from serving_gym.runners import evaluate, simulate
from serving_gym.runners.reporting import records as records_module
from serving_gym.runners.reporting.line_writer import LineWriter, read_lines
from serving_gym.runners.rollouts.rollout import run_episode
from tests.live.conftest import MakeServer
from tests.live.test_commands import ROUTING, WORDS, big, wait_for

BUSY = [word for word in ROUTING if not word.startswith("seeds")] + ["policy=round_robin", "seeds=3"]
RESULTS = {
    "decisions.jsonl",
    "episodes.parquet",
    "provenance.json",
    "requests.json",
    "requests.parquet",
    "summary.json",
}


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes with the second decision of the second episode that a process runs."""
    decisions = []

    def run(env, policy, seed, name, on_decision):
        def decide(row):
            if on_decision is not None:
                on_decision(row)
            decisions.append(row["seed"])
            if len(set(decisions)) == 2 and decisions.count(seed) == 2:
                raise KeyboardInterrupt

        return run_episode(env, policy, seed, name, decide)

    monkeypatch.setattr(records_module, "run_episode", run)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith((".", "servers"))} - {
        "evaluate.log"
    }


@pytest.mark.parametrize("body", ["simulator", "vllm"])
def test_an_interrupted_run_keeps_what_it_has_and_goes_on(
    make_server: MakeServer,
    tmp_path: Path,
    body: str,
    interrupted: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    live = [] if body == "simulator" else ["backend=vllm", *big(make_server)]
    words = [*BUSY, *live, f"out={tmp_path}"]
    assert evaluate.main(words) == 130
    said = capsys.readouterr().err
    assert f"kept: 1 of 3 episodes{'' if body == 'simulator' else ', and '}" in said
    assert f"the same command with out={tmp_path} runs the 2 that are left" in said
    kept = read_lines(tmp_path / "decisions.jsonl")
    assert {row["seed"] for row in kept} == ({0} if body == "simulator" else {0, 1})
    assert set(pd.read_parquet(tmp_path / "requests.parquet")["seed"]) >= {0}

    assert evaluate.main([*words, "workload.rate_scale=6"]) == 2  # another run
    assert "has an unfinished run with workload.rate_scale=5" in capsys.readouterr().err

    ran = []
    monkeypatch.setattr(
        records_module, "run_episode", lambda *given: ran.append(given[2]) or run_episode(*given)
    )
    assert evaluate.main(words) == 0
    assert ran == [1, 2]
    assert files(tmp_path) == RESULTS
    whole = pd.read_parquet(tmp_path / "requests.parquet")
    assert whole.groupby("seed").size().to_dict() == {0: 6, 1: 6, 2: 6}
    assert set(whole["outcome"]) == {"finished"}
    decisions = read_lines(tmp_path / "decisions.jsonl")
    assert list(dict.fromkeys(row["seed"] for row in decisions)) == [0, 1, 2]
    if body == "simulator":
        assert len(decisions) == 18
        fresh = tmp_path / "fresh"
        assert evaluate.main([*words[:-1], f"out={fresh}"]) == 0
        for name in ("decisions.jsonl", "requests.json"):
            assert (fresh / name).read_text() == (tmp_path / name).read_text()
        pd.testing.assert_frame_equal(pd.read_parquet(fresh / "requests.parquet"), whole)


def test_both_bodies_go_on(
    make_server: MakeServer, tmp_path: Path, interrupted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*BUSY, "seeds=2", "backend=both", *big(make_server), "rivals=[jsq]", "repeats=2"]
    words = [*words, "backend.decide_within_s=null", f"out={tmp_path}"]
    assert evaluate.main(words) == 130
    ran = []
    monkeypatch.setattr(
        records_module, "run_episode", lambda *given: ran.append(given[2:4]) or run_episode(*given)
    )
    assert evaluate.main(words) == 0
    assert len(ran) == 12 - 2
    found = json.loads((tmp_path / "gap.json").read_text())
    assert found["decisions"] == {"round_robin": 24, "jsq": 24}
    assert files(tmp_path) == RESULTS | {"gap.json"}
    assert len(read_lines(tmp_path / "decisions.jsonl")) == 24


def test_a_killed_run_has_every_request_that_had_ended(make_server: MakeServer, tmp_path: Path) -> None:
    words = [*BUSY, "workload.num_requests=60", "backend=vllm", *big(make_server), f"out={tmp_path}"]
    process = subprocess.Popen([sys.executable, "-m", "runners.evaluate", *words], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(read_lines(tmp_path / "requests.jsonl")) >= 5 or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait(20)
    requests = read_lines(tmp_path / "requests.jsonl")
    assert {row["outcome"] for row in requests} == {"finished"}
    assert {row["policy"] for row in requests} == {"round_robin"}
    assert len(read_lines(tmp_path / "decisions.jsonl")) >= 5
    assert json.loads((tmp_path / "run.json").read_text())["seeds"] == 3


@pytest.mark.parametrize("word", ["backend=simulator", "backend=vllm"])
def test_a_full_disk_is_said_once_and_the_run_goes_on(
    make_server: MakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    for name in ("decisions.jsonl", "requests.jsonl"):
        (tmp_path / name).symlink_to("/dev/full")
    servers = big(make_server) if word == "backend=vllm" else []
    assert evaluate.main([*BUSY, word, *servers, f"out={tmp_path}"]) == 0
    said = capsys.readouterr().err
    assert said.count("No space left on device") == 1
    assert "the run goes on" in said
    assert len(read_lines(tmp_path / "decisions.jsonl")) >= 6
    assert len(pd.read_parquet(tmp_path / "requests.parquet")) == 18


def test_a_stream_that_is_interrupted_is_written(
    make_server: MakeServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = make_server(num_blocks=10**6, max_model_len=10**6, token_s=0.0)
    taken = []

    def step(self, until_s):
        taken.append(until_s)
        if len(taken) > 2:
            raise KeyboardInterrupt
        return advance(self, until_s)

    advance = simulate_backend().advance
    monkeypatch.setattr(simulate_backend(), "advance", step)
    words = [*WORDS, "workload.num_requests=60", f"backend.endpoints=[{server.url}]", f"out={tmp_path}"]
    assert simulate.main(words) == 130
    assert "interrupted" in capsys.readouterr().err
    requests = pd.read_parquet(tmp_path / "requests.parquet")
    assert 1 < len(requests) < 60
    assert json.loads((tmp_path / "summary.json").read_text())["interrupted"] == "KeyboardInterrupt"
    assert not (tmp_path / "requests.jsonl").exists()


def simulate_backend() -> type:
    from serving_gym.envs.live.backend import LiveBackend

    return LiveBackend


def test_lines_are_there_before_the_file_is_closed(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path / "lines", print)
    writer.write({"a": float("inf")})
    deadline_s = time.monotonic() + 10
    while not read_lines(tmp_path / "lines"):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    writer.write({"a": 1})
    assert writer.close()
    assert [row["a"] for row in read_lines(tmp_path / "lines")] == [None, 1]
    (tmp_path / "lines").write_text('{"a": 1}\n{"a":')  # its writer was killed
    assert read_lines(tmp_path / "lines") == [{"a": 1}]
