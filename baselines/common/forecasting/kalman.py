"""A local linear trend followed by a Kalman filter: the planner of Dynamo offers it for bursty traffic."""

from __future__ import annotations

import warnings

import numpy as np

from serving_gym.baselines.common.forecasting.series import FloatArray, as_series, library


class KalmanTrend:
    """Level and slope that wander; their variances by maximum likelihood (statsmodels).

    Args:
        filter_points: Most recent values from which a forecast starts. Source: ours.

    Raises:
        ValueError: statsmodels is not installed.
    """

    def __init__(self, filter_points: int = 144) -> None:
        self._model = library("statsmodels.tsa.statespace.structural").UnobservedComponents
        self.filter_points = filter_points
        self._params: FloatArray | None = None
        self._scale = 1.0

    def fit(self, series: FloatArray) -> None:
        """Finds the variances of level, slope and noise.

        Raises:
            ValueError: There are fewer than 5 values.
        """
        values = as_series(series, 5)
        self._scale = float(np.nanmax(np.abs(values))) or 1.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._params = np.asarray(self._model(values / self._scale, "lltrend").fit(disp=False).params)

    def forecast(self, past: FloatArray, steps: int) -> FloatArray:
        """(steps,), along the present slope.

        Raises:
            ValueError: It is not fitted.
        """
        if self._params is None:
            raise ValueError("the forecaster is not fitted")
        recent = as_series(past)[-self.filter_points :] / self._scale
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ahead = self._model(recent, "lltrend").filter(self._params).forecast(steps)
        return np.asarray(np.maximum(ahead * self._scale, 0.0), np.float64)
