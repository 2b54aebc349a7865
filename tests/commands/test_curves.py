"""`runners.curves`: several trainings of several agents, stopped and gone on with, and their curves."""

from __future__ import annotations

import json

import numpy as np
import pytest

from serving_gym.runners import curves
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.learning_curves.curves import agent_summary, curve_of

TINY = [
    "env=dp_tp",
    "workload=flying_bursty",
    "workload.num_requests=40",
    "num_envs=2",
    "validations=2",
    "validation_seeds=1",
    "total_steps=128",
]


def rows(*values: tuple[float, int, float]) -> list[dict]:
    return [{"minutes": minutes, "steps": steps, "return": value} for minutes, steps, value in values]


def test_a_curve_holds_each_value_until_the_next():
    first = rows((0.0, 0, -8.0), (1.0, 10, -4.0), (2.0, 20, -2.0))
    second = rows((0.0, 0, -10.0), (1.5, 40, -6.0))
    curve = curve_of([first, second], "minutes")
    at = dict(zip(np.round(curve["x"], 6).tolist(), curve["iqm"], strict=True))
    assert at[0.0] == -9.0
    assert at[max(x for x in at if x < 1.0)] == -9.0
    assert at[max(x for x in at if x < 1.5)] == -7.0
    assert at[2.0] == -4.0
    assert all(
        low <= mid <= high for low, mid, high in zip(curve["low"], curve["iqm"], curve["high"], strict=True)
    )
    assert curve_of([first, second], "steps")["x"][-1] == 40


def test_the_kept_return_is_the_best_of_each_training():
    found = agent_summary(
        [3, 4], [rows((0, 0, -8.0), (1, 9, -4.0), (2, 19, -5.0)), rows((0, 0, -9.0), (1, 9, -7.0))]
    )
    assert found["first"]["iqm"] == -8.5
    assert found["last"]["iqm"] == -6.0
    assert found["kept"]["iqm"] == -5.5
    assert [each["kept_return"] for each in found["trainings"]] == [-4.0, -7.0]
    assert [each["seed"] for each in found["trainings"]] == [3, 4]


def test_trains_draws_goes_on_and_adds_seeds(tmp_path, capsys):
    words = [*TINY, "agents=[maskable_ppo]", "baselines=[static_4x2]", f"out={tmp_path}"]
    assert curves.main([*words, "seeds=1"]) == 0
    assert "maskable_ppo" in capsys.readouterr().out
    first = tmp_path / "maskable_ppo" / "seed=0" / "metrics.jsonl"
    written = first.stat().st_mtime_ns
    assert curves.main([*words, "seeds=2", "figures=pdf"]) == 0
    assert first.stat().st_mtime_ns == written  # is done, and stays
    found = json.loads((tmp_path / "curves.json").read_text())
    assert [each["seed"] for each in found["agents"]["maskable_ppo"]["trainings"]] == [0, 1]
    assert found["references"]["static_4x2"]["role"] == "static"
    assert found["references"]["static_4x2"]["return"] < 0
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert (tmp_path / "curves.pdf").is_file()
    log = (tmp_path / "maskable_ppo" / "seed=1" / "train.log").read_text()
    assert "Training maskable_ppo on dp_tp" in log

    # A training that was stopped before its end goes on from its last save.
    (tmp_path / "maskable_ppo" / "seed=1" / "comparison.json").unlink()
    assert curves.main([*words, "seeds=2"]) == 0
    assert (
        "resume="
        in json.loads((tmp_path / "maskable_ppo" / "seed=1" / "provenance.json").read_text())["words"][0]
    )
    capsys.readouterr()
    assert curves.main([*words, "seeds=2", "env.decision_interval_s=2"]) == USER_ERROR
    assert "holds results without env.decision_interval_s=2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["agents=[]"], "agents must name at least one agent"),
        (["agents=[ppo,ppo]"], "agents names 'ppo' more than once"),
        (["agents=[pppo]"], "agent 'pppo'"),
        (["agent=ppo"], "agent=ppo cannot be given here; agents=[...] names agents"),
        (["seed=3"], "seed=3 cannot be given here"),
        (["processes=0"], "processes must be at least 1"),
    ],
)
def test_mistakes_are_one_sentence(words, said, tmp_path, capsys):
    assert curves.main([*TINY, *words, f"out={tmp_path}"]) == USER_ERROR
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1
