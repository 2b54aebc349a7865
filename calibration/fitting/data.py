"""The measured tables that profiles are fitted to.

All files lie under the folder that the environment variable `SERVING_GYM_DATA` names. None is needed at run time.
"""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

AIC_SYSTEM = {
    "A100-80GB": "a100_sxm",
    "H100": "h100_sxm",
    "H200": "h200_sxm",
    "L40S": "l40s",
    "B200": "b200_sxm",
}
# Where no kernel of a GPU was measured, the nearest relation of it stands in.
KERNEL_SYSTEM = {**AIC_SYSTEM, "B300": "b200_sxm", "H100-pcap": "h100_sxm"}
AIC_MODEL = {
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b-fp8",
}
BLIS_MODEL = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "codellama/CodeLlama-34b-Instruct-hf": "codellama-34b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
}
# Batched-token limit of runs that do not record it: vLLM's default for an API server on these GPUs.
DEFAULT_BATCHED_TOKENS = 8192
# The open-loop runs send the same few prompts over and over with prefix caching on, so that all but the tail of the
# last 16-token block is cached; their TTFT, three decode steps whatever the prompt, agrees.
CACHED_TAIL_TOKENS = 8.0
# A closed loop whose first token takes this long is queueing for admission: its running batch is unknown.
MAX_TTFT_MS = 5000.0


@dataclass(frozen=True)
class Run:
    """One measured steady state of one deployment.

    Args:
        model: Name of the model.
        gpu: Name of the GPU.
        tp: GPUs of the engine.
        input_tokens: Mean prompt that had to be computed, tokens.
        cached_tokens: Mean prompt found in the prefix cache, tokens.
        output_tokens: Mean output, tokens.
        concurrency: Clients of a closed loop; 0 for an open loop.
        rate_rps: Arrivals of an open loop, 1/s; 0 for a closed loop.
        max_num_batched_tokens: Most tokens in an iteration.
        tpot_ms: Measured time per output token, ms.
        ttft_ms: Measured time to first token, ms.
        engine: Engine version and precision, in words; runs with one engine share host overheads.
        source: File the run comes from.
    """

    model: str
    gpu: str
    tp: int
    input_tokens: float
    cached_tokens: float
    output_tokens: float
    concurrency: float
    rate_rps: float
    max_num_batched_tokens: int
    tpot_ms: float
    ttft_ms: float
    engine: str
    source: str

    @property
    def deployment(self) -> str:
        """What is held out together: model, GPU and width."""
        return f"{self.model}|{self.gpu}|tp{self.tp}"


def data_path(relative: str) -> Path:
    """Path of a reference file.

    Raises:
        ValueError: `SERVING_GYM_DATA` is not set or lacks the file.
    """
    root = os.environ.get("SERVING_GYM_DATA")
    if not root:
        raise ValueError("SERVING_GYM_DATA is not set; it must name the folder that holds the reference data")
    path = Path(root) / relative
    if not path.exists():
        raise ValueError(f"SERVING_GYM_DATA={root!r} holds no {relative}")
    return path


@cache
def table(name: str) -> pd.DataFrame:
    """A kernel table of `profiles/`, with plain string columns."""
    frame = pd.read_parquet(data_path(f"profiles/{name}.parquet"))
    categories = frame.select_dtypes("category").columns
    return frame.astype(dict.fromkeys(categories, object))


def closed_loop_runs() -> list[Run]:
    """Aggregated vLLM serving at fixed concurrency (aiconfigurator), models this project knows, without queueing.

    The 12 rows of Llama-3.1-8B fp8 on H200 are left out: they leave prefill less time than the kernels measured on that
    GPU need, as if prompts had been cached.
    """
    frame = pd.read_csv(data_path("silicon/aic_e2e_vllm_agg.csv.gz"))
    gpus = {system: gpu for gpu, system in AIC_SYSTEM.items()}
    plain = (frame.moe_ep_size.fillna(1) == 1) & (frame.attention_dp_size.fillna(1) == 1)
    keep = plain & frame.model.isin(AIC_MODEL) & frame.system.isin(gpus) & (frame.ttft_ms < MAX_TTFT_MS)
    weights = frame.gemm_quant_mode.isin(["fp8"]) | frame.model.str.contains("gpt-oss")
    return [
        Run(
            model=AIC_MODEL[row["model"]],
            gpu=gpus[row["system"]],
            tp=int(row["tensor_parallel"]),
            input_tokens=float(row["isl"]),
            cached_tokens=0.0,
            output_tokens=float(row["osl"]),
            concurrency=float(row["concurrency"]),
            rate_rps=0.0,
            max_num_batched_tokens=DEFAULT_BATCHED_TOKENS,
            tpot_ms=float(row["tpot_ms"]),
            ttft_ms=float(row["ttft_ms"]),
            engine="vLLM 0.18, MXFP4" if "gpt-oss" in row["model"] else "vLLM of October 2025, fp8",
            source="silicon/aic_e2e_vllm_agg.csv.gz",
        )
        for row in frame[keep & weights].to_dict("records")
    ]


def open_loop_runs() -> list[Run]:
    """Runs of vLLM 0.15.1 under constant-rate load (inference-sim), 16-bit Llama models, prompts cached."""
    frame = pd.read_csv(data_path("silicon/blis_vllm_stage_latency.csv"))
    keep = frame.model.isin(BLIS_MODEL) & frame.gpu.isin(AIC_SYSTEM) & frame.tpot_ms_mean.notna()
    return [
        Run(
            model=BLIS_MODEL[row["model"]],
            gpu=row["gpu"],
            tp=int(row["tensor_parallel"]),
            input_tokens=CACHED_TAIL_TOKENS,
            cached_tokens=float(row["system_prompt_tokens"] + row["question_tokens"]),
            output_tokens=float(row["output_tokens"]),
            concurrency=0.0,
            rate_rps=float(row["rate_rps"]),
            max_num_batched_tokens=int(row["max_num_batched_tokens"]),
            tpot_ms=float(row["tpot_ms_mean"]),
            ttft_ms=float(row["ttft_ms_mean"]),
            engine="vLLM 0.15.1, 16 bit",
            source="silicon/blis_vllm_stage_latency.csv",
        )
        for row in frame[keep].to_dict("records")
    ]
