"""The roofline of a CPU that serves, against what LLM-Mesh (section 3.1) says of one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serving_gym.calibration.cpu import CPU_COEFFICIENTS, REACHED_FLOPS, cpu_latency_model
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.latency import LatencyModel
from serving_gym.calibration.models import get_model

CODESTRAL_22B = replace(
    get_model("llama-2-70b"),
    name="codestral-22b",
    num_layers=56,
    hidden=6144,
    num_heads=48,
    num_kv_heads=8,
    intermediate=16384,
    vocab=32768,
)


def tpot_s(model: str, batch: int, length: int) -> float:
    return cpu_latency_model(model).iteration_s(batch, batch * length)


def ttft_s(model: LatencyModel, length: int) -> float:
    return model.iteration_s(0, 0, [(0, length)])


def test_a_batch_of_16_takes_69_percent_longer_a_token():
    ratio = tpot_s("llama-2-7b", 16, 1024) / tpot_s("llama-2-7b", 1, 1024)
    assert ratio == pytest.approx(1.69, abs=0.02)


def test_2k_tokens_take_twice_as_long_as_512_and_too_long():
    short, long = tpot_s("llama-2-13b", 32, 512), tpot_s("llama-2-13b", 32, 2048)
    assert long / short == pytest.approx(2.0, rel=0.05)
    assert short < 0.25 < long


@pytest.mark.parametrize("length", [128, 256, 512, 1024, 2048, 4096])
def test_7b_and_13b_keep_the_promise_and_22b_does_not_as_prompts_grow(length):
    promise = max(2.0, length / 512)
    for model in ("llama-2-7b", "llama-2-13b"):
        assert ttft_s(cpu_latency_model(model), length) < promise
    large = LatencyModel(CODESTRAL_22B, get_gpu("Xeon-32c-AMX"), 1, CPU_COEFFICIENTS)
    assert (ttft_s(large, length) > promise) == (length >= 1024)


def test_what_is_reached_lies_where_the_text_allows():
    flops = CPU_COEFFICIENTS.dense_flops_ratio * get_gpu("Xeon-32c-AMX").flops["bf16"]
    assert REACHED_FLOPS[0] < flops < REACHED_FLOPS[1]


def test_the_tailored_concurrencies_are_what_4096_tokens_allow():
    """Section 8.1: 15 and 6 on CPU for 7B and 13B."""
    for model, concurrency in (("llama-2-7b", 15), ("llama-2-13b", 6)):
        assert tpot_s(model, concurrency, 4096) <= 0.25
        assert tpot_s(model, concurrency + 1, 4096) > 0.25
    assert tpot_s("llama-3.2-3b", 81, 4096) <= 0.25 < tpot_s("llama-3.2-3b", 82, 4096)


def test_a_gpu_is_no_cpu():
    with pytest.raises(ValueError, match=r"unknown cpu 'H100' \(allowed: Xeon-32c-AMX\)"):
        cpu_latency_model("llama-2-7b", "H100")
