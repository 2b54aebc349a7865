"""Section 3.2, figure 4: memory of one model that a node is given to, under real invocations."""

from __future__ import annotations

import numpy as np

from serving_gym.calibration.models import get_model
from serving_gym.envs.interface.metrics import FloatArray
from serving_gym.runners.reproduction.choices import make_choices
from serving_gym.runners.reproduction.claims import INPUT, Claim, at_least, at_most, near
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.llm_mesh.choices import MeshChoices
from serving_gym.runners.reproduction.llm_mesh.study import SIZES, SLLM, Cell, Outcome, Study, make_claim

MODELS = ("7B", "13B")
PEAK_GB = {"7B": 169.0, "13B": 263.0}
WEIGHTS_GB = {"7B": 14.0, "13B": 26.0}
HALF_GB = {"7B": 17.0, "13B": 43.0}  # "during 50% of operational periods, memory consumption remains below"
_KEEP_ALIVE_S = 1.0  # of an idle instance; section 8.1
_STEP_S = 0.5


def cells(config: ReproduceConfig) -> list[Cell]:
    """What is run: sllm's exclusive nodes, GPUs alone."""
    top = make_choices(MeshChoices, config.choices).top
    return [_cell(size, top) for size in MODELS]


def _cell(size: str, top: float) -> Cell:
    return Cell(SLLM, 1, (size,), popularity=top, gpus_only=True)


def claims(study: Study) -> list[Claim]:
    """The figures that section 3.2 gives."""
    rows, top = [], study.choices.top
    for size in MODELS:
        used = [footprint_gb(outcome, SIZES[size]) for outcome in study.outcomes(_cell(size, top))]
        peak, half = max(float(gb.max()) for gb in used), float(np.median(np.concatenate(used)))
        note = f"sllm on 4 A100, the function at percentile {top:.1%}. {study.note}"
        rows += [
            make_claim(
                "3.2, figure 4",
                f"{size}: memory of its weights",
                WEIGHTS_GB[size],
                get_model(SIZES[size]).weight_bytes / 1e9,
                "GB",
                near(WEIGHTS_GB[size]),
                kind=INPUT,
            ),
            make_claim(
                "3.2, figure 4",
                f"{size}, top 1 %: most memory of weights and KV cache in use",
                PEAK_GB[size],
                peak,
                "GB",
                at_least(PEAK_GB[size]),
                note=note,
            ),
            make_claim(
                "3.2, figure 4",
                f"{size}, top 1 %: memory in half of the time in which it is served",
                HALF_GB[size],
                half,
                "GB",
                at_most(HALF_GB[size]),
                note=note,
            ),
        ]
    return rows


def footprint_gb(outcome: Outcome, model: str) -> FloatArray:
    """Weights of all instances and the KV cache in use, GB, every half second in which there is an instance.

    An instance is there from its first request to a second after its last, and the KV cache of a request grows evenly
    from its first token to its last.

    Args:
        outcome: Of one model.
        model: Its architecture.
    """
    records, spec = outcome.records, get_model(model)
    done = (records.engine >= 0) & np.isfinite(records.finish_s)
    begin_s, first_s, end_s = (
        getattr(records, name)[done] for name in ("first_scheduled_s", "first_token_s", "finish_s")
    )
    engine = records.engine[done]
    inputs, outputs = (
        getattr(records, name)[done].astype(float) for name in ("input_tokens", "output_tokens")
    )
    found = []
    for now_s in np.arange(0.0, float(end_s.max(initial=0.0)) + _KEEP_ALIVE_S, _STEP_S):
        there = (begin_s <= now_s) & (now_s < end_s + _KEEP_ALIVE_S)
        runs = there & (now_s < end_s)
        share = np.clip((now_s - first_s) / np.maximum(end_s - first_s, 1e-9), 0.0, 1.0)
        tokens = float((inputs + share * outputs)[runs].sum())
        instances = len(np.unique(engine[there]))
        if instances:
            found.append((instances * spec.weight_bytes + tokens * spec.kv_bytes_per_token) / 1e9)
    return np.array(found if found else [0.0])
