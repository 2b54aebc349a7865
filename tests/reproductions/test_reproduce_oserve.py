"""OServe's numbers beside ours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from serving_gym.baselines.oserve.forecast import MovingAverage
from serving_gym.envs.workload.traces import DATA_VARIABLE
from serving_gym.runners import reproduce
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.oserve import episodes, examples, forecasting, searching, switching
from serving_gym.runners.reproduction.oserve.choices import OServeChoices
from serving_gym.runners.reproduction.oserve.study import pools, study_of

KEYS = [
    "paper", "claim", "section", "paper_value", "ours", "ours_low", "ours_high", "unit", "kind", "ratio", "holds",
    "verdict", "note", "sensitivity", "cut",
]  # fmt: skip


def by_name(claims):
    return {claim.claim: claim for claim in claims}


def test_every_worked_example_comes_out():
    claims = by_name(examples.claims())
    assert all(claim.holds for claim in claims.values())
    assert claims["case 1: completion time"].ours == 20.0
    assert claims["case 2: completion time"].ours == pytest.approx(50 / 3)
    assert claims["case 3: completion time"].ours == pytest.approx(41 / 3)
    assert claims["case 3: completion time of the exact assignment"].ours == pytest.approx(150 / 11)


@pytest.mark.full
def test_searches():
    config = ReproduceConfig(out="unused", paper="oserve", quick=True)
    with progress_bar(10, "test", "step") as bar:
        claims = by_name(searching.claims(config, bar))
    assert bar.n == searching.num_steps(config)
    gap = claims["heuristic short of exhaustive at 16 GPUs, worst"]
    assert 0 <= gap.ours <= 0.06
    assert claims["search at 16 GPUs"].ours > 0
    for reading in ("flow_units", "flow_requests"):
        served, slower = (
            claims[f"maximum flow ({reading}): {what} over the exact assignment's, mean"].ours
            for what in ("requests served", "completion time")
        )
        assert 0.3 < served < 1.0 < slower


def test_switches():
    with progress_bar(1, "test", "step") as bar:
        claims = by_name(switching.claims(ReproduceConfig(out="unused", paper="oserve"), bar))
    assert 0 < claims["bytes of an ad hoc switch"].ours < 1
    assert claims["reload"].ours > 4 * claims["ad hoc switch"].ours


def test_an_error_is_that_of_the_last_tenth():
    """A series that is 10 until its last tenth and 20 there; the mean of the two points before."""
    series = np.concatenate([np.full(90, 10.0), np.full(10, 20.0)])[:, None]
    expected = np.sqrt((10.0**2 + 5.0**2) / 10) / 20.0
    np.testing.assert_allclose(forecasting.error_of(MovingAverage(2), series), [expected])


def test_without_the_real_series_a_fitted_one_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    series, what = forecasting.find_series(0)
    assert series.shape[1] == 4
    assert 800 < len(series) < 1200
    assert "fitted" in what
    lines = ["service,t_min,requests_per_min"] + [
        f"{name},{i},{i + 100 * k}" for k, name in enumerate(("code", "conv")) for i in range(5)
    ]
    import gzip

    (tmp_path / forecasting.FILE).write_bytes(gzip.compress("\n".join(lines).encode()))
    series, what = forecasting.find_series(0)
    assert series.tolist() == [[i, i + 100] for i in range(5)]
    assert "digitised" in what


def test_clients_of_servegen_are_of_four_types(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Two clients, the second with longer prompts and answers; an empty window has what the one before had."""
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert forecasting.servegen_series(["m"]) == []
    rates = pd.DataFrame(
        {"model": "m", "client_id": [0, 1, 0, 1], "t_s": [0, 0, 1200, 1200], "rate_rps": [1.0, 2.0, 3.0, 4.0]}
    )
    lengths = pd.DataFrame(
        {
            "model": "m",
            "client_id": [0, 0, 1, 1],
            "field": ["input_tokens", "output_tokens"] * 2,
            "mean": [10.0, 20.0, 100.0, 200.0],
        }
    )
    rates.to_parquet(tmp_path / forecasting.SERVEGEN_RATES)
    lengths.to_parquet(tmp_path / forecasting.SERVEGEN_LENGTHS)
    ((series, what),) = forecasting.servegen_series(["m"])
    assert series.tolist() == [[0, 1200, 600, 0], [0, 1200, 600, 0], [0, 2400, 1800, 0]]  # LILO and SISO
    assert what.startswith("ServeGen m")


@pytest.mark.full
def test_contenders_serve_the_same_requests_and_are_run_once(monkeypatch: pytest.MonkeyPatch):
    config = ReproduceConfig(out="unused", paper="oserve", quick=True, requests=2000)
    system, trace = episodes.System("llama-30b", 1), episodes.Trace(("S1", "S5"), gradual=True)
    static, llumnix = (episodes.figures(config, system, trace, name) for name in ("static", "llumnix"))
    assert episodes.workload_of(study_of(config), system, trace).num_requests == 500
    assert 0 < llumnix.p99_s < 2 * static.p99_s
    assert static.switches == 0
    assert static.rps == pytest.approx(llumnix.rps, rel=0.1)
    assert static.p90_s <= static.p95_s <= static.p99_s
    assert len(static.span_p99_s) == episodes.NUM_SPANS
    study = study_of(config)
    every = [
        episodes.with_layout(study, system, trace, layout).p99_s
        for layout in episodes.candidates(study, system, trace)
    ]
    assert static.p99_s == min(every)
    monkeypatch.setattr(episodes, "run_episode", None)
    assert episodes.figures(config, system, trace, "static") is static


def test_no_request_exceeds_the_context_unless_asked():
    """OPT's context is 2048 tokens; Azure's prompts reach 13,990."""
    kept, extended = (pools(OServeChoices(context=context), "opt-66b") for context in ("model", "extended"))
    assert max((of.input_tokens + of.output_tokens).max() for of in kept) <= 2048
    assert max(of.input_tokens.max() for of in extended) > 2048
    short = pools(OServeChoices(context="extended", long_answers=1.0), "opt-66b")
    assert extended[0].output_tokens.max() == 4 * short[0].output_tokens.max()


def test_what_was_deployed_is_told_once_each():
    def deploy(*kinds):
        replicas = [{"kind": {"tp": tp, "pp": pp}} for tp, pp in kinds]
        return {"action": {"command": "Deploy", "deployment": {"replicas": replicas}}}

    class Run:
        decisions = (
            deploy((4, 1), (2, 2), (2, 2)),
            {"action": None},
            deploy((2, 2), (4, 1), (2, 2)),
            deploy((8, 1)),
        )

    assert episodes._deployed(Run()) == ("(TP=4), (TP=2, PP=2)x2", "(TP=8)")


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    parts = "only=[examples,searching,forecasting,switching,serving,systems,ablation,appendices]"
    assert reproduce.main(["paper=oserve", "quick=true", parts, "requests=4000", f"out={tmp_path}"]) == 0
    rows = json.loads((tmp_path / "claims.json").read_text())
    assert all(list(row) == KEYS for row in rows)
    assert len({row["claim"] for row in rows}) == len(rows)
    sections = {row["section"] for row in rows}
    assert sections >= {"4.2", "4.2, C3", "C", "5.1", "6.2", "6.3", "6.4", "6.3, Table 1", "6.3, Table 2"}
    assert sections >= {"6.3, Figure 14", "6.3, Figure 15", "H", "I", "J"}
    assert "Results: " in capsys.readouterr().out
