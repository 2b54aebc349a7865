"""Serving at fixed concurrency: the form of aiconfigurator's `silicon_sample.csv` for vLLM, aggregated.

The source does not record the number of requests, the spread of lengths or the statistic. What is assumed is what the
public benchmark scripts behind most rows do: ten requests a client, all clients starting at once, lengths uniform
between 80 and 100 % of the nominal ones where the lengths are those of that benchmark, and means over all requests.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from serving_gym.calibration.deployments import Deployment
from serving_gym.calibration.engines import BENCHMARKED_ENGINES, engine_of_version
from serving_gym.calibration.measured.names import gpu_name, model_name
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.validation.runs import ServingRun, Stage

COLUMNS = ("isl", "osl", "concurrency", "tensor_parallel", "ttft_ms", "tpot_ms", "model", "system")
REQUESTS_PER_CLIENT = 10
BLOCK_TOKENS = 16
# The nightly benchmark serves these with an 8-bit KV cache on Blackwell: 64 requests of 9,216 tokens run there beside
# the weights of a 70B model on one GPU, and 256 beside those of MiniMax-M2.5 on two B300, without the queueing that 16
# bits would make.
KV8_MODELS, KV8_GPUS = ("meta-llama/", "minimaxai/"), ("B200", "B300")
SHORTEST = 0.8  # of the nominal length, in the public nightly benchmark
# Token budgets: vLLM's default for an API server on these GPUs, and what the authors' own runs behave like.
NIGHTLY_BUDGET, OWN_BUDGET = 8192, 2048
# The authors' runs of this checkpoint leave prefill less time than its kernels need on that GPU: most of each prompt
# must have been found in the prefix cache. The share is fitted; the budget is then the default.
CACHED_SHARE = {"llama-3.1-8b-fp8": 0.7}
MS = 1e-3
# vLLM's 0.9 of the device. These GPUs hold 2^30 bytes for each advertised 10^9 (7 % more than the data sheet's number
# that capacities are counted from); activations and captured graphs take about 4 % back.
MEMORY_UTILIZATION = 0.925


def workload(isl: int, osl: int, clients: int, shortest: float, cached: float, seed: int) -> Workload:
    """Requests of a closed loop, the first `cached` share of each prompt alike."""
    count = clients * REQUESTS_PER_CLIENT
    random = np.random.default_rng(seed)
    shared = int(cached * isl) // BLOCK_TOKENS
    return Workload(
        arrival_s=np.zeros(count),
        input_tokens=random.integers(max(1, round(shortest * isl)), isl + 1, count, dtype=np.int32),
        output_tokens=random.integers(max(1, round(shortest * osl)), osl + 1, count, dtype=np.int32),
        hash_offsets=np.arange(count + 1, dtype=np.int64) * shared if shared else None,
        hash_ids=np.tile(np.arange(shared, dtype=np.int32), count) if shared else None,
        hash_block_tokens=BLOCK_TOKENS,
        num_clients=clients,
        name="closed loop",
    )


def number(row: dict[str, Any], name: str, default: float) -> float:
    """A cell, or what stands for a blank one."""
    value = row.get(name)
    return default if value is None or pd.isna(value) else float(value)


def benchmarked(row: dict[str, Any], form: str) -> Deployment:
    """The deployment of a row of a form whose engine is the same in all rows.

    Args:
        row: Of the published table.
        form: Key of `BENCHMARKED_ENGINES`.
    """
    return Deployment(
        model=model_name(text(row, "model"), text(row, "precision")),
        gpu=gpu_name(text(row, "gpu")),
        tp=int(row["tensor_parallel"]),
        engine=BENCHMARKED_ENGINES[form],
    )


def text(row: dict[str, Any], name: str) -> str:
    """A cell as text, empty where blank."""
    value = row.get(name)
    return "" if value is None or pd.isna(value) else str(value)


@dataclass(frozen=True)
class Layout:
    """GPUs of a row, and how they share attention and experts.

    Args:
        gpus: All of them.
        attention_ranks: Ranks of data-parallel attention.
        expert_parallel: Whether experts are spread over the GPUs rather than split.
        clients_ratio: Clients of the engine over the row's `concurrency`.
    """

    gpus: int
    attention_ranks: int
    expert_parallel: bool
    clients_ratio: int = 1


def layout_of(row: dict[str, Any]) -> Layout:
    """The layout of a row.

    With data-parallel attention the source counts in two ways. Rows of the nightly benchmark name the ranks twice, as
    `tensor_parallel` and `attention_dp_size` (4 and 4 are four GPUs of one node, not 16). The authors' own rows name
    the width of one rank and the product of the experts' splits as all GPUs, and `concurrency` is that of one rank.

    Raises:
        ValueError: The widths of attention and experts are of no layout.
    """
    tp, ranks = int(row["tensor_parallel"]), int(number(row, "attention_dp_size", 1))
    moe_tp, moe_ep = int(number(row, "moe_tp_size", 1)), int(number(row, "moe_ep_size", 1))
    experts = moe_tp * moe_ep
    if ranks > 1 and tp == ranks:
        return Layout(tp, ranks, moe_ep > 1)
    if ranks == 1 and experts > tp and experts % tp == 0:
        return Layout(experts, experts // tp, moe_ep > 1, clients_ratio=experts // tp)
    if ranks > 1 or experts > tp:
        raise ValueError(
            f"attention over {tp} GPUs in {ranks} ranks with experts over {experts} GPUs is no layout of one engine"
        )
    return Layout(tp, 1, moe_ep > 1)


def deployment_of(row: dict[str, Any]) -> Deployment:
    """The deployment of a row.

    Raises:
        ValueError: The row is not of one engine that this project can describe.
    """
    if text(row, "backend") not in ("", "vllm") or text(row, "mode") not in ("", "agg"):
        raise ValueError(f"only aggregated vLLM is known, not {text(row, 'backend')} {text(row, 'mode')}")
    if number(row, "pipeline_parallel", 1) != 1:
        raise ValueError("pipeline parallelism is not modelled")
    layout = layout_of(row)
    name = text(row, "model")
    precision = text(row, "gemm_quant_mode") or text(row, "precision")
    model = model_name(name, precision)
    if is_nightly(row) and name.lower().startswith(KV8_MODELS) and gpu_name(text(row, "system")) in KV8_GPUS:
        model = f"{model}-kv8"
    return Deployment(
        model=model,
        gpu=gpu_name(text(row, "system")),
        tp=layout.gpus,
        engine=engine_of_version(text(row, "backend_version"), text(row, "measured_at")),
        expert_parallel=layout.expert_parallel,
        attention_ranks=layout.attention_ranks,
    )


def is_nightly(row: dict[str, Any]) -> bool:
    """Whether a row comes from the public nightly benchmark, whose lengths are spread; else they are constant."""
    source = text(row, "source")
    return not source or "/vllm/" not in source


def run_of(row: dict[str, Any], index: int) -> ServingRun:
    """One row as a run."""
    for name in ("isl", "osl"):
        if not float(row[name]) >= 1:
            raise ValueError(f"{name} must be at least 1")
    clients = int(number(row, "concurrency", number(row, "batch_size", 1))) * layout_of(row).clients_ratio
    if clients < 1:
        raise ValueError("concurrency must be at least 1")
    isl, osl = int(row["isl"]), int(row["osl"])
    deployment, nightly = deployment_of(row), is_nightly(row)
    cached = 0.0 if nightly else CACHED_SHARE.get(deployment.model, 0.0)
    budget = NIGHTLY_BUDGET if nightly or cached else OWN_BUDGET
    shortest = SHORTEST if nightly else 1.0
    mean = (1.0 + shortest) / 2.0
    measured = {"ttft": float(row["ttft_ms"]) * MS, "tpot": float(row["tpot_ms"]) * MS}
    return ServingRun(
        deployment=deployment,
        workload=functools.partial(workload, isl, osl, clients, shortest, cached, index),
        stages=(Stage(0, clients * REQUESTS_PER_CLIENT, measured, index),),
        max_num_batched_tokens=budget,
        memory_utilization=MEMORY_UTILIZATION,
        prefix_caching=cached > 0.0,
        context_tokens=mean * (isl + osl / 2.0),
        output_tokens=mean * osl,
        prefill_tokens=mean * isl - int(cached * isl) // BLOCK_TOKENS * BLOCK_TOKENS,
        clients=clients,
        configuration=f"{isl}/{osl} x {clients}",
    )
