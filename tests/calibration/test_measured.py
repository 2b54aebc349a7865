from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from serving_gym.calibration.deployments import Deployment, find_profile
from serving_gym.calibration.engines import Frontend
from serving_gym.calibration.measured.names import gpu_name, model_name
from serving_gym.runners.validation.closed_loop import Layout, layout_of
from serving_gym.runners.validation.forms import form_of, read_measurements, read_table
from serving_gym.runners.validation.open_loop import prompt_blocks
from serving_gym.runners.validation.predict import (
    cluster_of,
    kv_tokens,
    load,
    predict,
    simulate,
    with_frontend,
)
from serving_gym.runners.validation.score import (
    Score,
    listed,
    orderings,
    overall,
    report,
    score_all,
    summary,
)


@pytest.mark.parametrize(
    ("rows", "form"),
    [
        ("closed_rows", "closed_loop"),
        ("open_rows", "open_loop"),
        ("replica_rows", "replicas"),
        ("step_rows", "steps"),
    ],
)
def test_forms_are_told_apart_by_their_columns(rows, form, request):
    frame = request.getfixturevalue(rows)
    assert form_of(frame) == form
    found = read_measurements(frame)
    assert sum(len(run.stages) for run in found.runs) + len(found.steps) + found.unsupported.total() == len(
        frame
    )


def test_engines_before_v1_are_simulated_with_their_scheduler(replica_rows, open_rows):
    assert [cluster_of(run).scheduler for run in read_measurements(replica_rows).runs] == ["v0", "v0"]
    assert {cluster_of(run).scheduler for run in read_measurements(open_rows).runs} == {"v1"}


def test_a_table_in_no_form_says_what_the_nearest_lacks(step_rows, tmp_path):
    with pytest.raises(
        ValueError, match=r"nearest is profiles/splitwise_perf_model, which also has hardware"
    ):
        form_of(step_rows.drop(columns="hardware"))
    with pytest.raises(ValueError, match="is not a file"):
        read_table(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    ("published", "precision", "name"),
    [
        ("meta-llama/Llama-2-70b-hf", "FP16", "llama-2-70b"),
        ("codellama/CodeLlama-34b-Instruct-hf", "", "codellama-34b"),
        ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", "FP8", "llama-4-scout-fp8"),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "FP16", "mixtral-8x22b"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "FP16", "mistral-nemo"),
        ("Mistral-Large-Instruct-2407", "fp8", "mistral-large-fp8"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8", "llama-3.1-8b-fp8"),
        ("Qwen/Qwen3-235B-A22B-FP8", "fp8", "qwen3-235b-a22b-fp8"),
        ("openai/gpt-oss-120b", "nvfp4", "gpt-oss-120b"),
        ("moonshotai/Kimi-K2.5", "int4_wo", "kimi-k2.5-int4"),
        ("MiniMaxAI/MiniMax-M2.5", "nvfp4", "minimax-m2.5-fp4"),
        ("llama2-70b", "", "llama-2-70b"),
        ("01-ai/Yi-34B", "FP16", "yi-34b"),
    ],
)
def test_published_names(published, precision, name):
    assert model_name(published, precision) == name


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="did you mean 'qwen3-32b'"):
        model_name("Qwen/Qwen3-31B")
    assert gpu_name("h100-80gb-pcap") == "H100-pcap"
    assert gpu_name("H100-SXM-80GB") == "H100"
    with pytest.raises(ValueError, match="GPU 'gb200' is unknown"):
        gpu_name("gb200")


@pytest.mark.parametrize(
    ("columns", "layout"),
    [
        ({"tensor_parallel": 4}, Layout(4, 1, False)),
        ({"tensor_parallel": 4, "moe_tp_size": 1, "moe_ep_size": 4}, Layout(4, 1, True)),
        (
            {"tensor_parallel": 4, "attention_dp_size": 4, "moe_tp_size": 1, "moe_ep_size": 16},
            Layout(4, 4, True),
        ),
        ({"tensor_parallel": 2, "moe_tp_size": 4, "moe_ep_size": 1}, Layout(4, 2, False, clients_ratio=2)),
    ],
)
def test_both_ways_to_count_ranks_of_attention_are_read(columns, layout):
    assert layout_of(columns) == layout


