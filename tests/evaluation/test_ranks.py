"""Gains in simulation and on live servers, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving_gym.runners.validation.ranks import ranking_of

LIVE = {"jsq": [-10.0, -12.0], "agent": [-5.0, -9.0], "rr": [-20.0, -24.0]}
SIMULATED = {"jsq": [-8.0], "agent": [-4.0], "rr": [-4.8]}


def run(folder: Path, **changes: object) -> Path:
    returns = {
        name: {
            "simulated": [{"seed": 8, "return": value} for value in SIMULATED[name]],
            "live": [{"seed": 8, "return": value} for value in LIVE[name]],
        }
        for name in LIVE
    }
    found = {"returns": returns, "ranking": {"clear_pairs": 3, "clear_pairs_in_the_same_order": 2}}
    folder.mkdir()
    (folder / "gap.json").write_text(json.dumps(found | changes))
    return folder


def test_gains_are_of_the_same_seed_and_repeat(tmp_path: Path) -> None:
    told = ranking_of([run(tmp_path / "uneven")], "jsq")
    by_name = {row[1]: row for row in told["rows"]}
    assert list(by_name) == ["`agent`", "`rr`"]
    assert by_name["`agent`"][2] == "+50.0"
    # 50 and 25 per cent: mean 37.5, Student's 12.706 times 12.5
    assert by_name["`agent`"][3] == "+37.5 [-121.3, +196.3]"
    assert by_name["`rr`"][3] == "-100.0 [-100.0, -100.0]"
    (note,) = told["notes"]
    assert "Kendall's tau 0.33 over 3 policies" in note
    assert "Farthest apart: `rr`, +40.0 simulated, -100.0 live" in note


@pytest.mark.parametrize(
    ("changes", "against", "said"),
    [
        ({}, "jsk", "did you mean 'jsq'"),
        ({"returns": None}, "jsq", "has no returns"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, changes: dict[str, object], against: str, said: str) -> None:
    folder = run(tmp_path / "a", **changes)
    if changes:
        found = json.loads((folder / "gap.json").read_text())
        del found["returns"]
        (folder / "gap.json").write_text(json.dumps(found))
    with pytest.raises(ValueError, match=said):
        ranking_of([folder], against)


def test_a_folder_without_a_gap_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no gap.json"):
        ranking_of([tmp_path], "jsq")
