"""Prophet (Taylor and Letham, 2018): a trend and seasons, fitted to all that is known.

By its own rule a daily season is fitted where the past is two days long, a weekly one where it is two weeks long.

It looks at the time alone: what happened since the fit does not change a forecast.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pandas as pd

from serving_gym.baselines.common.forecasting.series import FloatArray, as_series, library

_ORIGIN = pd.Timestamp("2024-01-01")  # a Monday: the calendar only sets the phase of the weekly season


def _silence(name: str) -> None:
    """Keeps a logger quiet that reports every fit, or that there is no plotly."""
    logger = logging.getLogger(name)
    logger.setLevel(logging.CRITICAL)
    logger.addHandler(
        logging.NullHandler()
    )  # without a handler cmdstanpy would set up its own, and another level


class ProphetForecaster:
    """Prophet with its default settings.

    Args:
        step_s: Seconds between two values.
        origin_s: Time of the first value, seconds since Monday, 0:00.

    Raises:
        ValueError: prophet is not installed, or `step_s` is not positive.
    """

    def __init__(self, step_s: float, origin_s: float = 0.0) -> None:
        if not step_s > 0:
            raise ValueError(f"step_s must be positive, got {step_s}")
        for name in ("prophet", "prophet.plot", "cmdstanpy"):
            _silence(name)
        self._prophet = library("prophet").Prophet
        self.step_s, self.origin_s = step_s, origin_s
        self._fitted: Any = None

    def fit(self, series: FloatArray) -> None:
        """Fits trend and seasons; missing values are left out.

        Raises:
            ValueError: There are fewer than two values.
        """
        values = as_series(series, 2)
        self._fitted = self._prophet(uncertainty_samples=0)
        self._fitted.fit(pd.DataFrame({"ds": self._times(0, len(values)), "y": values}), seed=0)

    def forecast(self, past: FloatArray, steps: int) -> FloatArray:
        """(steps,), what the time says.

        Raises:
            ValueError: It is not fitted.
        """
        if self._fitted is None:
            raise ValueError("the forecaster is not fitted")
        ahead = self._fitted.predict(pd.DataFrame({"ds": self._times(len(past), steps)}))["yhat"]
        return np.asarray(np.maximum(ahead, 0.0), np.float64)

    def _times(self, first: int, count: int) -> Any:
        seconds = self.origin_s + self.step_s * np.arange(first, first + count)
        return _ORIGIN + pd.to_timedelta(seconds, unit="s")
