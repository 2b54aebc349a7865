"""All papers by one command: parts that are done stay done, and a table ends it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from serving_gym.runners import reproduce
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.configuration.schema import register_schemas
from serving_gym.runners.reproduction import every
from serving_gym.runners.reproduction.claims import Claim, near, shown
from serving_gym.runners.reproduction.config import DEFAULT_SEEDS, PAPERS, ReproduceConfig
from serving_gym.runners.reproduction.every import Unit, paper_config, run_all, run_unit, units_of
from serving_gym.runners.reproduction.llm_mesh.choices import MeshChoices
from serving_gym.runners.reproduction.papers import PAPERS as STUDIES
from serving_gym.runners.reproduction.parts import Evaluation, Paper, total

ALL = ReproduceConfig(out="unused", paper="all", processes=1)


def paper(name: str, made: list[str], ours: float) -> Paper:
    """A paper of three parts that say when they were made; the third shares nothing with the others."""

    def part(which: str) -> list[Claim]:
        made.append(f"{name} {which}")
        rule = shown("apples") if which == "second" else near(2.0)
        return [Claim(name, which, "6", 2.0, ours, "x", rule)]

    parts = {which: partial(part, which) for which in ("first", "second", "third")}
    return Paper(
        lambda config, bar: Evaluation(parts, partial(total, {}), quick=("first",)),
        "step",
        MeshChoices,
        cut="half of it",
        alone=("third",),
        seeds=1,
    )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    papers = {"oserve": paper("oserve", found, 2.0), "preserve": paper("preserve", found, 3.0)}
    monkeypatch.setattr(every, "PAPERS", papers)
    monkeypatch.setattr(every, "_ORDER", tuple(papers))
    return found


def test_every_paper_is_run() -> None:
    assert sorted(every._ORDER) == sorted(PAPERS) == sorted(STUDIES)
    assert all(entry.cut for entry in STUDIES.values())


@pytest.mark.parametrize("name", PAPERS)
def test_parts_that_run_alone_are_parts(name: str) -> None:
    config = ReproduceConfig(out="unused", paper=name)
    units = units_of(config)
    parts = [part for unit in units for part in unit.parts]
    assert sorted(parts) == sorted(STUDIES[name].evaluation(config, None).parts)
    assert len(units) == 1 + len(STUDIES[name].alone)


def test_a_run_that_was_stopped_continues(
    made: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_all(ALL, tmp_path)
    assert len(made) == 6
    out = capsys.readouterr().out
    assert "oserve   │     1 │     2 │" in out
    assert "preserve │     1 │     0 │" in out
    rows = json.loads((tmp_path / "claims.json").read_text())
    assert [row["paper"] for row in rows] == ["oserve"] * 3 + ["preserve"] * 3
    assert {row["cut"] for row in rows} == {""}
    (tmp_path / "preserve/second.json").unlink()
    made.clear()
    run_all(ALL, tmp_path)
    assert made == ["preserve second"]
    assert json.loads((tmp_path / "claims.json").read_text()) == rows


def test_a_quick_run_says_what_it_cut(
    made: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ReproduceConfig(out="unused", paper="all", quick=True, processes=1)
    run_all(quick, tmp_path)
    assert made == ["oserve first", "preserve first"]
    assert "oserve, quick: half of it." in capsys.readouterr().out
    assert {row["cut"] for row in json.loads((tmp_path / "claims.json").read_text())} == {"half of it"}
    with pytest.raises(ValueError, match="has oserve, first of a run with quick=true seeds=1 "):
        run_all(ALL, tmp_path)


def test_seeds_are_those_given_or_what_an_hour_has_room_for() -> None:
    assert paper_config(ALL, "sageserve").seeds == 1
    assert paper_config(ALL, "flying_serving").seeds == DEFAULT_SEEDS
    assert paper_config(ReproduceConfig(out="unused", paper="all", seeds=5), "sageserve").seeds == 5


def test_parts_run_in_processes(tmp_path: Path) -> None:
    register_schemas()
    units = [
        Unit(ReproduceConfig(out="unused", paper=name), (part,))
        for name, part in (("flying_serving", "switching"), ("llm_mesh", "examples"))
    ]
    assert sorted(unit.paper for unit in every._done(units, 2, tmp_path)) == ["flying_serving", "llm_mesh"]
    for unit in units:
        (tmp_path / "alone").mkdir(exist_ok=True)
        run_unit(unit, tmp_path / "alone")
        path = Path(unit.paper) / f"{unit.parts[0]}.json"
        assert json.loads((tmp_path / path).read_text()) == json.loads(
            (tmp_path / "alone" / path).read_text()
        )


def test_what_is_for_one_paper_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["paper=all", "save=true", f"out={tmp_path}"]) == USER_ERROR
    assert "save is given with paper=all; it is for one paper: flying_serving" in capsys.readouterr().err
    assert reproduce.main(["paper=oserve", "quick=true", "save=true", f"out={tmp_path}"]) == USER_ERROR
    assert "only whole parts are kept" in capsys.readouterr().err