def test_a_layout_that_is_none_is_refused(closed_rows):
    row = {**closed_rows.iloc[0].to_dict(), "tensor_parallel": 2, "attention_dp_size": 4, "moe_tp_size": 2}
    found = read_measurements(pd.DataFrame([row]))
    assert list(found.unsupported) == [
        "attention over 2 GPUs in 4 ranks with experts over 2 GPUs is no layout of one engine"
    ]


def test_ranks_of_attention_have_their_own_sequences_and_one_pool_of_kv(closed_rows):
    row = {
        **closed_rows.iloc[0].to_dict(), "model": "Qwen/Qwen3-235B-A22B-FP8", "system": "h200_sxm", "precision": "fp8",
        "gemm_quant_mode": "fp8", "tensor_parallel": 1, "moe_tp_size": 2, "moe_ep_size": 1, "concurrency": 8,
        "isl": 1000, "osl": 100,
    }  # fmt: skip
    (run,) = read_measurements(pd.DataFrame([row])).runs
    assert run.clients == 16
    assert run.deployment.attention_ranks == 2
    spec = cluster_of(run)
    assert (spec.num_gpus, spec.max_num_seqs) == (2, 2 * run.max_num_seqs)
    alone = replace(run, deployment=replace(run.deployment, attention_ranks=1))
    assert 16 * (spec.kv_blocks_override + 1) <= kv_tokens(run) < kv_tokens(alone)  # dense weights twice
    profile, frontend = find_profile(run.deployment)
    both, _ = find_profile(alone.deployment)
    slower, faster = predict(run, profile, frontend)[0], predict(alone, both, frontend)[0]
    assert slower["ttft"] > faster["ttft"]  # one GPU computes a prompt, not two


def test_load_is_demand_over_what_the_engine_takes(closed_rows, open_rows):
    closed, opened = read_measurements(closed_rows).runs[0], read_measurements(open_rows).runs[0]
    profile, _ = find_profile(closed.deployment)
    assert load(closed, closed.stages[0], profile) == closed.clients / closed.max_num_seqs
    scarce = replace(closed, max_num_seqs=closed.clients)
    assert load(scarce, closed.stages[0], profile) == 1.0
    profile, _ = find_profile(opened.deployment)
    stage = opened.stages[0]
    faster = replace(stage, rate_rps=2.0 * stage.rate_rps)
    assert load(opened, faster, profile) == pytest.approx(2.0 * load(opened, stage, profile))
    assert load(replace(opened, prefill_tokens=2000.0), stage, profile) > load(opened, stage, profile) > 0.0


def test_errors_are_also_told_by_load():
    deployment = Deployment("qwen3-32b", "H100", 4, "vllm-0.12")
    scores = [
        Score("tpot", deployment, "fitted", 1.0, 1.0 + error, row, demand)
        for row, (error, demand) in enumerate([(0.1, 0.3), (0.2, 0.7), (0.3, 0.949), (0.4, 0.95), (0.5, 7.0)])
    ]
    parts = overall(scores)["tpot"]["parts"]
    assert {name: part["n"] for name, part in parts.items()} == {
        "seen": 5, "below_70": 1, "70_to_95": 2, "saturated": 2,
    }  # fmt: skip
    assert [row["saturated"] for row in listed(scores)] == [False, False, False, True, True]


def test_a_closed_loop_keeps_its_clients_busy(closed_rows):
    run = read_measurements(closed_rows).runs[0]
    workload = run.workload()
    assert workload.num_clients == 4
    assert len(workload) == 40
    assert set(workload.input_tokens) == {256}  # the authors' own runs: constant lengths
    assert run.deployment.name == "qwen3-32b|H100|tp4|vllm-0.12"


