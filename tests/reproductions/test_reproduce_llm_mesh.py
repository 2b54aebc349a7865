"""LLM-Mesh's numbers beside ours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from serving_gym.envs.workload.traces import DATA_VARIABLE
from serving_gym.runners import reproduce
from serving_gym.runners.configuration.schema import ReproduceConfig
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reproduction.llm_mesh import ablation, capacity, examples, mixes
from serving_gym.runners.reproduction.llm_mesh.study import MESH, SLLM, Cell, Study, cells_of, num_steps

KEYS = [
    "paper", "claim", "section", "paper_value", "ours", "ours_low", "ours_high", "unit", "kind", "ratio", "holds",
    "verdict", "note", "sensitivity",
]  # fmt: skip


def test_worked_numbers_and_the_roofline():
    claims = {claim.claim: claim for claim in examples.claims()}
    assert all(claim.holds is not False for claim in claims.values())
    assert claims["headroom after an iteration"].ours == pytest.approx(2.1)
    on_cpu = [claim for claim in claims.values() if claim.section.startswith("3.1")]
    assert len(on_cpu) == 5
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
