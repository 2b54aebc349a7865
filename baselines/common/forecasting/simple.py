"""Forecasts without a model."""

from __future__ import annotations

import numpy as np

from serving_gym.baselines.common.forecasting.series import FloatArray, as_series, filled


class LastValue:
    """All goes on as it is: the constant predictor of Dynamo's planner."""

    def fit(self, series: FloatArray) -> None:
        """Nothing is learned."""

    def forecast(self, past: FloatArray, steps: int) -> FloatArray:
        """(steps,), the last known value."""
        return np.full(steps, filled(as_series(past))[-1])


class MovingMean:
    """The mean of the last values.

    Args:
        window: How many. Source of the default: ours, an hour of ten-minute windows.
    """

    def __init__(self, window: int = 6) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.window = window

    def fit(self, series: FloatArray) -> None:
        """Nothing is learned."""

    def forecast(self, past: FloatArray, steps: int) -> FloatArray:
        """(steps,), the mean of the known ones among the last values."""
        return np.full(steps, filled(as_series(past))[-self.window :].mean())


class SeasonalNaive:
    """What was a season ago; before the first season is over, the last value.

    Args:
        season: Steps of a season.
    """

    def __init__(self, season: int) -> None:
        if season < 1:
            raise ValueError(f"season must be at least 1, got {season}")
        self.season = season

    def fit(self, series: FloatArray) -> None:
        """Nothing is learned."""

    def forecast(self, past: FloatArray, steps: int) -> FloatArray:
        """(steps,), values a season before."""
        known = filled(as_series(past))
        if len(known) < self.season:
            return np.full(steps, known[-1])
        return np.asarray(np.resize(known[-self.season :], steps))
