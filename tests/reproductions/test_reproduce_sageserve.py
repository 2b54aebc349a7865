"""Section 7.2.6 of SageServe beside ours."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from serving_gym.envs.workload.tiers import IW_F, IW_N, NIW
from serving_gym.runners import reproduce
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.sageserve import tiers
from serving_gym.runners.reproduction.sageserve.choices import SageServeChoices
from serving_gym.runners.reproduction.sageserve.study import (
    DPA,
    EDF,
    FCFS,
    LLAMA_2,
    MODELS,
    PF,
    Outcome,
    Study,
)

SLA_S = SageServeChoices().iw_n_sla_s
KEYS = [
    "paper", "claim", "section", "paper_value", "ours", "ours_low", "ours_high", "unit", "kind", "ratio", "holds",
    "verdict", "note", "sensitivity", "cut",
]  # fmt: skip


@pytest.fixture(scope="module")
def study():
    """A hundred thousand requests: ten minutes of Llama-2-70B."""
    config = ReproduceConfig(out="unused", paper="sageserve", quick=True, requests=400_000)
    with progress_bar(100, "test", "episode") as bar:
        yield Study(config, bar)


def test_outcome_by_tier():
    """IW-F: one of four above 1 s, quartile between 0.8 and 1.5; IW-N never got a token."""
    outcome = Outcome(np.array([0.2, 0.4, 9.0, 0.8, 1.5, np.inf]), np.array([0, 0, 2, 0, 0, 1], np.int32))
    assert outcome.violations(IW_F, 1.0) == 0.25
    assert outcome.upper_quartile_s(IW_F) == pytest.approx(0.8 + 0.25 * 0.7)
    assert outcome.violations(IW_N, 5.6) == 1.0
    assert outcome.of(NIW).tolist() == [9.0]


def test_ratios_of_nothing():
    assert tiers.ratio(0.75, 0.5) == 1.5
    assert tiers.ratio(0.3, 0.0) == math.inf
    assert math.isnan(tiers.ratio(0.0, 0.0))


def test_iw_n_sla_is_where_the_text_puts_it():
    """A quarter of IW-N violates it under FCFS, whose upper quartile is therefore the SLA."""
    assert tiers.TEXT[FCFS].iw_n == 0.25
    assert tiers.TEXT[FCFS].iw_n_s == SLA_S


@pytest.mark.full
def test_the_load_makes_fcfs_violate_as_often_as_in_the_paper(study):
    row = tiers.measure(study.run(LLAMA_2, FCFS), SLA_S)
    assert row.iw_f == pytest.approx(tiers.TEXT[FCFS].iw_f, abs=0.03)
    assert row.iw_f_s == pytest.approx(row.iw_n_s, rel=0.1)  # FCFS does not tell tiers apart


@pytest.mark.full
def test_every_other_scheduler_favours_the_stricter_tier_and_pf_does_it_most(study):
    rows = {name: tiers.measure(study.run(LLAMA_2, name), SLA_S) for name in (FCFS, EDF, PF, DPA)}
    iw_f, iw_n = ({name: getattr(row, key) for name, row in rows.items()} for key in ("iw_f", "iw_n"))
    assert iw_f[FCFS] > iw_f[EDF] > iw_f[DPA] > iw_f[PF]
    assert iw_n[PF] == max(iw_n.values()) > iw_n[FCFS] == min(iw_n.values())


@pytest.mark.full
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert reproduce.main(["paper=sageserve", "quick=true", "requests=2000", f"out={tmp_path}"]) == 0
    rows = json.loads((tmp_path / "claims.json").read_text())
    assert all(list(row) == KEYS for row in rows)
    assert len({row["claim"] for row in rows}) == len(rows)
    assert {"5", "7.2.1", "7.2.3", "7.2.6"} < {row["section"] for row in rows}
    for model in MODELS:
        assert sum(row["claim"].startswith(f"{model.name}:") for row in rows) == 16
    tiered = [row for row in rows if row["section"] == "7.2.6"]
    assert all(row["holds"] is None for row in tiered if row["unit"] != "x")
    assert "Results: " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.reproduction
def test_the_shape_of_figure_15(tmp_path: Path):
    """What the section says in words: each scheduler has its side."""
    assert reproduce.main(["paper=sageserve", f"out={tmp_path}"]) == 0
    rows = {row["claim"]: row for row in json.loads((tmp_path / "claims.json").read_text())}
    for model in MODELS:
        for name in (
            "Q3 TTFT under FCFS, IW-F over IW-N",
            "violations under FCFS, IW-F over IW-N",
            "difference between the tiers' violations, FCFS over EDF",
            "IW-F violations, FCFS over EDF",
            "IW-F violations, EDF over DPA",
            "IW-F violations, DPA over PF",
            "IW-N violations, EDF over FCFS",
            "IW-N violations, PF over DPA",
        ):
            assert rows[f"{model.name}: {name}"]["holds"], rows[f"{model.name}: {name}"]
