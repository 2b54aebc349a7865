"""Coefficients of the latency model from the measured length of intervals of iterations.

One engine of one model cannot tell everything apart: per-iteration overhead from reading the weights, or the work of a
layer from that of the host. A weak pull towards what is believed beforehand settles what the measurements leave open.
Collectives and experts stay at the prior's values: for wider engines and mixtures of experts the fitted terms take up
what these miss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from serving_gym.calibration.coefficients import LatencyCoefficients
from serving_gym.calibration.hardware import GpuSpec
from serving_gym.calibration.latency import LatencyModel
from serving_gym.calibration.models import ModelSpec
from serving_gym.runners.measuring.composition import Step
from serving_gym.runners.measuring.intervals import Interval

FITTED = (
    "fixed_s",
    "sequence_s",
    "token_s",
    "dense_bandwidth_ratio",
    "dense_flops_ratio",
    "kv_bandwidth_ratio",
    "attention_flops_ratio",
    "prefill_s",
    "eager_layer_s",
)
ROBUST = 0.1  # relative error from which a interval counts less than in full
MOST_WEIGHT = 30  # iterations beyond which a interval gains no more weight
MOST_INTERVALS = 1500  # that are fitted to; of more, every other, third, ...
_LEAST_S = 1e-9
_PRIOR_S = {"prefill_s": 1e-3, "eager_layer_s": 5e-5}  # where the prior has none


def step_s(model: LatencyModel, step: Step) -> float:
    """What a model says of an iteration, s: `LatencyModel.iteration_s`."""
    seconds = model.kv_s * step.context_tokens
    if not step.prompt_tokens:
        return seconds + model.decode_s(step.decoding)
    sequences = step.decoding * model.coefficients.sequence_s
    return seconds + model.mixed_s(step.decoding + step.prompt_tokens) + sequences + model.pair_s * step.pairs


def interval_s(model: LatencyModel, interval: Interval) -> float:
    """What a model says of a interval, s."""
    return sum(step_s(model, step) for step in interval.steps)


def fit_coefficients(
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int,
    prior: LatencyCoefficients,
    pull: float,
    intervals: Sequence[Interval],
    fitted: Sequence[str] = FITTED,
) -> LatencyCoefficients:
    """Coefficients with the least relative error over the intervals, each of which counts by its iterations.

    Args:
        model: The model.
        gpu: The hardware of one rank.
        tp: Ranks of the engine.
        prior: What is believed beforehand.
        pull: Weight of one coefficient's prior against the relative error of one interval of full weight.
        intervals: What was measured.
        fitted: Which coefficients.

    Raises:
        ValueError: there are fewer intervals than coefficients, or none of one kind.
    """
    kinds = {interval.kind for interval in intervals}
    if len(intervals) < len(fitted) or len(kinds) < 2:
        raise ValueError(
            f"the measurement gave {len(intervals)} intervals of iterations ({', '.join(sorted(kinds)) or 'none'}), "
            f"too few to fit {len(fitted)} coefficients"
        )
    rows = intervals[:: math.ceil(len(intervals) / MOST_INTERVALS)]
    assumed: dict[str, Any] = {name: getattr(prior, name) or value for name, value in _PRIOR_S.items()}
    prior = replace(prior, **assumed)
    measured = np.log([interval.seconds for interval in rows])
    weight = np.sqrt([min(len(interval.steps), MOST_WEIGHT) for interval in rows])
    weight /= weight.max()
    start = np.log([max(getattr(prior, name), _LEAST_S) for name in fitted])

    def of(logs: NDArray[np.float64]) -> LatencyCoefficients:
        return replace(prior, **dict(zip(fitted, np.exp(logs).tolist(), strict=True)))

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        latency = LatencyModel(model, gpu, tp, of(logs))
        predicted = np.log([interval_s(latency, interval) for interval in rows])
        errors: NDArray[np.float64] = np.concatenate([weight * (predicted - measured), pull * (logs - start)])
        return errors

    least = np.full(len(fitted), np.log(_LEAST_S) - 1.0)
    most = np.full(len(fitted), 1e-9)  # one second, and all of what the hardware can do
    start_inside = np.minimum(start, -1e-6)
    return of(
        least_squares(
            residuals, start_inside, bounds=(least, most), loss="soft_l1", f_scale=ROBUST, max_nfev=60
        ).x
    )


def errors_of(latency: LatencyModel, intervals: Sequence[Interval]) -> dict[str, dict[str, float]]:
    """Error by kind of interval: n, absolute relative median, mean, 90th percentile, and of all together (ratios)."""
    report = {}
    for kind in sorted({interval.kind for interval in intervals}):
        rows = [interval for interval in intervals if interval.kind == kind]
        predicted = np.array([interval_s(latency, row) for row in rows])
        measured = np.array([row.seconds for row in rows])
        errors = np.abs(predicted / measured - 1.0)
        report[kind] = {
            "n": len(rows),
            "ape_median": round(float(np.median(errors)), 4),
            "ape_mean": round(float(np.mean(errors)), 4),
            "ape_p90": round(float(np.percentile(errors, 90)), 4),
            "together": round(float(predicted.sum() / measured.sum() - 1.0), 4),
        }
    return report
