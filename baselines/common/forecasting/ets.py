"""Exponential smoothing, ETS (Hyndman et al.), by statsmodels."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving_gym.baselines.common.forecasting.series import FloatArray, as_series, filled, library


@dataclass(frozen=True)
class EtsConfig:
    """Which terms there are: errors, trend and season are additive.

    Attributes:
        trend: Whether there is a trend. Source: ours.
        damped: Whether it dies out. Source: ours.
        season: Steps of a season; 0: none. Source of the default: ours, as PreServe's ETS does hardly better than its
            ARIMA (Table 1) and speaks of no season.
    """

    trend: bool = True
    damped: bool = True
    season: int = 0

    def __post_init__(self) -> None:
        if self.season < 0 or self.season == 1:
            raise ValueError(f"season must be 0 or at least 2, got {self.season}")


class Ets:
    """Exponential smoothing of a series.

    Args:
        config: Its terms; None: the defaults.

    Raises:
        ValueError: statsmodels is not installed.
    """

    def __init__(self, config: EtsConfig | None = None) -> None:
        self.config = config or EtsConfig()
        self._model = library("statsmodels.tsa.exponential_smoothing.ets").ETSModel
        self._params: FloatArray | None = None

    def fit(self, series: FloatArray) -> None:
        """Finds the smoothing parameters of the highest likelihood.

        Raises:
            ValueError: There are fewer than 10 values, or two seasons and 10 where there is a season.
        """
        values = filled(as_series(series, 10 + 2 * self.config.season))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._params = np.asarray(self._build(values).fit(disp=False).params)

    def forecast(self, past: FloatArray, steps: int) -> FloatArray:
        """(steps,), after smoothing the whole past with the parameters of the fit.

        Raises:
            ValueError: It is not fitted.
        """
        if self._params is None:
            raise ValueError("the forecaster is not fitted")
        values = filled(as_series(past, 10 + 2 * self.config.season))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            smoothed = self._build(values).smooth(self._params)
        return np.asarray(np.maximum(smoothed.forecast(steps), 0.0), np.float64)

    def _build(self, values: FloatArray) -> Any:
        config = self.config
        return self._model(
            values,
            error="add",
            trend="add" if config.trend else None,
            damped_trend=config.trend and config.damped,
            seasonal="add" if config.season else None,
            seasonal_periods=config.season or None,
            initialization_method="heuristic",
        )