def test_the_nightly_benchmark_spreads_its_lengths(closed_rows):
    run = read_measurements(closed_rows.assign(source="2026-04-06.csv")).runs[0]
    lengths = run.workload().input_tokens
    assert 204 <= lengths.min() < lengths.max() <= 256


def test_stages_are_in_order_and_prompts_are_shared_by_group(open_rows):
    run = read_measurements(open_rows).runs[0]
    assert [stage.row for stage in run.stages] == [1, 0]
    assert [(stage.first, stage.last) for stage in run.stages] == [(0, 40), (40, 120)]
    blocks = prompt_blocks(open_rows.to_dict("records")[0])
    assert blocks.shape == (6, 35)
    assert (blocks[0, :6] == blocks[3, :6]).all()  # the second user of the first group
    assert len(np.unique(blocks)) == 3 * 6 + 6 * 29


def test_a_repeated_prompt_is_answered_sooner(open_rows):
    run = read_measurements(open_rows).runs[0]
    profile, frontend = find_profile(run.deployment)
    records = with_frontend(simulate(run, profile), frontend)
    ttft = records.first_token_s - records.arrival_s
    assert ttft[:6].mean() > ttft[6:40].mean()
    figures = predict(run, profile, frontend)[0]
    assert 0.01 < figures["ttft"] < figures["ttft_p99"] < figures["e2e"] < 1.0
    short, stages = run.shorter()
    assert len(short()) == len(run.workload())  # twenty seconds are below the least that a stage is cut to
    assert (stages[0].first, stages[0].cold, stages[1].cold) == (0, 12, 0)


def test_the_front_end_adds_to_first_token_and_end_alike(open_rows):
    run = read_measurements(open_rows).runs[0]
    plain = simulate(run, find_profile(run.deployment)[0])
    later = with_frontend(plain, Frontend(fixed_s=0.01, token_s=1e-6, pipeline_iterations=1.0))
    steps = (plain.finish_s - plain.first_token_s) / (plain.output_tokens - 1)
    assert later.first_token_s - plain.first_token_s == pytest.approx(0.01 + 568e-6 + steps)
    assert later.finish_s - later.first_token_s == pytest.approx(plain.finish_s - plain.first_token_s)


def test_layouts_keep_their_order(replica_rows):
    found = read_measurements(replica_rows)
    scores, unsupported = score_all(found, find_profile)
    assert not unsupported
    assert orderings(scores) == {"Meta-Llama-3.1-70B bf16 lmsys 0.25/s": True}
    wrong = [
        Score(**{**vars(s), "predicted": 1.0 / s.predicted}) if s.target == "tpot" else s for s in scores
    ]
    assert list(orderings(wrong).values()) == [False]


def test_a_report_counts_what_it_could_not_predict(closed_rows):
    scores, unsupported = score_all(read_measurements(closed_rows), find_profile)
    result = report("x.csv", "committed", scores, unsupported)
    assert result["rows_unsupported"] == 1
    assert next(iter(result["unsupported"])).startswith("model 'nobody/Nothing-1T' is unknown")
    assert result["overall"]["tpot"]["n"] == result["overall"]["ttft"]["n"] == 1
    group = result["groups"][0]
    assert (group["model"], group["gpu"], group["tp"], group["split"]) == ("qwen3-32b", "H100", 4, "seen")


def test_summaries_are_fractions(step_rows):
    scores, _ = score_all(read_measurements(step_rows), find_profile)
    prefill = summary([score for score in scores if score.target == "prefill_step"])
    assert prefill["n"] == 2
    assert 0.0 <= prefill["ape_median"] <= prefill["ape_p90"] < 0.1
    assert "rank_correlation" not in prefill  # one prediction has no rank
