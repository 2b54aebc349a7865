import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_gym.calibration.deployments import Deployment, find_profile
from serving_gym.calibration.latency import attention_pairs, smooth_max
from serving_gym.calibration.profile import load_profile

PRESETS = [
    (model, gpu, width)
    for model, gpu in [
        ("gpt-oss-120b", "H200"),
        ("nemotron-8b-ultralong", "H200"),
        ("llama-3-70b", "H200"),
        ("llama-3.1-8b", "H100"),
    ]
    for width in load_profile(model, gpu).widths
]
MODELS = {preset: load_profile(*preset[:2]).latency_model(preset[2]) for preset in PRESETS}
LLAMA = load_profile("llama-3-70b", "H200")
CHUNKS = st.lists(st.tuples(st.integers(0, 100_000), st.integers(1, 2000)), max_size=4)


def iteration_ps(tables, num_decode, context, chunks):
    """Time of one iteration as the kernel computes it, picoseconds."""
    if not chunks:
        return tables.decode_ps[num_decode] + tables.kv_ps * context
    num_tokens = num_decode + sum(length for _, length in chunks)
    attention = tables.attn_fs * attention_pairs(chunks) // 1000
    return tables.mixed_ps[num_tokens] + tables.sequence_ps * num_decode + tables.kv_ps * context + attention


def test_attention_pairs_by_hand():
    assert attention_pairs([(0, 3)]) == 6  # 1 + 2 + 3
    assert attention_pairs([(10, 2)]) == 23  # 11 + 12
    assert attention_pairs([(0, 3), (10, 2)]) == 29


def test_splitting_a_prompt_into_chunks_keeps_its_pairs():
    assert attention_pairs([(0, 100)]) == attention_pairs([(0, 60), (60, 40)])


