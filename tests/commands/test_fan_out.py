"""Comparisons on Ray workers, and what is said where that cannot be."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from serving_gym.runners import compare

WORDS = [
    "env=routing",
    "workload=sharegpt_poisson",
    "workload.num_requests=60",
    "workload.rate_scale=1",
    "workload.rate_rps=20",
    "split=all",
    "policies=[round_robin,jsq,preserve]",
    "seeds=3",
    "plots=false",
]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'serving-gym[ray]'")
def test_a_comparison_on_ray_has_the_same_numbers(tmp_path: Path):
    found = []
    for launcher in (["launcher=local"], ["launcher=ray", "launcher.workers=2"]):
        out = tmp_path / str(len(launcher))
        assert compare.main([*WORDS, *launcher, f"out={out}"]) == 0
        said = json.loads((out / "comparison.json").read_text())
        for policy in said["policies"].values():
            policy.pop("us_per_decision")  # the worker's own
        episodes = pd.read_parquet(out / "episodes.parquet").drop(columns="us_per_decision")
        found.append((said, episodes))
    assert found[0][0] == found[1][0]
    pd.testing.assert_frame_equal(found[0][1], found[1][1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["launcher=ray", "launcher.workers=0"], "launcher.workers must be at least 1"),
        (["launcher.name=slurm"], "launcher 'slurm'"),
        (
            ["launcher=ray", "backend=vllm", "backend.endpoints=[http://127.0.0.1:1]"],
            "launcher=ray needs backend=simulator",
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(words, message, tmp_path: Path, capsys):
    assert compare.main([*WORDS, *words, f"out={tmp_path}"]) == 2
    assert message in capsys.readouterr().err


def test_without_ray_one_is_told_how_to_get_it(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr("serving_gym.runners.rollouts.launchers.find_spec", lambda name: None)
    assert compare.main([*WORDS, "launcher=ray", f"out={tmp_path}"]) == 2
    assert "pip install 'serving-gym[ray]'" in capsys.readouterr().err
