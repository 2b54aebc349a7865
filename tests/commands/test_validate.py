"""Measurements in, errors out; and one sentence where that cannot be."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from serving_gym.runners import calibrate, validate
from serving_gym.runners.command_line.cli import USER_ERROR

STEP = {
    "model": "llama2-70b", "hardware": "h100-80gb", "tensor_parallel": 4, "prompt_size": 512, "batch_size": 1,
    "token_size": 128, "prompt_time_ms": 60.0, "token_time_ms": 29.0,
}  # fmt: skip
LOOP = {
    "backend": "vllm", "backend_version": "0.12.0", "model": "Qwen/Qwen3-32B", "system": "h100_sxm", "mode": "agg",
    "isl": 128, "osl": 16, "concurrency": 2, "tensor_parallel": 4, "pipeline_parallel": 1, "ttft_ms": 40.0,
    "tpot_ms": 10.0, "source": "h100_sxm/vllm/0.12.0/qwen3_32b.csv",
}  # fmt: skip


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    path = tmp_path / "steps.csv"
    unknown = {**STEP, "model": "gpt-5"}
    pd.DataFrame([STEP, {**STEP, "prompt_size": 2048, "prompt_time_ms": 200.0}, unknown]).to_csv(
        path, index=False
    )
    return path


def test_validate_writes_errors_and_counts_what_it_cannot_predict(
    steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SERVING_GYM_DATA", raising=False)  # only what is committed
    out = tmp_path / "out"
    assert validate.main([f"data={steps}", f"out={out}"]) == 0
    result = json.loads((out / "validation.json").read_text())
    assert result["overall"]["prefill_step"]["n"] == result["overall"]["decode_step"]["n"] == 2
    assert 0.0 <= result["overall"]["decode_step"]["ape_median"] < 0.1
    assert result["rows_unsupported"] == 1
    assert {group["split"] for group in result["groups"]} == {"seen"}
    said = capsys.readouterr().out
    assert "prefill_step" in said
    assert "1 rows not predicted: model 'gpt-5' is unknown" in said


def test_validate_simulates_serving_runs(tmp_path: Path) -> None:
    path = tmp_path / "loop.parquet"
    pd.DataFrame([LOOP, {**LOOP, "tensor_parallel": 8, "tpot_ms": 7.0, "ttft_ms": 30.0}]).to_parquet(path)
    assert validate.main([f"data={path}", f"out={tmp_path / 'out'}"]) == 0
    overall = json.loads((tmp_path / "out" / "validation.json").read_text())["overall"]
    assert overall["tpot"]["n"] == overall["ttft"]["n"] == 2
    assert overall["tpot"]["ape_median"] < 0.3


def test_one_profile_speaks_of_its_own_rows_only(steps: Path, tmp_path: Path) -> None:
    words = [f"data={steps}", f"out={tmp_path}", "profile=bloom-176b_h100_splitwise"]
    assert validate.main(words) == USER_ERROR  # nothing of it
    result = json.loads((tmp_path / "validation.json").read_text())
    assert result["unsupported"]["profile is of bloom-176b on H100"] == 2
    assert result["groups"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data=/nowhere.csv"], "data='/nowhere.csv' is not a file"),
        ([], "data"),
        (["data={steps}", "profile=qwen3-32b_h100_vllm-0.13"], "did you mean 'qwen3-32b_h100_vllm-0.12'"),
        (["data={steps}", "profil=x"], "unknown key 'profil'"),
    ],
)
def test_mistakes_get_one_sentence(
    words: list[str], said: str, steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [word.format(steps=steps) for word in words]
    assert validate.main([*filled, f"out={tmp_path / 'out'}"]) == USER_ERROR
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert said in error


def test_a_table_in_no_form_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.csv"
    pd.DataFrame([{"model": "a", "ttft_ms": 1.0}]).to_csv(path, index=False)
    assert validate.main([f"data={path}", f"out={tmp_path / 'out'}"]) == USER_ERROR
    assert "data has none of the known forms" in capsys.readouterr().err


def test_calibrate_refuses_what_it_cannot_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert calibrate.main(["part=engine", f"out={tmp_path}"]) == USER_ERROR
    assert "part" in capsys.readouterr().err
    assert calibrate.main(["backend=tgi", f"out={tmp_path}"]) == USER_ERROR
    assert "backend" in capsys.readouterr().err
    monkeypatch.delenv("SERVING_GYM_DATA", raising=False)
    assert calibrate.main(["part=steps", f"into={tmp_path}", f"out={tmp_path / 'out'}"]) == USER_ERROR
    assert "SERVING_GYM_DATA is not set" in capsys.readouterr().err


@pytest.mark.slow
def test_calibrate_writes_the_committed_step_profiles(tmp_path: Path) -> None:
    assert calibrate.main(["part=steps", f"into={tmp_path}", f"out={tmp_path / 'out'}"]) == 0
    name = "llama-2-70b_h100_splitwise.yaml"
    committed = Path(__file__).resolve().parents[2] / "calibration" / "profiles" / name
    assert (tmp_path / "profiles" / name).read_text() == committed.read_text()


@pytest.mark.parametrize(
    ("column", "value"), [("prompt_time_ms", np.nan), ("prompt_time_ms", 0.0), ("prompt_size", -4)]
)
def test_a_cell_that_is_no_measurement_is_counted_and_leaves_the_others(
    tmp_path: Path, column: str, value: float
) -> None:
    frame = pd.DataFrame(
        {
            "model": "llama2-70b", "hardware": "a100-80gb", "tensor_parallel": 4, "prompt_size": [512, 1024, 2048],
            "batch_size": 1, "token_size": 128, "prompt_time_ms": [100.0, 190.0, 380.0],
            "token_time_ms": [30.0, 30.0, 30.0],
        }
    )  # fmt: skip
    frame[column] = frame[column].astype(float)
    frame.loc[1, column] = value
    frame.to_csv(tmp_path / "steps.csv", index=False)
    assert validate.main([f"data={tmp_path / 'steps.csv'}", f"out={tmp_path / 'run'}"]) == 0
    report = json.loads((tmp_path / "run" / "validation.json").read_text())
    assert report["overall"]["prefill_step"]["n"] == 2
    assert np.isfinite(report["overall"]["prefill_step"]["ape_mean"])
    assert sum(report["unsupported"].values()) == 1


def test_a_file_of_which_nothing_can_be_predicted_is_an_error(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"model": ["nobody/knows"], "hardware": ["a100-80gb"], "tensor_parallel": [4], "prompt_size": [512],
         "batch_size": [1], "token_size": [128], "prompt_time_ms": [100.0], "token_time_ms": [30.0]}
    )  # fmt: skip
    frame.to_csv(tmp_path / "steps.csv", index=False)
    assert validate.main([f"data={tmp_path / 'steps.csv'}", f"out={tmp_path / 'run'}"]) == 2
