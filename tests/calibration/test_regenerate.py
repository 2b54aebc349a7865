import numpy as np
import pandas as pd
import pytest
import yaml

from serving_gym.calibration.engines import parse_engine
from serving_gym.calibration.profile import parse_profile
from serving_gym.runners.profile_fitting import regenerate
from serving_gym.runners.profile_fitting.held_out import configuration_folds, deployment_folds
from serving_gym.runners.profile_fitting.hierarchy import (
    Fit,
    fit_hierarchy,
    keys_of,
    log_errors,
    priors_of,
    to_engine,
    to_values,
)
from serving_gym.runners.validation.forms import read_measurements


@pytest.fixture
def runs(closed_rows):
    """Runs of one model at two widths and two loads, made up."""
    row = closed_rows.iloc[0].to_dict()
    made = [
        {**row, "tensor_parallel": tp, "concurrency": clients, "tpot_ms": tpot, "ttft_ms": 60.0}
        for tp, clients, tpot in [(4, 2, 12.0), (4, 8, 13.0), (8, 2, 9.0), (8, 8, 10.0)]
    ]
    return read_measurements(pd.DataFrame(made)).runs


def test_levels_go_from_the_engine_to_the_deployment(runs):
    deployment = runs[0].deployment
    assert keys_of(deployment) == (
        "vllm-0.12|dense",
        "vllm-0.12|qwen3-32b",
        "vllm-0.12|qwen3-32b|H100",
        "qwen3-32b|H100|tp4|vllm-0.12",
    )


def test_overheads_and_parameters_are_the_same_thing():
    values = {prior.name: prior.mean for prior in priors_of("vllm-0.15", "llama-3.1-8b")}
    engine = to_engine(values, "vllm-0.15")
    assert engine.pipeline_iterations == 1.0
    assert {name: to_values(engine)[name] for name in values} == values


def test_mixtures_of_experts_may_differ_more_in_the_time_of_a_layer():
    width = {
        m: {p.name: p.width for p in priors_of("vllm-0.17", m)} for m in ("llama-3.1-8b", "gpt-oss-120b")
    }
    assert width["gpt-oss-120b"].pop("layer_s") > width["llama-3.1-8b"].pop("layer_s")
    assert width["gpt-oss-120b"] == width["llama-3.1-8b"]


def test_a_fit_comes_closer_than_its_prior_and_lends_to_relations(runs):
    start = to_engine({prior.name: prior.mean for prior in priors_of("vllm-0.12", "qwen3-32b")}, "vllm-0.12")
    fit = fit_hierarchy(runs)
    before = np.mean([np.abs(log_errors(run, start)["tpot"]) for run in runs])
    after = np.mean([np.abs(log_errors(run, fit.of(run.deployment))["tpot"]) for run in runs])
    assert after < before
    without = Fit({key: value for key, value in fit.overheads.items() if "|tp4|" not in key})
    assert without.of(runs[0].deployment) == fit.overheads["vllm-0.12|qwen3-32b|H100"]
    with pytest.raises(ValueError, match=r"no run of engine 'vllm-0.12' was fitted"):
        Fit({}).of(runs[0].deployment)


def test_folds_hold_out_configurations_or_whole_deployments(runs):
    for shown, hidden in configuration_folds(runs, 2):
        assert {run.deployment for run in shown} == {run.deployment for run in hidden}
        assert not {(r.deployment, r.configuration) for r in shown} & {
            (r.deployment, r.configuration) for r in hidden
        }
    for shown, hidden in deployment_folds(runs, 2):
        assert hidden
        assert not {run.deployment for run in shown} & {run.deployment for run in hidden}


def test_engines_and_their_profiles_are_written(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(regenerate, "serving_runs", lambda report: runs)
    (tmp_path / "profiles").mkdir()
    said = []
    request = regenerate.Request(tmp_path, held_out=True, folds=2, report=said.append)
    written = regenerate.PARTS["engines"](request)
    assert [path.name for path in written] == ["engines.yaml", "qwen3-32b_h100_vllm-0.12.yaml"]
    overheads = yaml.safe_load(written[0].read_text())["overheads"]
    assert parse_engine(overheads["vllm-0.12|dense"]).fixed_s >= 0.0
    profile = parse_profile(written[1].read_text())
    assert profile.widths == (4, 8)
    assert (
        profile.held_out["seen"]["here"]["tpot"]["n"] == profile.held_out["unseen"]["here"]["tpot"]["n"] == 4
    )
    assert profile.provenance["end_to_end"][0]["rows"] == 4
    assert any("held out" in line for line in said)


def test_constants_are_reported_beside_their_fits(tmp_path, monkeypatch):
    monkeypatch.setattr(regenerate, "fit_power_shares", lambda: {2: (0.9, 0.5)})
    monkeypatch.setattr(regenerate, "fit_storage_bandwidth", lambda: {"safetensors": 3e9})
    said = []
    request = regenerate.Request(tmp_path, held_out=False, folds=2, report=said.append)
    assert regenerate.PARTS["constants"](request) == []
    assert said == [
        "power at TP 2, share of the limit: prefill 0.900 (constant 0.82), decode 0.500 (constant 0.73)",
        "loading safetensors: 3.00 GB/s (constant 3.31 GB/s)",
    ]
