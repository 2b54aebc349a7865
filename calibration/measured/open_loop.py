"""Constant-rate load on one engine in stages: the form of the published runs of inference-perf on vLLM.

Every run sends the same few prompts over and over with prefix caching on: `num_system_prompts` groups that share a
system prompt, `users_per_prompt` questions each. All but the first sending of a prompt find it cached up to its last
whole block, so only the tail is computed, while attention reads all of it.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibration.deployments import Deployment
from calibration.engines import BENCHMARKED_ENGINES
from calibration.measured.closed_loop import MEMORY_UTILIZATION, number, text
from calibration.measured.names import gpu_name, model_name
from calibration.measured.runs import ServingRun, Stage
from envs.workload.schema import Workload

COLUMNS = (
    "rate_rps", "duration_s", "system_prompt_tokens", "question_tokens", "num_system_prompts", "ttft_ms_mean",
    "e2e_ms_mean", "output_tokens", "stage",
)  # fmt: skip
TEMPLATE_TOKENS = (
    28  # chat template around a question: mean prompt length recorded minus system prompt and question
)
BLOCK_TOKENS = 16
DEVICE_MARGIN = MEMORY_UTILIZATION - 0.9  # of device memory, beyond the data sheet's number
MS = 1e-3
TARGETS = {"ttft": "ttft_ms_mean", "ttft_p99": "ttft_ms_p99", "e2e": "e2e_ms_mean", "tpot": "tpot_ms_mean"}


def prompt_tokens(row: dict[str, Any]) -> int:
    """Length of a prompt, tokens."""
    return int(row["system_prompt_tokens"] + row["question_tokens"]) + TEMPLATE_TOKENS


def workload(rows: Sequence[dict[str, Any]]) -> Workload:
    """Requests of a run: its stages one after the other, users in turn."""
    arrivals, computed, output, start, sent = [], [], [], 0.0, 0
    prompt = prompt_tokens(rows[0])
    users = int(rows[0]["num_system_prompts"] * number(rows[0], "users_per_prompt", 1))
    random = np.random.default_rng(len(rows))
    for row in rows:
        count = round(row["rate_rps"] * row["duration_s"])
        arrivals.append(start + np.arange(count) / row["rate_rps"])
        turn = sent + np.arange(count)
        tail = 1 + random.integers(0, BLOCK_TOKENS, count)
        computed.append(np.where(turn < users, prompt, tail))
        output.append(np.full(count, int(row["output_tokens"])))
        start, sent = start + row["duration_s"], sent + count
    return Workload(
        arrival_s=np.concatenate(arrivals),
        input_tokens=np.concatenate(computed),
        output_tokens=np.concatenate(output),
        name="constant rate",
    )


def run_of(rows: Sequence[dict[str, Any]], indices: Sequence[int]) -> ServingRun:
    """The rows of one run, in the order of their stages."""
    first = rows[0]
    stages, sent = [], 0
    for row, index in zip(rows, indices, strict=True):
        count = round(row["rate_rps"] * row["duration_s"])
        measured = {target: number(row, column, np.nan) * MS for target, column in TARGETS.items()}
        stages.append(Stage(sent, sent + count, {k: v for k, v in measured.items() if v == v}, index))
        sent += count
    precision = text(first, "precision")
    return ServingRun(
        deployment=Deployment(
            model=model_name(text(first, "model"), precision),
            gpu=gpu_name(text(first, "gpu")),
            tp=int(first["tensor_parallel"]),
            engine=BENCHMARKED_ENGINES["open_loop"],
        ),
        workload=functools.partial(workload, rows),
        stages=tuple(stages),
        max_num_seqs=int(number(first, "max_num_seqs", 128)),
        max_num_batched_tokens=int(number(first, "max_num_batched_tokens", 2048)),
        memory_utilization=number(first, "gpu_memory_utilization", 0.9) + DEVICE_MARGIN,
        cached_context_tokens=float(prompt_tokens(first) - BLOCK_TOKENS / 2),
        load=max(float(row["rate_rps"]) for row in rows),
    )
