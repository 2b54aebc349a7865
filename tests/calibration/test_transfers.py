import os
from importlib import resources

import pandas as pd
import pytest
import yaml

from serving_gym.calibration.deployments import Deployment, find_profile
from serving_gym.calibration.describe import ERRORS_FILE, describe, expected_errors, transfer_errors
from serving_gym.calibration.fitting.data import data_path
from serving_gym.runners.profile_fitting import regenerate, transfers
from serving_gym.runners.profile_fitting.engine_profiles import SOURCES
from serving_gym.runners.profile_fitting.transfers import (
    RELATIONS,
    anchors_of,
    base_of,
    carried_from,
    errors,
    leave_out,
    thinned,
)
from serving_gym.runners.validation.forms import read_measurements, read_table

needs_data = pytest.mark.skipif("SERVING_GYM_DATA" not in os.environ, reason="reads the reference data")


@pytest.fixture
def runs(closed_rows):
    """Runs of one model at two widths and two loads, made up."""
    row = closed_rows.iloc[0].to_dict()
    made = [
        {**row, "tensor_parallel": tp, "concurrency": clients, "tpot_ms": tpot, "ttft_ms": 60.0}
        for tp, clients, tpot in [(4, 2, 12.0), (4, 8, 13.0), (8, 2, 9.0), (8, 8, 10.0)]
    ]
    return read_measurements(pd.DataFrame(made)).runs


def test_a_width_is_predicted_by_the_others_and_what_has_no_others_is_not(runs):
    said = []
    scores = leave_out("width", runs, said.append)
    assert {(score.deployment.tp, score.target) for score in scores} == {
        (tp, target) for tp in (4, 8) for target in ("tpot", "ttft")
    }
    assert all(score.error < 1.0 for score in scores)
    assert leave_out("gpu", runs, said.append) == leave_out("model", runs, said.append) == []
    assert said[:2] == ["vllm-0.12 without width 4: 4 figures", "vllm-0.12 without width 8: 4 figures"]


def test_nothing_left_out_is_seen_by_the_fit(runs, monkeypatch):
    fitted = []

    def watched(members, parent, level):
        fitted.append({run.deployment.tp for run in members})
        return real(members, parent, level)

    real = transfers.fit_level
    monkeypatch.setattr(transfers, "fit_level", watched)
    leave_out("width", runs, lambda _: None)
    assert fitted == [{8}] * 3 + [{4}] * 3  # family, model, model on its GPU


def test_precisions_of_a_model_are_left_out_together():
    assert base_of("llama-3.1-70b-fp8-kv8") == base_of("llama-3.1-70b") == "llama-3.1-70b"
    assert base_of("qwen3-235b-a22b") == "qwen3-235b-a22b"


def test_a_fit_takes_some_runs_of_each_deployment(runs):
    assert len(thinned(runs)) == 4
    assert len(thinned(runs[:1] * 9)) == 3


def test_the_committed_errors_are_in_the_sentence_of_a_transferred_profile():
    stated = transfer_errors()
    assert set(stated) == {*RELATIONS, "version"}
    profile, _ = find_profile(Deployment("llama-3.1-70b", "H100", 4, "vllm-0.24"))
    figures = stated["version"]["dense"]
    assert expected_errors(profile) == {name: figures[name]["ape_median"] for name in ("tpot", "ttft", "e2e")}
    assert describe(profile, 4).endswith(
        f"expected error TPOT {100 * figures['tpot']['ape_median']:.0f} %, "
        f"TTFT {100 * figures['ttft']['ape_median']:.0f} %, E2E {100 * figures['e2e']['ape_median']:.0f} %)"
    )
    for kinds in stated.values():
        for targets in kinds.values():
            assert all(0.0 < t["ape_median"] <= t["ape_p90"] and t["n"] > 0 for t in targets.values())


def test_the_part_writes_its_file(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(regenerate, "serving_runs", lambda report: runs)
    monkeypatch.setattr(transfers, "VERSIONS", {"vllm-0.12": "vllm-0.15"})
    request = regenerate.Request(tmp_path, held_out=False, folds=2, report=lambda _: None)
    (path,) = regenerate.PARTS["transfers"](request)
    content = yaml.safe_load(path.read_text())
    assert content["left_out"]["width"]["dense"]["tpot"]["n"] == 4
    assert content["left_out"]["gpu"] == {}
    assert content["by_engine"]["vllm-0.12"]["width"] == content["left_out"]["width"]


@needs_data
def test_one_version_left_out_but_for_one_model_has_the_committed_error():
    runs = read_measurements(read_table(data_path(SOURCES["open_loop"]["file"]))).runs
    assert "llama-3.1-8b" in anchors_of(runs)
    found = errors(carried_from("llama-3.1-8b", runs))
    text = (resources.files("serving_gym.calibration") / ERRORS_FILE).read_text(encoding="utf-8")
    committed = yaml.safe_load(text)["by_engine"]["vllm-0.15"]["version_by_model"]["llama-3.1-8b"]
    for target, figures in committed["dense"].items():
        assert found["dense"][target]["n"] == figures["n"]
        assert found["dense"][target]["ape_median"] == pytest.approx(figures["ape_median"], rel=0.02)
