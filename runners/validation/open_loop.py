"""Constant-rate load on one engine in stages: the form of the published runs of inference-perf on vLLM.

Every run sends the same few prompts over and over with prefix caching on: `num_system_prompts` groups that share a
system prompt, `users_per_prompt` questions each. All but the first sending of a prompt find it cached up to its last
whole block, so only the tail is computed.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.validation.closed_loop import MEMORY_UTILIZATION, benchmarked, number, text
from serving_gym.runners.validation.runs import ServingRun, Stage

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
TAIL = 0.01  # of the requests are slower than the 99th percentile
SHORT_SHARE, SHORT_S = 0.15, 60.0  # of a stage, in fits; and at least so long, s
TARGETS = {"ttft": "ttft_ms_mean", "ttft_p99": "ttft_ms_p99", "e2e": "e2e_ms_mean", "tpot": "tpot_ms_mean"}


def prompt_tokens(row: dict[str, Any]) -> int:
    """Length of a prompt, tokens."""
    return int(row["system_prompt_tokens"] + row["question_tokens"]) + TEMPLATE_TOKENS


def workload(rows: Sequence[dict[str, Any]]) -> Workload:
    """Requests of a run: its stages one after the other, users in turn."""
    arrivals, output, start = [], [], 0.0
    for row in rows:
        count = round(row["rate_rps"] * row["duration_s"])
        arrivals.append(start + np.arange(count) / row["rate_rps"])
        output.append(np.full(count, int(row["output_tokens"]), dtype=np.int32))
        start += row["duration_s"]
    sent = sum(map(len, arrivals))
    ids = prompt_blocks(rows[0])
    chosen = ids[np.arange(sent) % len(ids)]
    return Workload(
        arrival_s=np.concatenate(arrivals),
        input_tokens=np.full(sent, prompt_tokens(rows[0]), dtype=np.int32),
        output_tokens=np.concatenate(output),
        hash_offsets=np.arange(sent + 1, dtype=np.int64) * ids.shape[1],
        hash_ids=chosen.ravel().astype(np.int32),
        hash_block_tokens=BLOCK_TOKENS,
        name="constant rate",
    )


def prompt_blocks(row: dict[str, Any]) -> NDArray[np.int64]:
    """Ids of the full KV blocks of each distinct prompt, (prompts, blocks); a group shares its system prompt."""
    groups, users = int(row["num_system_prompts"]), int(number(row, "users_per_prompt", 1))
    blocks, shared = prompt_tokens(row) // BLOCK_TOKENS, int(row["system_prompt_tokens"]) // BLOCK_TOKENS
    prompt, place = np.divmod(np.arange(groups * users * blocks), blocks)
    owner = np.where(place < shared, prompt % groups, groups + prompt)
    return np.asarray(owner * blocks + place).reshape(groups * users, blocks)


def stages_of(
    rows: Sequence[dict[str, Any]], indices: Sequence[int], share: float = 1.0
) -> tuple[Stage, ...]:
    """Measured stages of a run of which `share` is simulated."""
    stages, sent = [], 0
    short = share < 1.0
    cold = 2 * len(prompt_blocks(rows[0])) if short else 0
    for row, index in zip(rows, indices, strict=True):
        whole = row["rate_rps"] * row["duration_s"]
        count = round(row["rate_rps"] * shortened_s(row, share))
        measured = {target: number(row, column, np.nan) * MS for target, column in TARGETS.items()}
        known = {target: value for target, value in measured.items() if value == value}
        tail = max(1, round(TAIL * whole)) if short else 0
        rate = float(row["rate_rps"])
        stages.append(Stage(sent, sent + count, known, index, rate, min(cold, count // 2), tail))
        cold = 0
        sent += count
    return tuple(stages)


def shorter(
    rows: Sequence[dict[str, Any]], indices: Sequence[int]
) -> tuple[functools.partial[Workload], tuple[Stage, ...]]:
    """Workload and stages of a run whose stages last a part of their time."""
    cut = [{**row, "duration_s": shortened_s(row, SHORT_SHARE)} for row in rows]
    return functools.partial(workload, cut), stages_of(rows, indices, SHORT_SHARE)


def shortened_s(row: dict[str, Any], share: float) -> float:
    """Duration of a stage of which `share` is simulated, s."""
    return float(
        row["duration_s"] if share == 1.0 else min(row["duration_s"], max(SHORT_S, row["duration_s"] * share))
    )


def run_of(rows: Sequence[dict[str, Any]], indices: Sequence[int]) -> ServingRun:
    """The rows of one run, in the order of their stages.

    Raises:
        ValueError: Something that is not modelled, or a load that is none.
    """
    first = rows[0]
    if number(first, "data_parallel", 1.0) != 1.0:
        raise ValueError("data-parallel engines behind one front end are not modelled")
    for row in rows:
        for name in ("rate_rps", "duration_s", "output_tokens"):
            if not (isinstance(row[name], (int, float)) and row[name] > 0):
                raise ValueError(f"{name} must be a positive number")
    return ServingRun(
        deployment=benchmarked(first, "open_loop"),
        workload=functools.partial(workload, rows),
        stages=stages_of(rows, indices),
        max_num_seqs=int(number(first, "max_num_seqs", 128)),
        max_num_batched_tokens=int(number(first, "max_num_batched_tokens", 2048)),
        memory_utilization=min(1.0, number(first, "gpu_memory_utilization", 0.9) + DEVICE_MARGIN),
        prefix_caching=True,
        context_tokens=prompt_tokens(first) + float(first["output_tokens"]) / 2.0,
        output_tokens=float(first["output_tokens"]),
        prefill_tokens=float((prompt_tokens(first) - 1) % BLOCK_TOKENS + 1),
        configuration=text(first, "profile") or f"{first['rate_rps']:g}/s",
        shorter=functools.partial(shorter, rows, indices),
    )
