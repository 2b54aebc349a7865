"""Policies in a process of their own: late, failing, hanging, dying ones, and what results say of them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from serving_gym.envs.live.control import NoDecision
from serving_gym.runners import evaluate
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.live.client_report import overridden
from serving_gym.runners.rollouts import policy_process
from serving_gym.runners.rollouts.policy_process import PolicyProcess, RemotePolicy
from tests.live.conftest import MakeServer
from tests.live.test_commands import ROUTING, big, wait_for
from tests.processes import is_running

POLICY = """
import os, time

class Probe:
    name, clairvoyant, env = "probe", False, "routing"

    def reset(self, spec, seed):
        self.seed = seed

    def act(self, observation, state):
        if state == "sleep":
            time.sleep(0.5)
        if state == "hold":  # one call that gives the interpreter to nobody
            sum(range(10**10))
        if state == "fail":
            raise RuntimeError("no idea")
        if state == "die":
            os._exit(7)
        if state == "pid":
            return os.getpid()
        if isinstance(state, str):
            return self.seed
        {live}
"""


@pytest.fixture
def probe(tmp_path: Path):
    """A policy in a process, which hangs after half a second."""

    def make(within_s: float | None = 5.0, hung_after_s: float = 0.5) -> RemotePolicy:
        path = tmp_path / "probe.py"
        path.write_text(POLICY.format(live="return None"), encoding="utf-8")
        name = f"{path}:Probe"
        process = PolicyProcess("routing", hung_after_s)
        made.append(process)
        policy = RemotePolicy(process, {"name": name, "params": {}}, load_policy(name), name, within_s)
        policy.reset(None, 3)
        return policy

    made: list[PolicyProcess] = []
    yield make
    for process in made:
        process.close()
        assert not is_running(process._process.pid or 0)


def reason(answer: object) -> str:
    assert isinstance(answer, NoDecision)
    return answer.reason


def test_a_policy_decides_as_it_does_here(probe) -> None:
    policy = probe()
    assert policy.act(None, "seed") == 3
    policy.reset(None, 4)
    assert policy.act(None, "seed") == 4
    assert policy.act(None, "pid") != os.getpid()
    assert (policy.name, policy.clairvoyant, policy.period_s) == ("probe", False, None)


def test_a_late_answer_is_not_taken_for_the_next(probe) -> None:
    policy = probe(within_s=0.05, hung_after_s=30.0)
    assert "no decision of probe within 50 ms" in reason(policy.act(None, "sleep"))
    assert "still at an earlier decision" in reason(policy.act(None, "pid"))
    wait_for(lambda: policy.act(None, "seed") == 3)


def test_an_error_is_no_decision(probe) -> None:
    policy = probe()
    assert reason(policy.act(None, "fail")) == "probe failed: RuntimeError: no idea"
    assert policy.act(None, "seed") == 3


@pytest.mark.parametrize("state", ["hold", "die"])
def test_one_that_hangs_or_dies_is_started_again_and_at_last_given_up(
    probe, state: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_process, "MOST_RESTARTS", 1)
    policy = probe(within_s=0.1)
    first = policy.act(None, "pid")
    policy.act(None, state)
    wait_for(lambda: policy.act(None, "seed") == 3)
    assert not is_running(first)
    assert caplog.text.count("is started again") == 1
    cause = "its process ended (exit status 7)" if state == "die" else "it did not decide for 0.5 s"
    assert cause in caplog.text
    policy.act(None, state)
    wait_for(lambda: policy.act(None, "seed") != 3 and bool(policy._process.given_up))
    assert "was given up" in reason(policy.act(None, "seed"))
    policy.reset(None, 1)  # further episodes run
    assert "was given up" in reason(policy.act(None, "seed"))
    assert caplog.text.count("all later decisions are overridden") == 1


def test_an_episode_does_not_wait_long_for_one_that_hangs(probe) -> None:
    policy = probe(within_s=0.05)
    policy.act(None, "hold")
    begun_s = time.monotonic()
    policy.reset(None, 5)
    assert time.monotonic() - begun_s < 100  # loading alone may take 300 s
    wait_for(lambda: policy.act(None, "seed") == 5)


def test_what_the_pipe_adds(probe) -> None:
    policy = probe()
    state = {"engines": np.zeros((8, 30)), "in_flight": np.zeros((100, 12))}
    for _ in range(200):
        policy.act({"places": np.zeros((8, 40), np.float32)}, state)
    assert len(policy._process.waits_s) == 200
    assert np.median(policy._process.waits_s) < 0.05  # some hundred microseconds on an idle machine


HOLDS = "return sum(range(10**8)) * 0"


def test_a_policy_that_holds_the_interpreter_delays_no_request(
    make_server: MakeServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy_process, "HUNG_AFTER_S", 30.0)
    path = tmp_path / "holds.py"
    path.write_text(POLICY.format(live=HOLDS), encoding="utf-8")
    words = [*ROUTING, f"policy={path}:Probe", "backend=vllm", *big(make_server), f"out={tmp_path / 'out'}"]
    assert evaluate.main([*words, "workload.num_requests=20"]) == 0
    requests = pd.read_parquet(tmp_path / "out" / "requests.parquet")
    assert (requests["outcome"] == "finished").all()
    assert (requests["first_token_s"] - requests["arrival_s"]).median() < 0.5  # each decision takes seconds
    live = json.loads((tmp_path / "out" / "summary.json").read_text())["live"]
    assert live["overrides"]["count"] == 20
    assert live["overrides"]["share"] > 0.5
    assert any("no decision" in text for text in live["overrides"]["reasons"])
    assert set(live["versions"]) == {"serving_gym", "python"}
    assert live["client"]["cores"] >= 1
    assert all("vllm" in server.lower() for server in live["client"]["servers"].values())
    said = capsys.readouterr().out
    assert "decisions overridden %" in said
    assert "backend.decide_within_s sets that time" in said


def test_a_policy_may_stay_in_this_process(make_server: MakeServer, tmp_path: Path) -> None:
    words = [*ROUTING, "policy=jsq", "backend=vllm", *big(make_server), "backend.policy_process=false"]
    assert evaluate.main([*words, f"out={tmp_path}"]) == 0
    live = json.loads((tmp_path / "summary.json").read_text())["live"]
    assert "policy_process" not in live


def test_shares_of_decisions() -> None:
    class Run:
        def __init__(self, *decisions: dict[str, object]) -> None:
            self.decisions = decisions

    late = {"row": 1, "place": 0, "reason": "no decision within 5 ms"}
    routing = Run(
        {"refused": "", "overrides": []},
        {"refused": late["reason"], "overrides": [late]},  # decided late about it
        {"refused": "", "overrides": [late, {"row": 2, "place": None, "reason": "its client has hung up"}]},
    )
    assert overridden([routing]) == {  # type: ignore[list-item]
        "count": 2,
        "share": 0.5,
        "reasons": {"no decision within 5 ms": 2},
    }
    scaling = Run(
        {"refused": "", "overrides": [{"at_s": 1.0, "reason": "slow"}]}, {"refused": "", "overrides": []}
    )
    assert overridden([scaling])["share"] == 0.5  # type: ignore[list-item]


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    process = PolicyProcess("routing", 30.0)
    pid = process._process.pid
    assert pid is not None
    assert is_running(pid)
    process._pipe.close()
    deadline_s = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    process.close()
