"""ARIMA with orders by AIC (Box and Jenkins), by statsmodels.

AIC compares models of one and the same series, so that it chooses p and q; how often the series is differenced before
is said by the augmented Dickey-Fuller test, which SageServe's public notebook imports for it. Which orders are tried,
the test's level and how much of the past is looked at are ours.

An ARIMA without a season forgets the daily shape within its first steps. With a season, differences to the value a
season ago are modelled and added to it: ARIMA(p, d, q)(0, 1, 0).
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving_gym.baselines.common.forecasting.series import FloatArray, as_series, filled, library
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_within


@dataclass(frozen=True)
class ArimaConfig:
    """How an ARIMA is fitted.

    Attributes:
        max_p: Most autoregressive terms. Source: ours.
        max_d: Most differences. Source: ours.
        max_q: Most moving-average terms. Source: ours.
        season: Steps of a season; 0: none. Source of the default: SageServe, section 6.3, speaks of no season.
        level: Of the augmented Dickey-Fuller test: while it cannot reject a unit root there, one difference more is
            taken. Source: the usual 5 %.
        fit_points: Most recent values that it is fitted to. Source: ours.
        filter_points: Most recent values from which a forecast starts. Source: ours.
    """

    max_p: int = 3
    max_d: int = 1
    max_q: int = 2
    season: int = 0
    level: float = 0.05
    fit_points: int = 1008
    filter_points: int = 144

    def __post_init__(self) -> None:
        check_not_negative(self, "max_p", "max_d", "max_q", "season")
        check_within(self, "(0, 1)", "level")
        check_at_least(self, 20, "fit_points", "filter_points")


class Arima:
    """ARIMA(p, d, q) of a series.

    Attributes:
        order: (p, d, q) of the last fit; None before it.
        aic: Of that fit.

    Args:
        config: How it is fitted; None: the defaults.

    Raises:
        ValueError: statsmodels is not installed.
    """

    def __init__(self, config: ArimaConfig | None = None) -> None:
        self.config = config or ArimaConfig()
        self._model = library("statsmodels.tsa.arima.model").ARIMA
        self._adfuller = library("statsmodels.tsa.stattools").adfuller
        self.order: tuple[int, int, int] | None = None
        self.aic = float("inf")
        self._params: FloatArray = np.zeros(0)
        self._scale = 1.0

    def fit(self, series: FloatArray) -> None:
        """Chooses d by the test, p and q by the lowest AIC, and fits.

        Raises:
            ValueError: There are fewer than 20 values (a season besides, where there is one).
        """
        values = self._deseasoned(as_series(series, 20 + self.config.season))[-self.config.fit_points :]
        self._scale = float(np.nanstd(values)) or 1.0  # so that the optimiser starts at the right size
        scaled = values / self._scale
        d = self._differences(filled(scaled))
        self.aic = float("inf")
        for p, q in itertools.product(range(self.config.max_p + 1), range(self.config.max_q + 1)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of starting values and of optimisers that stop early
                try:
                    found = self._build(scaled, (p, d, q)).fit()
                except (np.linalg.LinAlgError, ValueError):
                    continue  # this order cannot be fitted to this series
            if np.isfinite(found.aic) and found.aic < self.aic:
                self.aic, self.order, self._params = float(found.aic), (p, d, q), np.asarray(found.params)

    def forecast(self, past: FloatArray, steps: int) -> FloatArray:
        """(steps,), from the last values of the past with the parameters of the fit.

        Raises:
            ValueError: It is not fitted.
        """
        if self.order is None:
            raise ValueError("the forecaster is not fitted")
        series = as_series(past, 1 + self.config.season)
        recent = self._deseasoned(series)[-self.config.filter_points :] / self._scale
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ahead = self._build(recent, self.order).filter(self._params).forecast(steps) * self._scale
        if self.config.season:
            season = filled(series)[-self.config.season :]
            whole = ahead + np.resize(season, steps)
        else:
            whole = ahead
        return np.asarray(np.maximum(whole, 0.0), np.float64)

    def _build(self, values: FloatArray, order: tuple[int, int, int]) -> Any:
        return self._model(values, order=order, enforce_stationarity=True, enforce_invertibility=True)

    def _deseasoned(self, series: FloatArray) -> FloatArray:
        season = self.config.season
        return series[season:] - series[:-season] if season else series

    def _differences(self, values: FloatArray) -> int:
        for d in range(self.config.max_d):
            differenced = np.diff(values, d)
            if np.ptp(differenced) == 0 or self._unit_root_p(differenced) < self.config.level:
                return d
        return self.config.max_d

    def _unit_root_p(self, values: FloatArray) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # that a later release returns an object that can be indexed as well
            return float(self._adfuller(values)[1])
