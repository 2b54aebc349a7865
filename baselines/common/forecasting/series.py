"""What forecasters of one series have in common, and how they are scored."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


class SeriesForecaster(Protocol):
    """Says how a series goes on."""

    def fit(self, series: FloatArray) -> None:
        """Learns from the past.

        Args:
            series: (T,), evenly spaced values; NaN where one is missing.
        """
        ...

    def forecast(self, past: FloatArray, steps: int) -> FloatArray:
        """(steps,), what comes next, not negative.

        Args:
            past: (T,), what came before, from the same first step on as the series that it was fitted to; NaN where a
                value is missing.
            steps: How far ahead.
        """
        ...


def library(name: str) -> Any:
    """A module that is imported when it is needed: one takes a second, another is an extra's.

    Raises:
        ValueError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ValueError(
            f"this forecaster needs {package}, which is not installed: pip install 'serving-gym[forecast]'"
        ) from error


def as_series(values: ArrayLike, least: int = 1) -> FloatArray:
    """A series, checked.

    Args:
        values: (T,).
        least: Fewest values that must be there.

    Raises:
        ValueError: It is not one-dimensional, or has too few values.
    """
    series = np.asarray(values, np.float64)
    known = int(np.isfinite(series).sum())
    if series.ndim != 1 or known < least:
        raise ValueError(
            f"series must be one-dimensional with at least {least} values, got {known} in {series.shape}"
        )
    return series


def filled(series: FloatArray) -> FloatArray:
    """Missing values replaced along straight lines between those that are there."""
    known = np.isfinite(series)
    if known.all():
        return series
    steps = np.arange(len(series))
    return np.asarray(np.interp(steps, steps[known], series[known]), np.float64)


@dataclass(frozen=True)
class Errors:
    """Absolute percentage errors |prediction - actual| / actual, as fractions.

    Attributes:
        ape: (N,), one a forecast; values of zero and missing ones have none.
    """

    ape: FloatArray

    @property
    def mean(self) -> float:
        """Mean of them."""
        return float(self.ape.mean())

    @property
    def max(self) -> float:
        """Worst of them."""
        return float(self.ape.max())


def percentage_errors(predicted: ArrayLike, actual: ArrayLike) -> Errors:
    """Errors of forecasts.

    Args:
        predicted: (T,).
        actual: (T,), NaN where nothing is known.

    Raises:
        ValueError: There is nothing to compare with.
    """
    p, a = np.asarray(predicted, np.float64), np.asarray(actual, np.float64)
    known = np.isfinite(a) & (a > 0)
    if not known.any():
        raise ValueError("actual must have at least one positive value")
    return Errors(np.abs(p[known] - a[known]) / a[known])


def rolling(
    forecaster: SeriesForecaster,
    series: FloatArray,
    start: int,
    ahead: int = 1,
    refit_every: int | None = None,
) -> FloatArray:
    """(T - start,), forecasts of every value from `start` on, each from what is known `ahead` steps before it.

    Args:
        forecaster: It is fitted here, to what lies before `start`.
        series: (T,).
        start: First value that is forecast.
        ahead: Steps between the last known value and the one forecast, at least 1.
        refit_every: Steps after which it is fitted anew to all that is known then; None: never.

    Raises:
        ValueError: `start` leaves nothing to learn from or to forecast, or `ahead` is below 1.
    """
    if ahead < 1:
        raise ValueError(f"ahead must be at least 1, got {ahead}")
    if not ahead <= start < len(series):
        raise ValueError(
            f"start must lie between ahead ({ahead}) and the series' end {len(series)}, got {start}"
        )
    forecaster.fit(series[:start])
    predicted = np.empty(len(series) - start)
    for step in range(start, len(series)):
        if refit_every and step > start and (step - start) % refit_every == 0:
            forecaster.fit(series[: step - ahead + 1])
        predicted[step - start] = forecaster.forecast(series[: step - ahead + 1], ahead)[-1]
    return predicted


def one_shot(forecaster: SeriesForecaster, series: FloatArray, start: int) -> FloatArray:
    """(T - start,), forecasts of all that follows `start`, made there and never corrected.

    Args:
        forecaster: It is fitted here, to what lies before `start`.
        series: (T,).
        start: First value that is forecast.
    """
    forecaster.fit(series[:start])
    return forecaster.forecast(series[:start], len(series) - start)
