"""Penalised least squares for models that are simulated: noisy derivatives, a few parameters, robust to odd rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

STEP = 0.1  # of a prior's width, for finite differences
ROUNDS = 6
STEP_SHARES = (1.0, 0.7, 0.4)  # of the Gauss-Newton step, tried one after the other with one derivative
SMALLEST_GAIN = 1e-2  # of the objective, below which a round was the last


@dataclass(frozen=True)
class Prior:
    """What is believed of a parameter before any measurement.

    Args:
        name: The parameter.
        mean: Most likely value.
        width: Standard deviation.
        low: Smallest value allowed.
    """

    name: str
    mean: float
    width: float
    low: float = 0.0


def objective(residuals: Array, z: Array) -> float:
    """Soft-L1 loss of the residuals (in standard deviations) and the squared distance from the priors."""
    return float(np.sum(2.0 * (np.sqrt(1.0 + residuals**2) - 1.0)) + z @ z)


def fit_map(
    priors: Sequence[Prior], residuals: Callable[[dict[str, float]], Array], rounds: int = ROUNDS
) -> dict[str, float]:
    """Most probable parameters.

    Args:
        priors: The parameters.
        residuals: Residuals of the measurements in standard deviations, given parameters by name.
        rounds: Most Gauss-Newton steps.

    Returns:
        Parameters by name.
    """
    mean = np.array([prior.mean for prior in priors])
    width = np.array([prior.width for prior in priors])
    low = (np.array([prior.low for prior in priors]) - mean) / width

    def at(z: Array) -> Array:
        return residuals({prior.name: float(x) for prior, x in zip(priors, mean + width * z, strict=True)})

    z = np.maximum(np.zeros(len(priors)), low)
    now = at(z)
    best = objective(now, z)
    for _ in range(rounds):
        jacobian = np.stack([(at(z + STEP * unit) - now) / STEP for unit in np.eye(len(z))], axis=-1)
        before = best
        for (
            share
        ) in STEP_SHARES:  # a derivative costs as many simulations as there are parameters, so it is used up
            weight = 1.0 / np.sqrt(1.0 + now**2)
            normal = jacobian.T @ (weight[:, None] * jacobian) + np.eye(len(z))
            move = np.linalg.solve(normal, -(jacobian.T @ (weight * now) + z))
            tried = np.maximum(z + share * move, low)
            new = at(tried)
            if objective(new, tried) < best:
                z, now, best = tried, new, objective(new, tried)
        if before - best < SMALLEST_GAIN * before:
            break
    return {prior.name: float(x) for prior, x in zip(priors, mean + width * z, strict=True)}
