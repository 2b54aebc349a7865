import warnings

import pytest

from serving_gym.calibration.deployments import (
    ENGINE,
    FITTED,
    NEAR_WIDTHS,
    OTHER_WIDTHS,
    ROOFLINE,
    Deployment,
    find_profile,
)
from serving_gym.calibration.kernels import dump_kernels, find_kernels, load_kernels


@pytest.mark.parametrize(
    ("deployment", "source"),
    [
        (Deployment("qwen3-32b", "H100", 4, "vllm-0.12"), FITTED),
        (Deployment("mistral-nemo", "H100", 4, "vllm-0.15"), OTHER_WIDTHS),
        (Deployment("qwen3-32b", "H200", 4, "vllm-0.12"), ENGINE),
        (Deployment("mixtral-8x7b", "H200", 4, "vllm-0.15", True), ENGINE),
        (Deployment("opt-66b", "H100", 3, "vllm-0.15"), NEAR_WIDTHS),
    ],
)
def test_the_most_particular_thing_known_is_used_and_named(deployment, source):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profile, frontend = find_profile(deployment)
    assert profile.source == source
    assert frontend.fixed_s >= 0.0
    assert 1e-3 < profile.latency_model(deployment.tp).iteration_s(8, 8000) < 0.1


def test_what_no_kernel_covers_is_a_roofline_and_says_so():
    with pytest.warns(UserWarning, match=r"llama-3.1-8b on 1 x Xeon-32c-AMX.*source='roofline'"):
        profile, _ = find_profile(Deployment("llama-3.1-8b", "Xeon-32c-AMX", 1, "vllm-0.15"))
    assert profile.source == ROOFLINE
    assert profile.latency_model(1).iteration_s(1, 1000) > 16e9 / 307.2e9  # the weights alone


def test_unknown_names_and_models_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="does not fit 1 x H100"):
        find_profile(Deployment("llama-3.1-70b", "H100", 1, "vllm-0.15"))
    with pytest.raises(ValueError, match="unknown engine"):
        find_profile(Deployment("llama-3.1-8b", "H100", 1, "tgi"))


def test_kernel_coefficients_survive_their_file(tmp_path, monkeypatch):
    rows = load_kernels("H100")
    some = {key: rows[key] for key in list(rows)[:3]}
    text = dump_kernels(some)
    assert text.count("\n") == 4
    assert all(key[0] in text for key in some)


def test_an_eight_bit_cache_and_a_relative_use_the_kernels_at_hand():
    assert find_kernels("llama-3.1-70b-fp8-kv8", "B200", 4) == find_kernels("llama-3.1-70b-fp8", "B200", 4)
    assert find_kernels("minimax-m2.5-fp8", "B300", 4) == find_kernels("minimax-m2.5-fp8", "B200", 4)
    assert find_kernels("llama-3.1-8b", "A40", 1) is None


def test_a_width_between_two_measured_ones_lies_between_them_in_time():
    """Three GPUs are faster than two and slower than four, in prefill and in decode."""
    times = []
    for tp in (2, 3, 4):
        model = find_profile(Deployment("opt-66b", "H100", tp, "vllm-0.15"))[0].latency_model(tp)
        times.append((model.iteration_s(16, 8000), model.iteration_s(0, 0, [(0, 2000)])))
    assert times[0][0] > times[1][0] > times[2][0]
    assert times[0][1] > times[1][1] > times[2][1]


def test_a_stage_of_one_gpu_may_hold_a_share_of_a_model_that_one_gpu_does_not():
    with pytest.raises(ValueError, match="does not fit 1 x H100"):
        find_profile(Deployment("opt-66b", "H100", 1, "vllm-0.15"))
    profile, _ = find_profile(Deployment("opt-66b", "H100", 1, "vllm-0.15", pp=2))
    two_wide = find_profile(Deployment("opt-66b", "H100", 2, "vllm-0.15"))[0].coefficients_at(2)
    assert profile.source == NEAR_WIDTHS
    assert profile.coefficients_at(1).kv_bandwidth_ratio == two_wide.kv_bandwidth_ratio


def test_beyond_the_two_wide_kernels_there_is_only_a_roofline():
    with pytest.warns(UserWarning, match="source='roofline'"):
        assert find_profile(Deployment("opt-66b", "H100", 9, "vllm-0.15"))[0].source == ROOFLINE
