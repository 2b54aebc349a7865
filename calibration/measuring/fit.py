"""Coefficients of the latency model from measured iterations.

One engine of one model cannot tell everything apart: per-iteration overhead from reading the weights, or the work of a
layer from that of the host. A weak pull towards the roofline's assumptions settles what the measurements leave open,
and `layer_s` is left to `fixed_s`. Collectives and experts stay at the roofline's values: for wider engines and
mixtures of experts the fitted terms take up what these miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from calibration.coefficients import LatencyCoefficients, roofline_coefficients
from calibration.hardware import GpuSpec
from calibration.latency import LatencyModel
from calibration.measuring.cells import Cell
from calibration.measuring.composition import Step
from calibration.models import ModelSpec

FITTED = (
    "fixed_s",
    "sequence_s",
    "token_s",
    "dense_bandwidth_ratio",
    "dense_flops_ratio",
    "kv_bandwidth_ratio",
    "attention_flops_ratio",
)
PULL = 0.02  # weight of one coefficient's prior against one cell's relative error
ROBUST = 0.1  # relative error from which a cell counts less than in full
MOST_WEIGHT = 30  # iterations beyond which a cell gains no more weight
_LEAST = 1e-6


def cell_s(model: LatencyModel, cell: Cell | Step) -> float:
    """What the model says of a cell or an iteration, s: `LatencyModel.iteration_s` at a cell's means."""
    seconds = model.kv_s * cell.context_tokens
    if not cell.prompt_tokens:
        return seconds + model.decode_s(cell.decoding)
    sequences = cell.decoding * model.coefficients.sequence_s
    return seconds + model.mixed_s(cell.decoding + cell.prompt_tokens) + sequences + model.pair_s * cell.pairs


def fit_coefficients(model: ModelSpec, gpu: GpuSpec, tp: int, cells: Sequence[Cell]) -> LatencyCoefficients:
    """Coefficients with the least relative error over the cells.

    Args:
        model: The model.
        gpu: The hardware of one rank.
        tp: Ranks of the engine.
        cells: Measured iterations.

    Raises:
        ValueError: there are fewer cells than coefficients, or none of one kind.
    """
    kinds = {cell.kind for cell in cells}
    if len(cells) < len(FITTED) or len(kinds) < 2:
        raise ValueError(
            f"the measurement gave {len(cells)} kinds of iterations ({', '.join(sorted(kinds)) or 'none'}), too few "
            f"to fit {len(FITTED)} coefficients"
        )
    prior = replace(roofline_coefficients(gpu), layer_s=0.0)
    start = np.log([getattr(prior, name) for name in FITTED])
    weight = np.sqrt([min(cell.count, MOST_WEIGHT) for cell in cells])
    weight /= weight.max()
    measured = np.log([cell.seconds for cell in cells])

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        latency = LatencyModel(model, gpu, tp, _with(prior, logs))
        predicted = np.log([cell_s(latency, cell) for cell in cells])
        errors: NDArray[np.float64] = np.concatenate([weight * (predicted - measured), PULL * (logs - start)])
        return errors

    least = np.full(len(FITTED), np.log(_LEAST))
    least[: FITTED.index("dense_bandwidth_ratio")] = np.log(1e-9)  # seconds
    solution = least_squares(
        residuals, start, bounds=(least, np.zeros(len(FITTED))), loss="soft_l1", f_scale=ROBUST
    )
    return _with(prior, solution.x)


def errors_of(
    model: ModelSpec, gpu: GpuSpec, tp: int, coefficients: LatencyCoefficients, cells: Sequence[Cell]
) -> dict[str, dict[str, float]]:
    """Absolute relative error by kind of iteration: n, median, mean and 90th percentile (ratios)."""
    latency = LatencyModel(model, gpu, tp, coefficients)
    report = {}
    for kind in ("decode_step", "prefill_step"):
        ratios = [cell_s(latency, cell) / cell.seconds for cell in cells if cell.kind == kind]
        if ratios:
            report[kind] = relative_errors(ratios)
    return report


def relative_errors(ratios: Sequence[float]) -> dict[str, float]:
    """Absolute relative error, given predicted over measured: n, median, mean and 90th percentile (ratios)."""
    errors = np.abs(np.asarray(ratios) - 1.0)
    return {
        "n": len(errors),
        "ape_median": round(float(np.median(errors)), 4),
        "ape_mean": round(float(np.mean(errors)), 4),
        "ape_p90": round(float(np.percentile(errors, 90)), 4),
    }


def _with(prior: LatencyCoefficients, logs: NDArray[np.float64]) -> LatencyCoefficients:
    return replace(prior, **dict(zip(FITTED, np.exp(logs).tolist(), strict=True)))
