"""Predicted output lengths: a router's estimate before the answer is generated.

Where a workload has no text there is nothing to predict from, so a predictor is stood in for by its errors, as in
PreServe's own evaluation (Jiang et al., section 5.3: "prediction errors based on the error proportion distribution from
RQ1 Tab. 2"). Predictions that a trained predictor made from text travel with the workload
(`Workload.predicted_tokens`).

Table 2 gives four figures of each predictor on ShareGPT: the mean absolute error, and the shares of errors of at most
25, 50 and 100 tokens. The absolute error here is drawn from the distribution of maximum entropy that has these four
figures, on the whole numbers from 0 to 4095 (what two lengths "up to 4096" can differ by): weights
``exp(-rate * error)``, scaled in each of the bands 0-25, 26-50, 51-100 and 101-4095 to the band's share, with the one
rate that gives the mean. It claims nothing beyond the table; errors do not depend on the length, about which the table
says nothing.

The sign is a fair coin. Where only one sign leaves the prediction between 1 and 4096 tokens (and at most what the
client declared), it is that one, so that the absolute errors keep the table's distribution: short answers are predicted
too long more often than too short, as every regression to a mean does. Where neither sign does, the prediction is
clipped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from serving_gym.calibration.fields import check_at_least, check_not_negative
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.workload.schema import FloatArray, Workload
from serving_gym.envs.workload.seeding import stream

LONGEST_TOKENS = 4096  # Table 2: "up to 4096"; LLaMA-2's longest output
BANDS = (25, 50, 100)  # tokens; Acc-25, Acc-50, Acc-100


@dataclass(frozen=True)
class Accuracy:
    """A row of Table 2.

    Attributes:
        mae: mean absolute error, tokens.
        within: shares of errors of at most 25, 50 and 100 tokens, 0 to 1.
    """

    mae: float
    within: tuple[float, float, float]


TABLE_2 = {
    "preserve": Accuracy(78.25, (0.5677, 0.6879, 0.7795)),
    # Of mu-Serve as well the errors, not the mechanism: how often its classifier is right is not published for this
    # data set. The mechanism itself is `baselines.mu_serve`.
    "mu_serve": Accuracy(355.59, (0.3231, 0.4935, 0.6525)),
    "pia_vicuna_13b": Accuracy(283.86, (0.3927, 0.5418, 0.6856)),
    "pia_chatgpt": Accuracy(127.41, (0.5042, 0.6125, 0.7034)),
}
ORACLE, LOGNORMAL, MAX, MEDIAN, COLUMN = "oracle", "lognormal", "max", "median", "column"
PREDICTORS = (ORACLE, *TABLE_2, LOGNORMAL, MAX, MEDIAN, COLUMN)
CLAIRVOYANT = (ORACLE,)
WITHOUT_ERRORS = (ORACLE, MAX, MEDIAN)


@dataclass(frozen=True)
class PredictionSpec:
    """Predictor of output lengths.

    Attributes:
        name: "preserve", "mu_serve", "pia_vicuna_13b" or "pia_chatgpt": errors of PreServe's Table 2.
            "lognormal": the truth times a log-normal factor of median 1. "column": the workload's own
            ``predicted_tokens``. "max": what the client declared. "median": ``median_tokens`` for every request.
            "oracle": the truth; clairvoyant, for bounds only.
        spread: factor on the errors, 0 or more: of "column" on its distance from the truth, of "lognormal" on
            ``sigma``. "oracle", "max" and "median" draw no errors and take no notice of it.
        sigma: of "lognormal", standard deviation of the logarithm; source: ours.
        median_tokens: of "median", the typical length of an answer of this service, tokens.
    """

    name: str = "preserve"
    spread: float = 1.0
    sigma: float = 0.4
    median_tokens: int | None = None

    def __post_init__(self) -> None:
        check_choice("prediction name", self.name, PREDICTORS)
        check_not_negative(self, "spread", "sigma", prefix="prediction ", finite=True)
        check_at_least(self, 1, "median_tokens", prefix="prediction ")
        if (self.median_tokens is None) == (self.name == MEDIAN):
            raise ValueError(
                "prediction median_tokens must be given for prediction 'median' and for no other; "
                f"{self.name!r} has median_tokens={self.median_tokens}"
            )

    @property
    def clairvoyant(self) -> bool:
        """Whether it uses the true length."""
        return self.name in CLAIRVOYANT

    @property
    def why_exact(self) -> str:
        """Why `spread` does not change its predictions; empty where it does."""
        return f"prediction {self.name!r} draws no errors" if self.name in WITHOUT_ERRORS else ""

    def with_errors(self, factor: float) -> PredictionSpec:
        """The predictor with errors `factor` times as large."""
        return replace(self, spread=self.spread * factor)


def predict_lengths(spec: PredictionSpec, workload: Workload, seed: int) -> NDArray[np.int32]:
    """Predicted output length of every request.

    A request's draw depends on the seed and its row alone: a longer workload's first rows are predicted alike, and all
    predictors share the draws, so that of two the one with the larger errors errs more on every request.

    Args:
        spec: which predictor.
        workload: the requests, (N,).
        seed: which errors.

    Returns:
        (N,), tokens, from 1 to the request's ``max_output_tokens``; the errors of Table 2 also end at 4096.

    Raises:
        ValueError: "column" without a column ``predicted_tokens``, or a negative seed.
    """
    truth = workload.output_tokens.astype(np.float64)
    declared = workload.max_output_tokens.astype(np.float64)
    size, coin = stream(seed, "prediction").random((len(workload), 2)).T
    sign = np.where(coin < 0.5, -1.0, 1.0)
    if spec.name == ORACLE:
        predicted = truth
    elif spec.name == MAX:
        predicted = declared
    elif spec.name == MEDIAN:
        predicted = np.full_like(truth, spec.median_tokens)
    elif spec.name == COLUMN:
        predicted = truth + spec.spread * (_column(workload) - truth)
    elif spec.name == LOGNORMAL:
        predicted = truth * np.exp(spec.spread * spec.sigma * sign * ndtri(0.5 + 0.5 * size))
    else:
        longest = np.minimum(declared, LONGEST_TOKENS)
        drawn = np.searchsorted(np.cumsum(error_probabilities(spec.name)), size, side="right")
        predicted = _displaced(truth, np.rint(spec.spread * drawn), sign, longest)
    return np.clip(np.rint(predicted), 1, declared).astype(np.int32)


def error_probabilities(name: str) -> FloatArray:
    """Distribution of a predictor's absolute error.

    Args:
        name: a row of ``TABLE_2``.

    Returns:
        (4096,), probability of an error of 0, 1, ..., 4095 tokens; read-only.

    Raises:
        ValueError: no such row.
    """
    check_choice("row of Table 2", name, TABLE_2)
    return _maximum_entropy(TABLE_2[name])


def accuracy(predicted: ArrayLike, truth: ArrayLike) -> dict[str, float]:
    """The four figures of Table 2: ``mae`` (tokens), ``acc_25``, ``acc_50`` and ``acc_100`` (shares, 0 to 1).

    Args:
        predicted: (N,), tokens.
        truth: (N,), tokens.

    Raises:
        ValueError: nothing was predicted.
    """
    error = np.abs(np.asarray(predicted, dtype=np.float64) - np.asarray(truth, dtype=np.float64))
    if error.size == 0:
        raise ValueError("accuracy needs at least one prediction")
    return {
        "mae": float(error.mean()),
        **{f"acc_{band}": float((error <= band).mean()) for band in BANDS},
    }


@lru_cache
def _maximum_entropy(row: Accuracy) -> FloatArray:
    """Distribution of maximum entropy on 0..4095 with a row's four figures."""
    from scipy.optimize import brentq  # imported here because it takes 0.1 s, and most predictors do without

    error = np.arange(LONGEST_TOKENS, dtype=np.float64)
    band = np.searchsorted(BANDS, error)
    share = np.diff(row.within, prepend=0.0, append=1.0)

    def probabilities(rate: float) -> FloatArray:
        weight = np.exp(-rate * error)
        scaled: FloatArray = weight * (share / np.bincount(band, weight))[band]
        return scaled

    rate = float(brentq(lambda value: probabilities(value) @ error - row.mae, 0.0, 0.1, xtol=1e-15))
    found = probabilities(rate)
    found.setflags(write=False)
    return found


def _displaced(truth: FloatArray, error: FloatArray, sign: FloatArray, longest: FloatArray) -> FloatArray:
    """Truth plus error with the sign drawn, or with the other where only that stays within 1 and `longest`."""
    drawn, other = truth + sign * error, truth - sign * error
    inside = (drawn >= 1) & (drawn <= longest)
    other_inside = (other >= 1) & (other <= longest)
    displaced: FloatArray = np.where(inside | ~other_inside, drawn, other)
    return np.clip(displaced, 1, longest)


def _column(workload: Workload) -> FloatArray:
    if workload.predicted_tokens is None:
        raise ValueError(
            f"prediction 'column' needs a workload with a column 'predicted_tokens'; {workload.name!r} has none"
        )
    return workload.predicted_tokens.astype(np.float64)
