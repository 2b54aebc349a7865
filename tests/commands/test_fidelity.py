"""FIDELITY.md is what the command makes of the committed errors, and the errors are those of the committed profiles."""

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from serving_gym.runners import fidelity
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.fidelity import REPOSITORY, page_of
from serving_gym.runners.validation.fidelity import (
    FOLDER,
    project_version,
    record_of,
    score_folder,
    tables_in,
)
from serving_gym.runners.validation.fidelity_page import PAGE, read_table

# An error may be worse than committed by the larger of the two, of which the second is a share of it: simulated runs of
# a few rows move by this much with a harmless change such as another order of events.
NOISE, NOISE_SHARE = 0.02, 0.15
STEP = {
    "model": "llama2-70b", "hardware": "h100-80gb", "tensor_parallel": 4, "prompt_size": 512, "batch_size": 1,
    "token_size": 128, "prompt_time_ms": 60.0, "token_time_ms": 29.0,
}  # fmt: skip


def test_the_page_is_what_the_command_makes() -> None:
    assert (REPOSITORY / PAGE).read_text(encoding="utf-8") == page_of(REPOSITORY)


def test_this_version_is_scored() -> None:
    record = json.loads((REPOSITORY / FOLDER / f"{project_version()}.json").read_text(encoding="utf-8"))
    assert record["version"] == project_version()
    profiles = {entry["profile"] for entry in record["profiles"] if entry["kind"] == "fitted"}
    assert profiles <= {path.stem for path in (REPOSITORY / "calibration" / "profiles").glob("*.yaml")}


def test_scores_are_written_and_versions_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, root = tmp_path / "data", tmp_path / "root"
    (data / "profiles").mkdir(parents=True)
    pd.DataFrame([STEP, {**STEP, "prompt_size": 2048, "prompt_time_ms": 200.0}]).to_csv(
        data / "profiles" / "splitwise_perf_model.csv.gz", index=False
    )
    words = [f"into={root}", f"out={tmp_path / 'out'}"]
    assert fidelity.main([f"data={data}", *words]) == 0
    file = root / FOLDER / f"{project_version()}.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    (profile,) = record["profiles"]
    assert (profile["profile"], profile["kind"], profile["rows"]) == (
        "llama-2-70b_h100_splitwise",
        "fitted",
        2,
    )
    assert {(e["figure"], e["load"], e["n"]) for e in profile["errors"]} == {
        ("prefill_step", "iteration", 2),
        ("decode_step", "iteration", 2),
    }
    rows = json.loads((tmp_path / "out" / "rows.json").read_text(encoding="utf-8"))
    assert len(rows["profiles/splitwise_perf_model.csv.gz"]) == 4
    (file.parent / "0.1.9.json").write_text(json.dumps({**record, "version": "0.1.9"}), encoding="utf-8")
    assert fidelity.main(words) == 0
    text = (root / PAGE).read_text(encoding="utf-8")
    history = text.partition("## History")[2]
    assert [line.split(" | ")[0] for line in history.splitlines()[-2:]] == [
        "| 0.1.9",
        f"| {project_version()}",
    ]
    assert text.count("Not recorded yet.") == 3


def test_mistakes_get_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = f"out={tmp_path / 'out'}"
    assert fidelity.main([f"data={tmp_path}", out]) == USER_ERROR
    assert "holds no table of measured runs; known are silicon/aic" in capsys.readouterr().err
    assert fidelity.main([f"into={tmp_path}", out]) == USER_ERROR
    assert "holds no scores; data=DIR makes them" in capsys.readouterr().err
    table = tmp_path / "live.yaml"
    table.write_text("what: a\nsource: b\ncolumns: [x, y]\nrows: [[1, 2], [3]]\n", encoding="utf-8")
    with pytest.raises(ValueError, match="row 2 has 1 cells, 2 columns are named"):
        read_table(table)
    table.write_text("what: a\n", encoding="utf-8")
    with pytest.raises(ValueError, match="lacks source, columns, rows"):
        read_table(table)


@pytest.mark.skipif("SERVING_GYM_DATA" not in os.environ, reason="reads the reference data")
def test_no_profile_is_worse_than_committed() -> None:
    """Every row, except that of the runs at fixed concurrency only those on Hopper GPUs are simulated."""
    tables = tables_in(Path(os.environ["SERVING_GYM_DATA"]))
    for table in tables:
        if table.found.form == "closed_loop":
            table.found.runs = [run for run in table.found.runs if run.deployment.gpu in ("H100", "H200")]
    now = record_of("now", score_folder(tables))
    committed = json.loads((REPOSITORY / FOLDER / f"{project_version()}.json").read_text(encoding="utf-8"))
    before = {(entry["profile"], entry["kind"]): entry["errors"] for entry in committed["profiles"]}
    worse = [
        (entry["profile"], error["figure"], error["load"], value, was[value], error[value])
        for entry in now["profiles"]
        for error, was in pairs(entry["errors"], before[entry["profile"], entry["kind"]])
        for value in ("median", "p90")
        if error[value] > was[value] + max(NOISE, NOISE_SHARE * was[value])
    ]
    assert worse == []


def pairs(
    now: list[dict[str, Any]], before: list[dict[str, Any]]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each error with the committed one of the same figure, load and number of rows."""
    known = {(entry["figure"], entry["load"], entry["n"]): entry for entry in before}
    return [(entry, known[entry["figure"], entry["load"], entry["n"]]) for entry in now]
