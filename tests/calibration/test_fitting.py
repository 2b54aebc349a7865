import os

import numpy as np
import pytest

from serving_gym.calibration.coefficients import roofline_coefficients
from serving_gym.calibration.fitting.attention import relative_nnls
from serving_gym.calibration.fitting.data import Run, closed_loop_runs, data_path, open_loop_runs
from serving_gym.calibration.fitting.dense_layers import (
    LayerTimes,
    bounds_s,
    dense_layer_profile,
    fit_layers,
    layers_s,
)
from serving_gym.calibration.fitting.endtoend import fit_overheads, kernels_of, summary
from serving_gym.calibration.fitting.matrices import TOKENS, fit_roofline
from serving_gym.calibration.fitting.steady_state import predict_s
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.profile import dump_profile, load_profile

needs_data = pytest.mark.skipif(not os.environ.get("SERVING_GYM_DATA"), reason="SERVING_GYM_DATA is not set")


def run(**changes):
    values = {
        "model": "llama-3.1-8b",
        "gpu": "H100",
        "tp": 1,
        "input_tokens": 1000.0,
        "cached_tokens": 0.0,
        "output_tokens": 500.0,
        "concurrency": 16.0,
        "rate_rps": 0.0,
        "max_num_batched_tokens": 8192,
        "tpot_ms": 1.0,
        "ttft_ms": 1.0,
        "engine": "any",
        "source": "none",
    }
    return Run(**{**values, **changes})


def test_roofline_fit_recovers_what_made_the_times():
    memory, arithmetic = np.full_like(TOKENS, 4e-3), TOKENS * 2e-5
    times = 2e-4 + ((memory / 0.7) ** 3 + (arithmetic / 0.6) ** 3) ** (1 / 3)
    parameters, error = fit_roofline(times, memory, arithmetic, (1e-4, 0.5, 0.5, 2.0), 1.0)
    assert parameters == pytest.approx([2e-4, 0.7, 0.6, 3.0], rel=0.02)
    assert error < 1e-3


def test_relative_least_squares_recovers_non_negative_terms():
    columns = np.array([[1.0, 1.0], [1.0, 10.0], [1.0, 100.0]])
    assert relative_nnls(columns, columns @ np.array([3.0, 0.5])) == pytest.approx([3.0, 0.5])


def test_one_client_sees_no_one_elses_prefill_beyond_its_own_share():
    model = load_profile("llama-3.1-8b", "H100").latency_model(1)
    tpot, ttft = predict_s(model, run(concurrency=1.0, input_tokens=10.0))
    assert tpot == pytest.approx(model.iteration_s(1, 260), rel=0.02)
    assert ttft > model.iteration_s(0, 0, [(0, 10)])


def test_closed_loop_slows_down_with_clients_and_prompt_length():
    model = load_profile("llama-3.1-8b", "H100").latency_model(1)
    few, many = predict_s(model, run())[0], predict_s(model, run(concurrency=64.0))[0]
    long = predict_s(model, run(input_tokens=8000.0))[0]
    assert few < many
    assert few < long


def test_open_loop_agrees_with_the_closed_loop_at_the_same_load():
    model = load_profile("llama-3.1-8b", "H100").latency_model(1)
    tpot, ttft = predict_s(model, run())
    rate = 16.0 / (ttft + 499.0 * tpot)
    assert predict_s(model, run(concurrency=0.0, rate_rps=rate))[0] == pytest.approx(tpot, rel=1e-3)


def test_summary_of_errors():
    assert summary([0.1, 0.2, 0.3]) == {"n": 3, "ape_median": 0.2, "ape_mean": 0.2, "ape_p90": 0.28}


def test_missing_data_is_named(monkeypatch):
    monkeypatch.delenv("SERVING_GYM_DATA", raising=False)
    with pytest.raises(ValueError, match="SERVING_GYM_DATA is not set"):
        data_path("profiles/aic_gemm.parquet")
    monkeypatch.setenv("SERVING_GYM_DATA", "/nowhere")
    with pytest.raises(ValueError, match=r"holds no profiles/aic_gemm\.parquet"):
        data_path("profiles/aic_gemm.parquet")


@needs_data
def test_runs_are_read_and_queueing_ones_dropped():
    runs = closed_loop_runs()
    assert {r.gpu for r in runs} >= {"H100", "H200"}
    assert max(r.ttft_ms for r in runs) < 5000
    assert all(r.rate_rps > 0 and r.concurrency == 0 for r in open_loop_runs())


@needs_data
def test_committed_profile_is_what_the_data_give():
    committed = load_profile("gpt-oss-120b", "H200")
    refitted = kernels_of("gpt-oss-120b", "H200", 4).coefficients
    assert committed.coefficients[4].dense_flops_ratio == pytest.approx(refitted.dense_flops_ratio, rel=1e-3)
    runs = [r for r in closed_loop_runs() if r.model == "gpt-oss-120b" and r.gpu in ("H100", "H200")]
    overheads = fit_overheads(runs)[committed.provenance["engine"]]
    assert overheads.fixed_s == pytest.approx(committed.provenance["overheads"]["fixed_s"], rel=0.02)


def test_layers_that_follow_the_form_are_recovered():
    """Matrices at 80 % of the bandwidth and 70 % of the arithmetic, and 2 us of other work per token."""
    tokens = np.array([1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096])
    read_s, arithmetic_s = bounds_s(tokens)
    matrices = ((read_s / 0.8) ** 3 + (arithmetic_s / 0.7) ** 3) ** (1 / 3)
    elementwise = np.where(tokens <= 64, 1e-3, 1e-3 + 2e-6 * tokens)
    relative = roofline_coefficients(get_gpu("A40"))
    fitted = fit_layers(LayerTimes(tokens, matrices, elementwise, 0), relative)
    assert fitted.dense_bandwidth_ratio == pytest.approx(0.8, rel=0.02)
    assert fitted.dense_flops_ratio == pytest.approx(0.7, rel=0.02)
    assert fitted.layer_s == pytest.approx(1e-3 / 32, rel=0.1)
    assert fitted.token_s - relative.token_s == pytest.approx(2e-6, rel=0.01)
    wanted = matrices + elementwise + tokens * relative.token_s
    assert layers_s(fitted, tokens)[7:] == pytest.approx(wanted[7:], rel=0.01)
    assert fitted.kv_bandwidth_ratio == relative.kv_bandwidth_ratio


@needs_data
def test_the_committed_profile_of_the_a40_is_what_the_tables_say():
    assert dump_profile(dense_layer_profile()) == dump_profile(load_profile("llama-2-7b", "A40"))
