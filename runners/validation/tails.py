"""What the worst tenth of the predictions has in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from serving_gym.calibration.models import get_model
from serving_gym.runners.validation.runs import ServingRun, Stage
from serving_gym.runners.validation.score import Score

WORST = 0.1
FIGURES = ("tpot", "ttft", "ttft_p99", "e2e")
LONG_PROMPT, SHORT_RUN, LARGE_BATCH = 4096, 100, 64  # tokens, requests, clients
GRAPH_STEP = 8  # vLLM captures decode graphs of 1, 2, 4 and every multiple of 8 sequences


def off_graph(run: ServingRun) -> bool:
    """Whether a closed loop decodes batches that no graph was captured for and that are padded to the next one."""
    return run.clients > GRAPH_STEP // 2 and run.clients % GRAPH_STEP != 0


FACTORS: dict[str, Callable[[Score, ServingRun], bool]] = {
    "saturated": lambda score, _: score.band == "saturated",
    "load of 70 to 95 %": lambda score, _: score.band == "70_to_95",
    "mixture of experts": lambda score, _: get_model(score.deployment.model).num_experts > 0,
    "experts spread over the GPUs": lambda score, _: score.deployment.expert_parallel,
    "B200 or B300": lambda score, _: score.deployment.gpu in ("B200", "B300"),
    "A100 or L40S": lambda score, _: score.deployment.gpu in ("A100-80GB", "L40S"),
    "vLLM before 0.7": lambda score, _: score.deployment.engine == "vllm-0.6",
    "profile not fitted to it": lambda score, _: score.split == "unseen",
    f"prompt computed of {LONG_PROMPT:,} tokens or more": lambda _, run: run.prefill_tokens >= LONG_PROMPT,
    "mixture of experts, first stage after the start": lambda score, run: (
        FACTORS["mixture of experts"](score, run) and bool(run.rate_rps) and stage_of(score, run).first == 0
    ),
    f"fewer than {SHORT_RUN} requests": lambda score, run: (
        stage_of(score, run).last - stage_of(score, run).first < SHORT_RUN
    ),
    f"more than {LARGE_BATCH} clients": lambda _, run: run.clients > LARGE_BATCH,
    "clients that no captured graph holds": lambda _, run: off_graph(run),
}


def stage_of(score: Score, run: ServingRun) -> Stage:
    """The stage that a score speaks of."""
    return next(stage for stage in run.stages if stage.row == score.row)


def tails(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """How often each factor is met among the worst tenth and among all runs, and the median errors."""
    found = []
    for figure in FIGURES:
        members = [(s, s.run) for s in scores if s.target == figure and s.run is not None]
        if not members:
            continue
        errors = np.array([score.error for score, _ in members])
        worst = errors >= np.quantile(errors, 1.0 - WORST)
        for name, holds in FACTORS.items():
            met = np.array([holds(score, run) for score, run in members])
            if met.any() and not met.all():
                found.append(
                    {
                        "figure": figure,
                        "factor": name,
                        "n": int(met.sum()),
                        "share_of_worst": round(float(met[worst].mean()), 4),
                        "share": round(float(met.mean()), 4),
                        "median_with": round(float(np.median(errors[met])), 4),
                        "median_without": round(float(np.median(errors[~met])), 4),
                    }
                )
    return found
