"""Figures of Markdown files are those of the committed result files, and none is typed by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from serving_gym.runners.documentation import figures
from serving_gym.runners.documentation.__main__ import main
from serving_gym.runners.documentation.figures import (
    Figure,
    content,
    filled_page,
    marked,
    pages,
    result,
    stale_figures,
    typed_rows,
    unused_figures,
)
from serving_gym.runners.documentation.keeping import keep
from serving_gym.runners.documentation.results import COLUMNS, FOLDER, Results
from serving_gym.runners.documentation.templates import filled, shown
from serving_gym.runners.reporting.provenance import PROVENANCE_FILE

ROOT = Path(__file__).parents[2]
# Numbers of README's tables that are no results.
SPACES = (
    r"\d+ engines × \d+, cluster \d+ \+ \d+ a class",
    r"\d+ layouts × \d+ switch modes",
    r"(?:\d+ )?(?:places|endpoints) × \d+",
    r"\d+ (?:places|candidates|minutes)\b",
    r"[\d,]+ requests",
)
# What a result looks like on the other pages: a signed number, per cent, an interval.
RESULT = r"(?<![\w^(])[-+]\d|\d %|\[-?\d+(?:\.\d+)?,"
NO_RESULTS = (
    r"a gain of 3 % or more",
    r"the best lacks 10 %",
    r"95 % intervals?",
    r"-1: none",
    r"uniform in \[0, `\w+`\]",
    r"\| validation return \| [^|]* \|",  # of a card, which the training writes
)
# Pages whose tables are written from classes or from the leaderboard's entries.
OTHERS = (
    "docs/routing.md",
    "docs/dp_tp.md",
    "docs/deployment.md",
    "docs/autoscaling.md",
    "docs/sharing.md",
    "docs/leaderboard.md",
)


def without(patterns: tuple[str, ...], text: str) -> str:
    return re.sub("|".join(patterns), "", text)


def test_pages_show_what_result_files_say() -> None:
    assert [str(one) for one in stale_figures()] == [], "write them again: python -m runners.documentation"


def test_every_figure_of_the_list_is_shown() -> None:
    assert unused_figures() == []


def test_tables_of_the_readme_have_no_typed_figures() -> None:
    assert typed_rows(without(SPACES, (ROOT / "README.md").read_text())) == []


@pytest.mark.parametrize("page", [page for page in pages() if not page.startswith(OTHERS)])
def test_tables_have_no_typed_results(page: str) -> None:
    assert typed_rows(without(NO_RESULTS, (ROOT / page).read_text()), RESULT) == []


def test_result_files_say_where_they_come_from() -> None:
    for path in FOLDER.glob("*.json"):
        values = result(path.stem)
        assert values["command"], path
        if values["regenerated"]:
            assert values["started"], path
            assert values["versions"]["serving-gym"], path
        else:
            assert values["version"], path


def test_a_typed_figure_is_found() -> None:
    text = "| a | <!--figure:x-->12<!--end--> |\n| `b 3` | [c](d4.md) |\n\n| e | 5 % |\n"
    assert typed_rows(text) == ["| e | 5 % |"]
    assert typed_rows(text.replace("5 %", "in 5 minutes"), RESULT) == []


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [
        (-1174.67, "short", "-1175"),
        (-88.6284, "short", "-88.6"),
        (1_234_567.0, "3", "1,230,000"),
        (0.615, ".1f %", "61.5 %"),
        ({"iqm": 0.0395, "ci95": [0.0133, 0.0660]}, "ci +.1f %", "+4.0 % [1.3, 6.6]"),
        ({"iqm": 0.0395, "ci95": None}, "ci +.1f %", "+4.0 %"),
        ({"iqm": None, "ci95": [1.0, None]}, "ci .2f", "∞ [1.00, ∞]"),
        ([0.5, 0.25], ".2f", "0.50, 0.25"),
        ("none better", ".1f", "none better"),
        (None, ".1f", ""),
    ],
)
def test_how_a_figure_is_shown(value: Any, spec: str, text: str) -> None:
    assert shown(value, spec) == text


def test_templates_say_what_they_do_not_find() -> None:
    rows = {"jsq": {"return": -3.0}}
    assert filled("{routing | jsq | return:.1f} {own}", {"own": 1}, lambda _: rows, "x") == "-3.0 1"
    with pytest.raises(ValueError, match="unknown row of routing 'jsg'; did you mean 'jsq'"):
        filled("{routing | jsg | return}", {}, lambda _: rows, "x")
    with pytest.raises(ValueError, match="unknown field 'owm'; did you mean 'own'"):
        filled("{owm}", {"own": 1}, lambda _: rows, "x")


def test_a_changed_result_is_stale_with_both_values(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dict(figures.rows_of("routing"))
    rows["jsq"] = {**rows["jsq"], "return": {"iqm": -1.5, "ci95": None}}
    real = figures.rows_of
    monkeypatch.setattr(figures, "rows_of", lambda name: rows if name == "routing" else real(name))
    (found,) = [one for one in stale_figures() if one.page == "README.md"]
    assert (found.page, found.name) == ("README.md", "gain.routing")
    assert "`jsq` -134" in found.has
    assert "`jsq` -1.5" in found.should
    assert "README.md: figure gain.routing has" in str(found)


def test_a_table_has_its_rows_words_and_source() -> None:
    figure = Figure(
        rows="routing",
        columns={"policy": "`{row}`", "what": "", "return": "{return:short}"},
        only=("jsq", "random"),
        cells={"random": {"what": "any place"}},
        source=True,
    )
    text = content("x", figure, "docs/rivals.md")
    assert text.strip().splitlines()[2:4] == ["| `jsq` |  | -134 |", "| `random` | any place | -1175 |"]
    assert "Version 0.2.0, [measured](results/routing.json) 2026-11-29." in text
    with pytest.raises(ValueError, match="unknown row of routing in figure x 'jsk'; did you mean 'jsq'"):
        content("x", Figure(rows="routing", columns={"a": ""}, only=("jsk",)), "README.md")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a <!--figure:x-->1", "needs one <!--end-->"),
        ("<!--figure:x-->1<!--end-->", "begins a line"),
    ],
)
def test_markers_that_code_hosts_would_not_show(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        list(marked(text, "page.md"))


def test_an_unknown_figure_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"unknown figure in page.md 'gain.routin'; did you mean 'gain.routing'"
    ):
        filled_page("a <!--figure:gain.routin--><!--end-->", "page.md", figures.figures())


def run_of(folder: Path, values: dict[str, Any], name: str = "comparison.json") -> Path:
    """A run's files, as far as they are read."""
    (folder / name).write_text(json.dumps(values))
    (folder / PROVENANCE_FILE).write_text(
        json.dumps(
            {
                "command": "compare",
                "words": ["env=routing", "seeds=2", "out=runs/x", "policies=[jsq,random]"],
                "started": "2026-11-29T10:00:00+0000",
                "versions": {
                    "python": "3.11.7",
                    "serving-gym": "0.2.0",
                    "numpy": "2",
                    "numba": "0",
                    "torch": "2",
                },
            }
        )
    )
    return folder / name


