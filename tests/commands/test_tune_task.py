"""`runners.tune_task`: one budget for the heuristics of a task."""

import json
from pathlib import Path

import pytest
import yaml

from serving_gym.runners import tune_task
from serving_gym.runners.command_line.cli import USER_ERROR

TASK = """
words: [env=routing, cluster=fleet_h100_x4, workload.num_requests=40]
strata:
  chat: [workload=azure_conv_fitted]
  code: [workload=azure_code_fitted, workload.rate_rps=10.0]
policies: [jsq, least_kv, loadaware, linear_score_tuned]
"""
BUDGET = ["evaluations=3", "seeds=1", "processes=1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conf" / "benchmark" / "task").mkdir(parents=True)
    (tmp_path / "conf" / "benchmark" / "task" / "small.yaml").write_text(TASK)
    return tmp_path


def test_policies_with_constants_are_tuned_and_saved(folder: Path, capsys: pytest.CaptureFixture[str]):
    words = [
        *BUDGET,
        "tasks=[small]",
        "save=true",
        f"out={folder / 'out'}",
        "--config-dir",
        f"{folder / 'conf'}",
    ]
    assert tune_task.main(words) == 0
    found = json.loads((folder / "out" / "loadaware.json").read_text())
    assert found["tuned"] >= found["before"]
    assert found["candidates"] == 4
    saved = folder / "conf" / "policy" / "loadaware_tuned.yaml"
    assert yaml.safe_load(saved.read_text())["params"] == found["params"]
    head = saved.read_text().splitlines()
    assert head[0] == ("# Tuned on small/chat, small/code; validation split, 1 seeds from 0, 4 candidates:")
    assert head[1].startswith("# mean share of jsq's return -")
    assert not (folder / "out" / "jsq.json").exists()  # declares none
    assert not (folder / "out" / "linear_score_tuned.json").exists()  # is a result of tuning

    assert tune_task.main([*words[2:], "evaluations=1", "seeds=1", f"out={folder / 'again'}"]) == 0
    again = json.loads((folder / "again" / "loadaware.json").read_text())
    assert again["candidates"] == 3  # what the file has is one
    assert again["tuned"] >= found["tuned"]

    (folder / "out" / "loadaware.json").write_text(json.dumps({**found, "tuned": 0.25}))
    capsys.readouterr()
    assert tune_task.main(words) == 0  # nothing is left to do
    assert "0.25" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tasks=[dp_pt]"], "unknown task 'dp_pt'; did you mean 'dp_tp'?"),
        (["policies=[static_dp]"], "policy 'static_dp' declares no constants to tune"),
        (["split=test"], "unknown split 'test'"),
        (["evaluations=0"], "evaluations must be at least 1, got 0"),
    ],
)
def test_mistakes_are_named(words, message, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert tune_task.main([*words, f"out={tmp_path}"]) == USER_ERROR
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
