"""What papers leave open: words, sensitivity runs, ranges over seeds, and the page."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from serving_gym.runners.reproduction import page
from serving_gym.runners.reproduction.choices import choice, make_choices
from serving_gym.runners.reproduction.claims import CONTRADICTED, HOLDS, INPUT, UNDER, Claim, counts, near
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.parts import (
    Evaluation,
    Paper,
    run_parts,
    spread_over_seeds,
    total,
    varied,
)
from serving_gym.runners.tuning import tuned_file


@dataclass(frozen=True)
class Choices:
    load: float = choice(0.9, 0.5, 1.0, parts=("serving",), why="No rates are named.")
    rule: str = choice("text", "code", parts=("serving", "other"), why="Both are published.")
    cap: int | None = choice(None, 1024, parts=("other",), why="Not said.")
    widths: tuple[int, ...] = choice((4,), (4, 2), parts=("other",), why="Not said.")
    gate: bool = choice(False, True, parts=("other",), why="Not said.")


def evaluation(config, bar):
    chosen = make_choices(Choices, config.choices)

    def serving():
        gain = 4.0 * chosen.load + config.first_seed
        return [
            Claim("someone", "gain", "6", 4.0, gain, "x", near(4.0)),
            Claim("someone", "given", "6", 1.0, 1.0, "x", near(1.0), kind=INPUT),
        ]

    def other():
        return [Claim("someone", "other", "7", 5.0, 9.0 if chosen.gate else 1.0, "x", near(5.0))]

    return Evaluation({"serving": serving, "other": other}, lambda names: total({"serving": 1}, names))


PAPER = Paper(evaluation, "step", Choices)


def made(**words):
    config = ReproduceConfig(out="unused", **words)
    return config, dict(run_parts(config, PAPER, quiet=True))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"load": 1}, Choices(load=1.0)),
        ({"rule": "code", "cap": 12}, Choices(rule="code", cap=12)),
        ({"widths": [4, 2]}, Choices(widths=(4, 2))),
        ({"cap": None, "gate": True}, Choices(gate=True)),
    ],
)
def test_choices_are_words(values, expected):
    assert make_choices(Choices, values) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"laod": 1.0}, "unknown choices 'laod'; did you mean 'load'?"),
        ({"rule": "txt"}, "choices.rule 'txt'; did you mean 'text'?"),
        ({"load": "high"}, "choices.load is 'high'; it must be of the kind of 0.9 or 0.5 or 1.0"),
        ({"gate": 1}, "choices.gate is 1; it must be of the kind of False or True"),
        ({"cap": 1.5}, "choices.cap is 1.5"),
        ({"load": -1.0}, "choices.load is -1.0; it must be finite and of the sign of 0.9"),
        ({"load": float("nan")}, "choices.load is nan; it must be finite"),
        ({"widths": [4, -2]}, "it must be finite and of the sign of"),
    ],
)
def test_choices_that_do_not_fit_are_refused(values, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        make_choices(Choices, values)


def test_sensitivity_runs_every_other_value_of_the_parts_that_were_made():
    config, first = made(only=("serving",), sensitivity=("all",), choices={"load": 0.5})
    *_, found = varied(config, PAPER, first)
    gain, given = found["serving"]
    assert [(one.choice, one.value, one.holds) for one in gain.sensitivity] == [
        ("load", 0.9, True), ("load", 1.0, True), ("rule", "code", False),
    ]  # fmt: skip
    assert (first["serving"][0].verdict, gain.verdict) == (CONTRADICTED, UNDER)
    assert len(given.sensitivity) == 3
    assert counts([gain, given]) == {HOLDS: 0, UNDER: 1, CONTRADICTED: 0, "cannot be tested": 0}


def test_a_range_over_seeds_comes_from_runs_of_one_seed():
    config, first = made(only=("serving",), seeds=2)
    gain, _ = spread_over_seeds(config, PAPER, first)["serving"]
    assert (gain.ours_low, gain.ours_high) == pytest.approx((3.6, 4.6))


def test_unknown_sensitivity_is_refused_before_anything_runs():
    config = ReproduceConfig(out="unused", sensitivity=("laod",))
    with pytest.raises(ValueError, match="unknown sensitivity 'laod'; did you mean 'load'"):
        next(run_parts(config, PAPER))


def test_parts_are_kept_one_by_one_and_the_page_counts_them(tmp_path: Path, monkeypatch):
    task = type("Overrides", (), {"task": ["paper=someone", "save=true", "out=x"]})
    monkeypatch.setattr(tuned_file, "search_path", list)
    monkeypatch.setattr(tuned_file.HydraConfig, "get", lambda: type("Config", (), {"overrides": task}))
    config, first = made(sensitivity=("load", "gate"), save=True)
    page.keep("someone", {"serving": first["serving"]}, tmp_path)
    *_, found = varied(config, PAPER, first)
    page.keep("someone", {"other": found["other"]}, tmp_path)
    kept = json.loads((tmp_path / "someone.json").read_text())
    assert list(kept) == ["serving", "other"]
    assert kept["serving"]["command"] == "python -m runners.reproduce paper=someone save=true"
    text = page.write_page({"someone": Choices}, tmp_path, tmp_path / "PAGE.md").read_text()
    assert (
        "| someone | 1 | 0 | 1 | 0 | 1 | 0 |" in text
    )  # holds, under conditions, contradicted, untested; inputs
    assert "| other | 7 | 5 | 1 x | contradicted | gate=True: 9 |" in text
    assert "| load | 0.9 | 0.5, 1.0 | serving | No rates are named. |" in text


@pytest.mark.parametrize("words", [{"quick": True}, {"requests": 5}, {"choices": {"load": 1.0}}])
def test_only_whole_parts_are_kept(words):
    with pytest.raises(ValueError, match="save is true"):
        ReproduceConfig(out="unused", save=True, **words)
