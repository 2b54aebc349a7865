import json
from dataclasses import replace
from pathlib import Path

import pytest

from serving_gym.calibration.profile import dump_profile, named_profile, parse_profile
from serving_gym.runners import calibrate, simulate
from serving_gym.runners.measuring.report import with_width
from serving_gym.runners.profile_fitting import regenerate

LIVE = ["backend=vllm", "backend.endpoints=[http://127.0.0.1:1]"]


def test_tables_are_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def noted(name: str) -> list[Path]:
        called.append(name)
        return [tmp_path / name]

    parts = {name: lambda _, name=name: noted(name) for name in regenerate.PARTS}
    monkeypatch.setattr(regenerate, "PARTS", parts)
    assert calibrate.main([f"out={tmp_path}", f"into={tmp_path / 'into'}"]) == 0
    assert called == ["kernels", "steps", "engines", "live", "environments", "constants", "transfers"]
    assert len(json.loads((tmp_path / "calibration.json").read_text())["written"]) == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (LIVE, "log must name the file that the server's standard output goes to"),
        ([*LIVE, "log=/nowhere"], "no server answers at http://127.0.0.1:1"),
        (
            ["backend=vllm", "backend.endpoints=[http://127.0.0.1:1,http://127.0.0.1:2]", "log=x"],
            "one is measured",
        ),
        (["backend=simulator"], "unknown backend 'simulator'"),
        ([*LIVE, "log=x", "repeats=0"], "repeats must be at least 1, got 0"),
        ([*LIVE, "log=x", "hardware.flops=0"], "hardware.flops must be positive"),
        ([*LIVE, "log=x", "date=yesterday"], "date must be written YYYY-MM-DD, got 'yesterday'"),
        (
            [*LIVE, "log=x", "engine=../mine"],
            "engine must be letters, digits, '.', '_' and '-', got '../mine'",
        ),
        (["backend=vllm"], "needs either running servers"),
    ],
)
def test_mistakes(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate.main([*words, f"out={tmp_path}"]) == 2
    assert said in capsys.readouterr().err


def test_tables_serve_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["backend=tables", f"out={tmp_path}"]) == 2
    assert "unknown backend 'tables'" in capsys.readouterr().err


def test_what_is_measured_at_another_degree_goes_beside_the_others() -> None:
    committed = named_profile("tiny-llama_cpu")
    alone = replace(committed.coefficients[1], fixed_s=0.5)
    measured = replace(
        committed,
        coefficients={4: alone},
        frontends={4: committed.frontends[1]},
        provenance={"date": "2026-01-01"},
        held_out={"configurations": 3},
        transitions={"start_s": 99.0},
    )
    joint = parse_profile(dump_profile(with_width(committed, measured)))
    assert joint.widths == (1, 2, 4)
    assert joint.coefficients_at(4).fixed_s == 0.5
    assert joint.coefficients_at(1) == committed.coefficients_at(1)
    assert joint.transitions == committed.transitions
    assert joint.provenance["tp4"] == {"date": "2026-01-01", "transitions": {"start_s": 99.0}}
    assert joint.held_out["tp4"] == {"configurations": 3}
    with pytest.raises(ValueError, match="other data than the measured"):
        with_width(committed, replace(measured, model=replace(measured.model, num_layers=5)))
    with pytest.raises(ValueError, match="schedules synchronously, unlike the measured one"):
        with_width(committed, replace(measured, async_scheduling=True))
