"""Reports: what stands in the page of each kind of run, and what is said where files are missing."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from serving_gym.runners import compare, evaluate, report, simulate
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.html.folder import RunFolder
from serving_gym.runners.html.gantt import costs_of, gantt, worst_rows
from serving_gym.runners.html.report import write_report
from serving_gym.runners.html.series import series_of
from serving_gym.runners.reporting.figure_style import AGENT_LOOK, looks_of

MOST_BYTES = 1_000_000
TINY = ["env=routing", "workload.num_requests=60", "seeds=2", "report=true"]


def headings(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def check_page(path: Path) -> str:
    """A page that stands alone, whose drawings are sound and whose ids are distinct."""
    page = path.read_text(encoding="utf-8")
    assert len(page) < MOST_BYTES
    assert not re.search(r'(src|href)="(?!#)', page)
    assert not re.search(r"url\((?!#)", page)
    assert "<script" not in page
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(drawing)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    targets = re.findall(r'(?:href="|url\()#([^")]+)', page)
    assert set(targets) <= set(ids)
    return page


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluated")
    assert evaluate.main([*TINY, "policy=jsq", f"out={out}"]) == 0
    return out


def test_an_evaluation(evaluated: Path) -> None:
    page = check_page(evaluated / "report.html")
    assert headings(page) == [
        "Results",
        "Episodes",
        "Over time",
        "Latencies",
        "Worst stretch, request by request",
    ]
    assert "python -m runners.evaluate env=routing" in page
    assert "numba" in page
    assert "0 to 1" in page  # seeds
    assert "Only 2 episodes" in page
    assert page.count("<title>request ") == 60  # the worst stretch is the whole of a tiny episode


def test_a_comparison(tmp_path: Path) -> None:
    words = ["policies=[round_robin,jsq,random]", "plots=false", f"out={tmp_path}"]
    assert compare.main([*TINY, *words]) == 0
    page = check_page(tmp_path / "report.html")
    assert {"Results", "Paired differences", "Gates", "Over time", "Latencies"} <= set(headings(page))
    looks = looks_of(["round_robin", "jsq", "random"])
    assert RunFolder(tmp_path).looks == looks  # the colours of intervals.png and timeline.png
    assert all(f"stroke: {look.colour}" in page for look in looks.values())
    requests = pd.read_parquet(tmp_path / "requests.parquet")
    assert requests.groupby("policy").size().to_dict() == {"jsq": 60, "random": 60, "round_robin": 60}
    episodes = pd.read_parquet(tmp_path / "episodes.parquet")
    worst = episodes.loc[episodes["return"].idxmin(), "seed"]
    assert set(requests["seed"]) == {worst}
    for name in ("requests.parquet", "decisions.jsonl", "episodes.parquet"):
        (tmp_path / name).unlink()
    write_report(tmp_path)
    page = check_page(tmp_path / "report.html")
    assert headings(page)[-1] == "Not in this report"
    assert "the run has no requests.parquet" in page


def test_a_simulation_and_its_figures_as_pdf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["workload.num_requests=50", f"out={tmp_path}", "requests_json=false"]) == 0
    assert report.main([str(tmp_path), "pdf=true", f"out={tmp_path / 'own'}"]) == 0
    assert str(tmp_path / "report.html") in capsys.readouterr().out
    assert headings(check_page(tmp_path / "report.html"))[:2] == ["Results", "Over time"]
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"series.pdf", "latencies.pdf"}


def test_a_training_shows_its_curve(evaluated: Path, tmp_path: Path) -> None:
    metrics = json.loads((evaluated / "summary.json").read_text())["metrics"]
    gain = {"iqm": 0.1, "ci95": [0.05, 0.15]}
    gate = {"value": 1.2, "limit": 1.05, "holds": False}
    comparison = {
        "env": "routing",
        "workload": "azure_conv_fitted",
        "seeds": 6,
        "blocks": 4,
        "policies": {name: {"metrics": metrics, "us_per_decision": 9.0} for name in ("ppo", "jsq")},
        "relative_improvement": {"ppo>jsq": gain, "jsq>ppo": {"iqm": -0.1, "ci95": [None, -0.05]}},
        "probability_of_improvement": {"ppo>jsq": 0.9},
        "p_values": {"ppo|jsq": 0.02},
        "best_heuristic": "jsq",
        "gates": {"ppo": {"versus": "jsq", "holds": False, "ttft_p99_ratio": gate}},
        "roles": {"ppo": "agent", "jsq": "plain"},
        "learned": ["ppo"],
        "training": {"improved": False, "validation_returns": {"ppo": -3.0, "jsq": -4.0}},
    }
    (tmp_path / "comparison.json").write_text(json.dumps(comparison))
    write_report(tmp_path)
    assert "metrics.jsonl has no validations" in check_page(tmp_path / "report.html")
    rows = [{"kind": "validation", "steps": 1000 * i, "return": -5.0 + i} for i in range(3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "va')
    write_report(tmp_path)
    page = check_page(tmp_path / "report.html")
    assert "Learning curve" in headings(page)
    assert RunFolder(tmp_path).looks["ppo"] == AGENT_LOOK
    for said in (
        "+10.0 % [+5.0, +15.0]",
        "FAILS: 1.2 (limit 1.05)",
        "Training has not improved on its start",
        "only 4 of 6 episodes can be disjoint",
        "a line that is not JSON is left out",
    ):
        assert said in page


def test_late_decisions_are_warned_of(evaluated: Path, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_bytes((evaluated / "summary.json").read_bytes())
    row: dict[str, Any] = {"policy": "jsq", "seed": 0, "now_s": 1.0, "action": 0, "refused": ""}
    rows = [row | {"overrides": [{"row": 1}] if i < 30 else []} for i in range(70)]
    (tmp_path / "decisions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    write_report(tmp_path)
    assert "30 of 100 decisions (30%) were taken for the policy" in check_page(tmp_path / "report.html")
    summary = json.loads((tmp_path / "summary.json").read_text())
    client = {"send_lag_p99_s": 0.25, "load": 5.0, "cores": 2}
    live = {"overrides": {"share": 0.3}, "client": client, "warnings": ["30 % were not the policy's"]}
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"backend": "vllm", "live": live}))
    write_report(tmp_path)
    page = check_page(tmp_path / "report.html")
    assert "30 % were not the policy" in page
    assert "30.0% of the decisions overridden, P99 of its lag 250 ms, load 5 of 2 cores" in page
    assert "were taken for the policy" not in page


def test_what_is_no_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["benchmark=smoke", "report=true", f"out={tmp_path / 'own'}"]) == USER_ERROR
    assert "report=true is for one comparison" in capsys.readouterr().err
    assert report.main([str(tmp_path), f"out={tmp_path / 'own'}"]) == USER_ERROR
    assert "has no summary.json, comparison.json or replay.json" in capsys.readouterr().err
    assert report.main([str(tmp_path / "absent"), f"out={tmp_path / 'own'}"]) == USER_ERROR
    assert "is not a directory" in capsys.readouterr().err


REQUESTS = pd.DataFrame(
    {
        "index": [0, 1, 2],
        "arrival_s": [0.0, 1.0, 2.0],
        "first_scheduled_s": [0.0, 3.0, np.nan],
        "first_token_s": [1.0, 4.0, np.nan],
        "finish_s": [5.0, 8.0, np.nan],
        "input_tokens": [100, 200, 300],
        "output_tokens": [40, 9, 5],
        "generated_tokens": [40, 9, 0],
        "preemptions": 0,
        "class_id": 0,
        "engine": [0, 0, -1],
        "outcome": ["finished", "finished", "refused"],
    }
)


def test_series_of_three_requests() -> None:
    series = series_of(REQUESTS, None)
    at = dict(zip(np.round(series.edges_s, 6).tolist(), range(len(series.edges_s)), strict=True))
    place = at[2.0]  # the first runs, the second waits, the third has just been refused
    assert (series.waiting[place], series.running[place]) == (1.0, 1.0)
    assert series.kv_tokens[place] == pytest.approx(100 + 40 * (2.0 - 1.0) / 4.0)
    place = at[6.0]
    assert (series.waiting[place], series.running[place]) == (0.0, 1.0)
    assert series.kv_tokens[place] == pytest.approx(200 + 9 * 2.0 / 4.0)
    assert series.kv_tokens[-1] == pytest.approx(0.0)
    assert series.arrivals_rps.sum() * (series.edges_s[1] - series.edges_s[0]) == pytest.approx(3.0)


def test_the_worst_request_is_the_one_that_was_lost() -> None:
    slos = [{"ttft_s": 1.0, "tpot_s": 0.1}]
    costs = costs_of(REQUESTS, slos)
    assert costs.tolist() == pytest.approx([1.0 + 4.0 / 39 / 0.1, 3.0 + 0.5 / 0.1, np.inf])
    drawn = gantt(worst_rows(REQUESTS, costs), slos)
    ET.fromstring(drawn)
    assert re.findall(r'font-weight="bold">(#\d)', drawn) == ["#2"]
    assert "request 2, refused" in drawn
    assert "first token never" in drawn
