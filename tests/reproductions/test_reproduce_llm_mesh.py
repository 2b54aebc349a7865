"""LLM-Mesh's numbers beside ours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from serving_gym.envs.workload.traces import DATA_VARIABLE
from serving_gym.runners import reproduce
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reproduction.claims import INPUT, RESULT
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.llm_mesh import ablation, capacity, examples, footprint, mixes
from serving_gym.runners.reproduction.llm_mesh.study import MESH, SLLM, Cell, Study, cells_of, num_steps
from serving_gym.runners.reproduction.llm_mesh.timeline import Timeline

KEYS = [
    "paper", "claim", "section", "paper_value", "ours", "ours_low", "ours_high", "unit", "kind", "ratio", "holds",
    "verdict", "note", "sensitivity", "cut",
]  # fmt: skip


def test_worked_numbers_and_the_roofline():
    claims = {claim.claim: claim for claim in examples.claims()}
    assert all(claim.holds is not False for claim in claims.values())
    assert claims["headroom after an iteration"].ours == pytest.approx(2.1)
    on_cpu = [claim for claim in claims.values() if claim.section.startswith("3.1")]
    assert len(on_cpu) == 6
    assert claims["22B on CPU: prefill over the TTFT SLO, worst of 128 to 4096 tokens"].ours > 1.0
    assert {claim.kind for claim in on_cpu} == {INPUT, RESULT}
    assert all("roofline" in claim.note for claim in on_cpu)


@pytest.fixture
def study(monkeypatch, tmp_path):
    """Without the trace, forty requests an episode, of which one a seed is run."""
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    config = ReproduceConfig(out="unused", paper="llm_mesh", quick=True, requests=40)
    with progress_bar(10, "test", "step") as bar:
        yield Study(config, bar)


def test_a_cell_is_run_once_and_its_figures_fit_together(study):
    cell = Cell(SLLM, 32, ("3B",))
    (outcome,) = study.outcomes(cell)
    assert study.outcomes(cell)[0] is outcome
    assert study.bar.n == 1
    assert outcome.arrived == 40
    assert 0 < outcome.good <= outcome.last_in_time <= outcome.arrived
    assert outcome.nodes["cpu"] == 0.0
    assert 0 < outcome.nodes["gpu"] <= 4.0
    assert outcome.tokens_per_s["gpu"] > 0
    assert np.isnan(outcome.tokens_per_s["cpu"])
    assert study.attainment(cell) == outcome.good / 40
    assert study.source == "functions_fitted"
    assert "fit to the trace" in study.note


def test_choices_reach_the_nodes_and_the_policy(monkeypatch, tmp_path):
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    words = {
        "load": 1.0,
        "iterations": 1.1,
        "cpu_resize": "figure_8",
        "patience_s": 10.0,
        "reading": "literal",
    }
    config = ReproduceConfig(out="unused", paper="llm_mesh", quick=True, requests=20, choices=words)
    study = Study(config, None)
    env = study._env(Cell(MESH, 32, ("3B",)))
    nodes = env.config.cluster.nodes
    assert [node.time_factor for node in nodes] == [1.1, 1.1]
    assert {node.kv_resize for node in nodes} == {"figure_8"}
    assert env.config.workload.rate_scale == 1.0
    assert env.config.manager.patience_s == 10.0
    assert study._policy(MESH).config.reclaim == "none"
    assert study._policy("llm_mesh_no_watermark").config.watermark == 0.0
    assert Study(ReproduceConfig(out="unused", paper="llm_mesh"), None)._policy(MESH).config.reclaim != "none"


def test_what_nodes_hold_is_weighed_by_how_long():
    line = Timeline(
        np.array([0.0, 1.0]), np.array([1.0, 3.0]), np.array([[2.0, 0, 4], [1, 1, 0]]), np.array([0.0, 0, 1])
    )
    assert line.mean(line.nodes(0)) == pytest.approx((1 * 1 + 2 * 3) / 4)
    assert line.instances_a_node(0) == pytest.approx((2 * 1 + 2 * 3) / (1 + 2 * 3))
    assert line.instances_a_node(1) == pytest.approx(4.0)


def test_the_footprint_is_weights_and_what_was_generated(study):
    (outcome,) = study.outcomes(Cell(SLLM, 1, ("7B",), popularity=0.01, gpus_only=True))
    gb = footprint.footprint_gb(outcome, "llama-2-7b")
    assert outcome.largest_share == 1.0
    assert gb.min() >= 13.4
    assert gb.max() > gb.min()


def test_steps_are_counted_once_for_cells_that_sections_share():
    config = ReproduceConfig(out="unused", paper="llm_mesh", seeds=2)
    cells = [cell for part in (capacity, ablation, mixes) for cell in part.cells(config)]
    assert Cell(MESH, 64, ("7B",)) in capacity.cells(config)
    assert Cell(MESH, 64, ("7B",)) in ablation.cells(config)
    assert num_steps(config, cells) == 2 * (27 + 9 + 10 + 10)
    assert cells_of([MESH], [(32, "3B")]) == [Cell(MESH, 32, ("3B",))]


@pytest.mark.full
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert reproduce.main(["paper=llm_mesh", "quick=true", "requests=30", f"out={tmp_path}"]) == 0
    rows = json.loads((tmp_path / "claims.json").read_text())
    assert all(list(row) == KEYS for row in rows)
    assert len({row["claim"] for row in rows}) == len(rows)
    gains = [row for row in rows if row["claim"].startswith("SLO-compliant requests (")]
    assert [row["paper_value"] for row in gains] == 2 * [0.91, 1.59, 0.44, 0.63]
    assert "Results: " in capsys.readouterr().out
