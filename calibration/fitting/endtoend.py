"""What serving adds to the kernels: host work per iteration and sequence, waiting for other GPUs, element-wise work.

A few additive terms are fitted to measured time per output token on log error (soft-L1: single rows of the source are
off by a factor of two). Runs of one engine version share host terms, all runs of a family share the others.
Deployments (model x GPU x width) are held out whole, one at a time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from serving_gym.calibration.coefficients import LatencyCoefficients
from serving_gym.calibration.fitting.data import Run
from serving_gym.calibration.fitting.kernels import KernelFit, fit_kernels
from serving_gym.calibration.fitting.steady_state import predict_s
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.latency import LatencyModel
from serving_gym.calibration.models import get_model

Array = NDArray[np.float64]

# Bounds and typical sizes, s: all-reduce wait, element-wise work per token; then fixed and per sequence by engine.
SHARED_UPPER, SHARED_SCALE = (30e-6, 20e-6), (1e-6, 1e-6)
ENGINE_UPPER, ENGINE_SCALE = (10e-3, 200e-6), (1e-3, 10e-6)
OUTLIER_SCALE = 0.1  # log error beyond which a row counts less


@dataclass(frozen=True)
class Overheads:
    """What an engine adds to its kernels.

    Args:
        all_reduce_s: Waiting at each all-reduce per doubling of the width, s.
        token_s: Element-wise work per token of an iteration with prefill, s.
        fixed_s: Host work per iteration, s.
        sequence_s: Host work per decoding sequence, s.
    """

    all_reduce_s: float
    token_s: float
    fixed_s: float
    sequence_s: float

    def applied(self, kernels: LatencyCoefficients, tp: int) -> LatencyCoefficients:
        """Coefficients of an engine: kernels and overheads together."""
        return replace(
            kernels,
            fixed_s=kernels.fixed_s + self.fixed_s,
            sequence_s=kernels.sequence_s + self.sequence_s,
            all_reduce_s=kernels.all_reduce_s + self.all_reduce_s * math.log2(tp),
            token_s=kernels.token_s + self.token_s,
        )


@cache
def kernels_of(model: str, gpu: str, tp: int) -> KernelFit:
    """Kernel fit of one deployment, computed once."""
    return fit_kernels(get_model(model), get_gpu(gpu), tp)


def tpot_ratio(overheads: Overheads, run: Run) -> float:
    """Predicted over measured time per output token of one run."""
    coefficients = overheads.applied(kernels_of(run.model, run.gpu, run.tp).coefficients, run.tp)
    model = LatencyModel(get_model(run.model), get_gpu(run.gpu), run.tp, coefficients)
    return predict_s(model, run)[0] * 1e3 / run.tpot_ms


def fit_overheads(runs: Sequence[Run]) -> dict[str, Overheads]:
    """Fits the overheads of a family of deployments.

    Args:
        runs: Measured runs; those with one `engine` share host terms.

    Returns:
        Overheads by engine.
    """
    engines = sorted({run.engine for run in runs})
    upper = np.array(SHARED_UPPER + ENGINE_UPPER * len(engines))
    scale = np.array(SHARED_SCALE + ENGINE_SCALE * len(engines))

    def unpack(x: Array) -> dict[str, Overheads]:
        return {engine: Overheads(*x[:2], *x[2 + 2 * i : 4 + 2 * i]) for i, engine in enumerate(engines)}

    def residuals(x: Array) -> Array:
        overheads = unpack(x)
        return np.log([tpot_ratio(overheads[run.engine], run) for run in runs])

    fit = least_squares(
        residuals, 0.1 * scale, bounds=(0.0, upper), x_scale=scale, loss="soft_l1", f_scale=OUTLIER_SCALE
    )
    return unpack(fit.x)


def held_out_errors(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Leaves out one deployment at a time and predicts it from the others.

    Args:
        runs: Measured runs of a family.

    Returns:
        Absolute percentage errors (ratios) of the time per output token by deployment.
    """
    errors: dict[str, list[float]] = {}
    for deployment in sorted({run.deployment for run in runs}):
        overheads = fit_overheads([run for run in runs if run.deployment != deployment])
        left_out = [run for run in runs if run.deployment == deployment]
        errors[deployment] = [abs(tpot_ratio(overheads[run.engine], run) - 1.0) for run in left_out]
    return errors


def summary(errors: Sequence[float]) -> dict[str, float]:
    """Count, median, mean and 90th percentile of absolute percentage errors (ratios)."""
    return {
        "n": len(errors),
        "ape_median": round(float(np.median(errors)), 4),
        "ape_mean": round(float(np.mean(errors)), 4),
        "ape_p90": round(float(np.quantile(errors, 0.9)), 4),
    }
