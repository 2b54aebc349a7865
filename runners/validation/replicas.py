"""One replica of a data-parallel layout under Poisson arrivals: the form of the published apex_plus runs.

The rows hold means only, so lengths are drawn around them; the spread is that of the requests the authors served.
"""

import functools
from typing import Any

import numpy as np

from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.validation.closed_loop import MEMORY_UTILIZATION, benchmarked, number, text
from serving_gym.runners.validation.runs import ServingRun, Stage

COLUMNS = ("layout", "replica", "data_parallel", "rate_rps", "ttft_ms_mean", "tpot_ms_mean", "workload")
MS = 1e-3
# Mean lengths (prompt, output) and their coefficient of variation by workload, for rows that leave them blank.
LENGTHS = {"creation": (340.0, 750.0), "lmsys": (80.0, 110.0), "summarization": (2750.0, 120.0)}
SPREAD = {"creation": (0.3, 0.4), "lmsys": (1.2, 0.8), "summarization": (0.5, 0.8)}
REQUESTS = 400
LONGEST = (
    6000,
    2000,
)  # prompt and output, tokens; without chunks a request must fit the budget of one iteration


def lognormal(random: np.random.Generator, mean: float, spread: float, count: int) -> "np.ndarray[Any, Any]":
    """Positive lengths of a given mean and coefficient of variation, tokens."""
    variance = np.log1p(spread**2)
    return np.maximum(1, np.rint(random.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), count)))


def workload(
    rate_rps: float, prompt: float, output: float, spread: tuple[float, float], count: int, seed: int
) -> Workload:
    """Poisson requests of one replica."""
    random = np.random.default_rng(seed)
    output_tokens = lognormal(random, output, spread[1], count).clip(max=LONGEST[1])
    return Workload(
        arrival_s=np.cumsum(random.exponential(1.0 / rate_rps, count)),
        input_tokens=lognormal(random, prompt, spread[0], count).clip(max=LONGEST[0]),
        output_tokens=output_tokens,
        max_output_tokens=output_tokens,
        name="poisson",
    )


def run_of(row: dict[str, Any], index: int) -> ServingRun:
    """One row as a run: a replica gets its share of the arrivals.

    Raises:
        ValueError: A load that is none.
    """
    for name in ("rate_rps", "data_parallel"):
        if not float(row[name]) > 0:
            raise ValueError(f"{name} must be a positive number")
    kind = text(row, "workload")
    mean = LENGTHS.get(kind, LENGTHS["creation"])
    prompt = number(row, "prompt_tokens_mean", mean[0])
    output = number(row, "output_tokens_mean", mean[1])
    share = float(row["rate_rps"]) / float(row["data_parallel"])
    measured = {"ttft": number(row, "ttft_ms_mean", np.nan), "tpot": number(row, "tpot_ms_mean", np.nan)}
    if text(row, "e2e_consistent") == "True":
        measured["e2e"] = number(row, "e2e_ms_mean", np.nan)
    return ServingRun(
        deployment=benchmarked(row, "replicas"),
        workload=functools.partial(
            workload, share, prompt, output, SPREAD.get(kind, (0.5, 0.5)), REQUESTS, index
        ),
        stages=(Stage(0, REQUESTS, {k: v * MS for k, v in measured.items() if v == v}, index, share),),
        max_num_seqs=256,
        memory_utilization=MEMORY_UTILIZATION,
        chunked_prefill=False,
        max_num_batched_tokens=8192,
        comparison=f"{text(row, 'model')} {text(row, 'precision')} {kind} {float(row['rate_rps']):g}/s",
        context_tokens=prompt + output / 2.0,
        output_tokens=output,
        prefill_tokens=prompt,
        configuration=f"{kind} {share:g}/s",
    )
