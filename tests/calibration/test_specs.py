import pytest

from serving_gym.calibration.specs import MODELS, get_gpu, get_model


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("gpt-oss-120b", 65.2), ("llama-3-70b", 140.0), ("llama-3.1-8b", 16.06), ("llama-2-7b", 13.48)],
)
def test_weight_bytes(name, gigabytes):
    assert get_model(name).weight_bytes / 1e9 == pytest.approx(gigabytes, rel=2e-3)


def test_kv_bytes_per_token():
    assert get_model("llama-3-70b").kv_bytes_per_token == 320 * 1024
    assert get_model("llama-3.1-8b").kv_bytes_per_token == 128 * 1024
    assert get_model("llama-2-7b").kv_bytes_per_token == 512 * 1024
    gpt_oss = get_model("gpt-oss-120b")
    assert gpt_oss.kv_bytes_per_token == 18 * 2 * 8 * 64 * 2


def test_expert_coverage_grows_from_one_token_to_all_experts():
    model = get_model("gpt-oss-120b")
    assert model.expert_coverage(0) == 0.0
    assert model.expert_coverage(1) == pytest.approx(4 / 128)
    assert model.expert_coverage(10_000) == pytest.approx(1.0)
    read = model.dense_read_bytes + model.expert_read_bytes(8192)
    assert read < model.weight_bytes  # the input embedding is not read


def test_dense_model_reads_the_same_weights_whatever_the_batch():
    model = get_model("llama-3.1-8b")
    assert model.expert_read_bytes(1) == model.expert_read_bytes(256) == model.expert_flops_per_token == 0
    assert model.dense_flops_per_token == pytest.approx(2 * 6.98e9, rel=1e-2)


def test_gpt_oss_counts_published_active_parameters():
    model = get_model("gpt-oss-120b")
    flops = model.dense_flops_per_token + model.expert_flops_per_token
    active = flops / 2 + model.head_params  # 5.1 B with the output head counted once
    assert active == pytest.approx(5.1e9, rel=0.03)


def test_unknown_names_say_what_was_meant():
    with pytest.raises(ValueError, match="did you mean 'llama-3-70b'"):
        get_model("llama3-70b")
    with pytest.raises(ValueError, match=r"did you mean 'H200'.*allowed: .*B200"):
        get_gpu("h200")


def test_specs_are_hashable_and_named_consistently():
    assert all(name == spec.name for name, spec in MODELS.items())
    assert len({hash(spec) for spec in MODELS.values()}) == len(MODELS)
    assert hash(get_gpu("H100")) == hash(get_gpu("H100"))
    assert get_gpu("A100-80GB").peak_flops("fp8") == get_gpu("A100-80GB").peak_flops("bf16")