def test_smooth_max_lies_between_maximum_and_sum():
    assert smooth_max(3.0, 4.0, 1.0) == pytest.approx(7.0)
    assert smooth_max(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert smooth_max(3.0, 4.0, 100.0) == pytest.approx(4.0)
    assert smooth_max(0.0, 4.0, 2.0) == 4.0


@pytest.mark.parametrize("preset", PRESETS)
def test_tables_equal_the_formula(preset):
    model = MODELS[preset]
    tables = model.tables(64, 300)
    assert tables.decode_ps.dtype == tables.mixed_ps.dtype == np.int64
    assert tables.decode_ps.shape == (65,)
    assert tables.mixed_ps.shape == (301,)
    iterations = [(1, 1000, []), (64, 640_000, []), (10, 5000, [(0, 100)]), (0, 0, [(4096, 300)])]
    for num_decode, context, chunks in iterations:
        exact = model.iteration_s(num_decode, context, chunks) * 1e12
        # Rounding: half a picosecond a table entry and a context token, half a femtosecond a pair.
        slack = 2.0 + 0.5 * context + 0.0005 * attention_pairs(chunks)
        assert iteration_ps(tables, num_decode, context, chunks) == pytest.approx(exact, abs=slack)


@pytest.mark.parametrize("preset", PRESETS)
def test_more_tokens_never_take_less_time(preset):
    tables = MODELS[preset].tables(256, 2048)
    assert (np.diff(tables.decode_ps) >= 0).all()
    assert (np.diff(tables.mixed_ps) >= 0).all()
    assert tables.decode_ps[0] > 0
    assert tables.kv_ps > 0
    assert tables.attn_fs > 0


@settings(max_examples=50)
@given(st.sampled_from(PRESETS), st.integers(0, 255), st.integers(0, 10**6), CHUNKS, st.integers(1, 500))
def test_iteration_is_monotone(preset, num_decode, context, chunks, more):
    model = MODELS[preset]
    time = model.iteration_s(num_decode, context, chunks)
    assert model.iteration_s(num_decode + 1, context, chunks) >= time
    assert model.iteration_s(num_decode, context + more, chunks) > time
    if chunks:
        assert model.iteration_s(num_decode, context, [*chunks, (0, more)]) > time


@pytest.mark.parametrize(("model", "gpu"), sorted({preset[:2] for preset in PRESETS}))
def test_wider_engine_is_faster_for_one_request(model, gpu):
    profile = load_profile(model, gpu)
    decode = [profile.latency_model(width).iteration_s(1, 1000) for width in profile.widths]
    prefill = [profile.latency_model(width).iteration_s(0, 0, [(0, 2048)]) for width in profile.widths]
    assert decode == sorted(decode, reverse=True)
    assert prefill == sorted(prefill, reverse=True)


@pytest.mark.parametrize(("model", "gpu"), sorted({preset[:2] for preset in PRESETS}))
def test_narrow_engines_together_have_more_prefill_throughput(model, gpu):
    profile = load_profile(model, gpu)
    prompts = [(0, 1024)] * 8
    per_gpu = [1.0 / (w * profile.latency_model(w).iteration_s(0, 0, prompts)) for w in profile.widths]
    assert per_gpu == sorted(per_gpu, reverse=True)


@pytest.mark.parametrize(("model", "gpu"), sorted({preset[:2] for preset in PRESETS}))
def test_narrow_engines_together_have_more_decode_throughput_at_the_largest_batch(model, gpu):
    profile = load_profile(model, gpu)
    widths = profile.widths
    degree, batch = widths[-1] // widths[0], 256
    narrow = profile.latency_model(widths[0]).iteration_s(batch, batch * 1000)
    wide = profile.latency_model(widths[-1]).iteration_s(degree * batch, degree * batch * 1000)
    assert narrow < wide


def test_shift_runs_the_faster_mode():
    tp, shift = LLAMA.latency_model(8), LLAMA.latency_model(8, "shift", base_width=2)
    assert shift.iteration_s(1, 1000) == tp.iteration_s(1, 1000)
    assert shift.iteration_s(0, 0, [(0, 4096)]) < tp.iteration_s(0, 0, [(0, 4096)])
    assert (np.diff(shift.tables(64, 2048).mixed_ps) >= 0).all()


def test_shift_switches_at_its_threshold():
    tp = LLAMA.latency_model(8)
    shift = LLAMA.latency_model(8, "shift", base_width=2, shift_threshold_tokens=128)
    assert shift.tokens_s(128) == tp.tokens_s(128)
    assert shift.tokens_s(129) == shift.sequence_parallel_s(129) != tp.tokens_s(129)


def test_wrong_execution_is_refused():
    with pytest.raises(ValueError, match="execution='pp' is not allowed"):
        LLAMA.latency_model(8, "pp")
    with pytest.raises(ValueError, match="base engine whose width divides"):
        LLAMA.latency_model(2, "shift", base_width=4)


def test_model_survives_pickling():
    model = MODELS[PRESETS[0]]
    assert pickle.loads(pickle.dumps(model)) == model


MINIMAX = Deployment("minimax-m2.5-fp8", "H200", 4, "vllm-0.17", expert_parallel=True, attention_ranks=4)


def test_ranks_of_attention_share_sequences_and_each_read_all_dense_weights():
    profile, _ = find_profile(MINIMAX)
    ranks = profile.latency_model(4)
    whole = replace(ranks, attention_ranks=1)
    assert ranks.rank_sequence_s == whole.rank_sequence_s / 4
    assert ranks.pair_s == pytest.approx(4 * whole.pair_s)  # one rank has the whole prompt
    assert ranks.kv_s == whole.kv_s  # all GPUs read a part of the contexts either way
    dense_s = ranks.model.dense_read_bytes / (ranks.gpu.bandwidth * ranks.coefficients.dense_bandwidth_ratio)
    smooth = [
        replace(model, coefficients=replace(model.coefficients, matrix_ratios=())) for model in (ranks, whole)
    ]
    apart, together = (model.matrices_s(1.0) for model in smooth)  # one token: reading is all that counts
    assert apart - together == pytest.approx(0.75 * dense_s, rel=0.01)
    assert ranks.decode_s(5.0) > ranks.decode_s(4.0)  # the second sequence of a rank


def test_a_prompt_is_on_one_rank_until_its_budget_is_full():
    profile, _ = find_profile(MINIMAX)
    model = profile.latency_model(4)
    tables = model.tables(64, 4000)
    alone = model.mixed_s(1000.0)
    assert tables.mixed_ps[1000] == round(alone * 1e12)
    spread = model.overhead_s + model.coefficients.prefill_s + model.ranks_s(4000.0, 1000.0)
    assert tables.mixed_ps[4000] == pytest.approx(
        (spread + 1000 * model.coefficients.token_s) * 1e12, rel=1e-9
    )


def test_ranks_must_divide_the_gpus_and_do_not_shift():
    profile, _ = find_profile(MINIMAX)
    model = profile.latency_model(4)
    with pytest.raises(
        ValueError, match="attention_ranks=3 is not allowed; it must divide the engine's 4 GPUs"
    ):
        replace(model, attention_ranks=3)
    with pytest.raises(ValueError, match="execution='shift' is not allowed with attention_ranks above 1"):
        replace(model, execution="shift", base=replace(model, tp=1, attention_ranks=1))