def comparison(**changes: Any) -> dict[str, Any]:
    figure = {"iqm": -12.3456789, "ci95": [-20.0, -10.0], "mean": -13.0}
    metrics = {**dict.fromkeys(COLUMNS, figure), "refused_share": {"iqm": 0.25, "ci95": None}}
    return {
        "env": "routing",
        "split": "test",
        "backend": "simulator",
        "workload": "azure",
        "seeds": 2,
        "policies": {
            name: {"metrics": {**metrics, "return": {**figure, "iqm": best}}}
            for name, best in (("jsq", -1.0), ("random", -5.0), ("seer", -0.5))
        },
        "regret": {"clairvoyant_policies": {"jsq": 0.1, "random": 0.9}},
        "relative_improvement": {"jsq>random": {"iqm": 0.8, "ci95": [0.7, 0.9]}, "jsq>seer": figure},
    } | changes


def test_a_comparison_is_kept(tmp_path: Path) -> None:
    path = run_of(tmp_path, comparison())
    assert keep(path, folder=tmp_path) == tmp_path / "routing.json"
    kept = Results.of("routing", tmp_path)
    assert kept.ranked() == ["random", "jsq", "seer"]
    assert kept.best() == "jsq"
    assert kept.clairvoyant == ("seer",)
    assert kept.gain_over("random") == "+80.0 % [70.0, 90.0]"
    assert kept.command == "python -m runners.compare env=routing seeds=2 'policies=[jsq,random]'"
    assert (kept.started[:10], kept.versions["serving-gym"]) == ("2026-11-29", "0.2.0")
    assert (
        kept.as_table().splitlines()[-1]
        == "| `seer`, clairvoyant | -0.5 [-20, -10] | -12.3 | -12.3 | -12.3 |"
    )


def test_a_named_result_keeps_the_metrics_of_its_tables(tmp_path: Path) -> None:
    path = run_of(tmp_path, comparison(split="validation"))
    values = json.loads(keep(path, "mine", ["row", "gain", "refused_share"], tmp_path).read_text())
    assert values["policies"]["jsq"]["refused_share"] == {"iqm": 0.25, "ci95": None}
    assert values["split"] == "validation"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (comparison(split="train"), "split=test on the simulator are kept, got split=train"),
        ({"claims": []}, "must be the comparison.json or benchmark.json"),
    ],
)
def test_only_test_episodes_on_the_simulator_are_kept(
    values: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        keep(run_of(tmp_path, values), folder=tmp_path)


def test_a_benchmark_is_kept(tmp_path: Path) -> None:
    line = {
        "task": "sharing", "policy": "zoo/sharing", "best_heuristic": "belady", "gain": 0.055, "ci95": [0.043, 0.067],
        "mean": 0.065, "mean_ci95": [0.052, 0.078], "gates_hold": True, "gates_certain": False,
        "gates_beyond_in": ["chat"], "regret_clairvoyant": 0.147, "us_per_decision": 152.4, "badge": "solved",
    }  # fmt: skip
    gates = {
        "ttft_p99_ratio": {"value": 0.999, "ci95": [0.998, 1.0]},
        "worst_class_slowdown_ratio": {"value": 0.989, "ci95": [0.982, 0.995]},
        "slo_attainment_loss": {"value": -0.0097, "ci95": [-0.0114, -0.0082]},
    }
    (tmp_path / "sharing").mkdir()
    (tmp_path / "sharing/comparison.json").write_text(json.dumps({"gates": {"zoo/sharing": gates}}))
    path = run_of(tmp_path, {"benchmark": "full", "results": [line, {"task": "open"}]}, "benchmark.json")
    kept = json.loads(keep(path, folder=tmp_path).read_text())
    (row,) = kept["rows"]
    assert set(row) == set(result("benchmark_full")["rows"][0])  # what the pages show
    assert row["gates"] == "hold, not in chat"
    assert row["slo_attainment_points"] == {"iqm": 0.97, "ci95": [0.82, 1.14]}


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check=true"]) == 0
    assert capsys.readouterr().out == "0 stale\n"
    assert main(["chek=true"]) == 2
    assert "unknown word 'chek'; did you mean 'check'?" in capsys.readouterr().err
    assert main(["results=mine"]) == 2
    assert main(["from=runs/nothing/comparison.json"]) == 2
    assert "is no file" in capsys.readouterr().err
