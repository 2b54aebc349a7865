import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_gym.calibration.memory import block_capacity_tokens, check_fits, kv_capacity_tokens, num_blocks
from serving_gym.calibration.specs import get_gpu, get_model

MODEL, GPU = get_model("llama-3-70b"), get_gpu("H200")


@pytest.mark.parametrize(("width", "tokens"), [(2, 264e3), (4, 959e3), (8, 2.3e6)])
def test_static_engines_hold_what_flying_serving_table_2_says(width, tokens):
    assert kv_capacity_tokens(MODEL, GPU, width) == pytest.approx(tokens, rel=0.02)


def test_merged_engine_holds_what_flying_serving_table_2_says():
    merged = kv_capacity_tokens(MODEL, GPU, 8, weights="whole", base_width=4)
    assert merged == pytest.approx(1.9e6, rel=0.01)
    assert merged == pytest.approx(2 * kv_capacity_tokens(MODEL, GPU, 4), abs=1)


def test_one_width_is_the_same_sharded_or_whole():
    assert kv_capacity_tokens(MODEL, GPU, 4, weights="whole") == kv_capacity_tokens(MODEL, GPU, 4)


def test_blocks_are_per_base_engine_and_grow_in_tokens_when_merged():
    blocks = num_blocks(MODEL, GPU, 2, block_size=16)
    assert blocks == kv_capacity_tokens(MODEL, GPU, 2) // 16 - 1  # vLLM's null block
    assert block_capacity_tokens(16, merge_degree=4) == 64


def test_model_that_does_not_fit_is_refused_with_the_arithmetic():
    message = r"llama-3-70b does not fit 1 x H200: its weights need 140.0 GB, available are 112.8 GB"
    with pytest.raises(ValueError, match=message):
        kv_capacity_tokens(MODEL, GPU, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 8, "weights": "halved"}, "choose one of sharded, whole"),
        ({"width": 8, "weights": "whole", "base_width": 3}, "base_width=3 does not divide width=8"),
        ({"width": 0}, "base_width=0 does not divide|width=0 is not allowed"),
    ],
)
def test_wrong_layouts_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        kv_capacity_tokens(MODEL, GPU, **arguments)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="width=0 is not allowed"):
        check_fits(MODEL, GPU, 0)
    with pytest.raises(ValueError, match="block_size=0 is not allowed"):
        num_blocks(MODEL, GPU, 4, block_size=0)


@given(st.sampled_from([2, 4, 8]), st.floats(0.7, 0.95))
def test_capacity_never_needs_more_memory_than_there_is(width, utilization):
    tokens = kv_capacity_tokens(MODEL, GPU, width, utilization)
    used = MODEL.weight_bytes + tokens * MODEL.kv_bytes_per_token
    budget = width * GPU.memory_bytes * utilization
    assert used <= budget < used + 2 * MODEL.kv_bytes_per_token
