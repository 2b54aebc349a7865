import pandas as pd
import pytest


@pytest.fixture
def closed_rows():
    """Two rows at fixed concurrency, one of an unknown model."""
    row = {
        "backend": "vllm", "backend_version": "0.12.0", "model": "Qwen/Qwen3-32B", "system": "h100_sxm",
        "precision": None, "gemm_quant_mode": None, "mode": "agg", "isl": 256, "osl": 32, "concurrency": 4.0,
        "batch_size": 4, "tensor_parallel": 4, "pipeline_parallel": 1, "attention_dp_size": None, "moe_tp_size": 1,
        "moe_ep_size": 1, "ttft_ms": 50.0, "tpot_ms": 10.0, "measured_at": None, "source": "h100/vllm/0.12.0/x.csv",
    }  # fmt: skip
    return pd.DataFrame([row, {**row, "model": "nobody/Nothing-1T"}])


@pytest.fixture
def open_rows():
    """One run of two short stages."""
    row = {
        "run": "a", "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100", "tensor_parallel": 1,
        "precision": "FP16", "max_num_batched_tokens": 2048, "max_num_seqs": 128, "gpu_memory_utilization": None,
        "profile": "general", "stage": 1, "rate_rps": 4.0, "duration_s": 20, "system_prompt_tokens": 100,
        "question_tokens": 440, "output_tokens": 40, "num_system_prompts": 3, "users_per_prompt": 2,
        "ttft_ms_mean": 25.0, "tpot_ms_mean": 7.5, "e2e_ms_mean": 320.0, "ttft_ms_p99": 45.0,
    }  # fmt: skip
    return pd.DataFrame([row, {**row, "stage": 0, "rate_rps": 2.0}])


@pytest.fixture
def replica_rows():
    """One load on two layouts."""
    row = {
        "model": "Meta-Llama-3.1-70B", "precision": "bf16", "gpu": "H100-SXM-80GB", "workload": "lmsys",
        "rate_rps": 0.25, "layout": "DP1xTP8", "tensor_parallel": 8, "data_parallel": 1, "replica": 0,
        "requests": 20.0, "prompt_tokens_mean": 74.0, "output_tokens_mean": None, "ttft_ms_mean": 36.6,
        "tpot_ms_mean": 13.8, "e2e_ms_mean": 1077.0, "e2e_consistent": True,
    }  # fmt: skip
    four = {"layout": "DP2xTP4", "tensor_parallel": 4, "data_parallel": 2, "tpot_ms_mean": 20.1}
    return pd.DataFrame([row, {**row, **four}])


@pytest.fixture
def step_rows():
    """Two repeats of one configuration."""
    row = {
        "model": "llama2-70b", "hardware": "h100-80gb", "tensor_parallel": 4, "prompt_size": 512, "batch_size": 2,
        "token_size": 128, "prompt_time_ms": 103.6, "token_time_ms": 30.0,
    }  # fmt: skip
    return pd.DataFrame([row, {**row, "prompt_time_ms": 104.0}])
