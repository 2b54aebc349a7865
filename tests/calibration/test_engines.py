from dataclasses import replace

import pytest

from serving_gym.calibration.coefficients import RATIO_TOKENS, roofline_coefficients
from serving_gym.calibration.engines import (
    SCALE_TOKENS,
    Engine,
    dump_engine,
    engine_of_version,
    family_of,
    get_engine,
    load_engines,
    parse_engine,
)
from serving_gym.calibration.specs import get_gpu

KERNELS = roofline_coefficients(get_gpu("H100"))


@pytest.mark.parametrize(
    ("version", "measured_at", "engine"),
    [
        ("0.6.0", "", "vllm-0.6"),
        ("0.11.2", "2025-12-08", "vllm-0.11"),
        ("0.12.0", "", "vllm-0.12"),
        ("0.19.0", "2026-04-21", "vllm-0.17"),
        ("v0.23.1", "", "vllm-0.17"),
        ("0.24.0", "", "vllm-0.24"),
        ("nightly-5b8c30d62b754b57", "2026-03-25", "vllm-0.17"),
        ("", "2025-10-29", "vllm-0.11"),
        ("", "", "vllm-0.17"),
    ],
)
def test_a_version_belongs_to_the_last_engine_at_or_below_it(version, measured_at, engine):
    assert engine_of_version(version, measured_at) == engine


def test_overheads_add_to_kernels_and_scale_matrices():
    engine = Engine(fixed_s=1e-3, all_reduce_s=2e-6, prefill_s=3e-3, matrix_scale=(1.2,) * len(SCALE_TOKENS))
    applied = engine.applied(KERNELS, 4)
    assert applied.fixed_s == pytest.approx(KERNELS.fixed_s + 1e-3)
    assert applied.all_reduce_s == pytest.approx(KERNELS.all_reduce_s + 4e-6)
    assert applied.prefill_s == 3e-3
    assert applied.matrix_ratios == pytest.approx((1.2,) * len(RATIO_TOKENS))
    again = engine.applied(replace(KERNELS, matrix_ratios=(0.5,) * len(RATIO_TOKENS)), 4)
    assert again.matrix_ratios == pytest.approx((0.6,) * len(RATIO_TOKENS))


def test_overlapped_launches_never_make_a_layer_negative():
    assert Engine(layer_s=-1.0).applied(KERNELS, 1).layer_s == 0.0


def test_overheads_survive_yaml():
    engine = Engine(fixed_s=1.25e-3, pipeline_iterations=1.0)
    assert parse_engine(dump_engine(engine)) == engine


def test_committed_engines_know_their_models_and_fall_back_to_their_family():
    engines = load_engines()
    assert get_engine("vllm-0.12", "qwen3-32b") == engines["vllm-0.12|qwen3-32b"]
    assert get_engine("vllm-0.12", "mistral-7b") == engines["vllm-0.12|dense"]
    assert family_of("vllm-0.12", "mixtral-8x7b") == "vllm-0.12|moe"
    with pytest.raises(ValueError, match="unknown engine 'vllm-9'"):
        get_engine("vllm-9")


def test_asynchronous_scheduling_makes_arrivals_wait_an_iteration_more():
    assert get_engine("vllm-0.15", "llama-3.1-8b").frontend.pipeline_iterations == 1.0
    assert get_engine("vllm-0.11", "llama-3.1-70b-fp8").frontend.pipeline_iterations == 0.0
