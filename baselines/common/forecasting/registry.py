"""Forecasters by name."""

from __future__ import annotations

from collections.abc import Callable

from serving_gym.baselines.common.forecasting.arima import Arima, ArimaConfig
from serving_gym.baselines.common.forecasting.ets import Ets, EtsConfig
from serving_gym.baselines.common.forecasting.kalman import KalmanTrend
from serving_gym.baselines.common.forecasting.prophet import ProphetForecaster
from serving_gym.baselines.common.forecasting.series import SeriesForecaster
from serving_gym.baselines.common.forecasting.simple import LastValue, MovingMean, SeasonalNaive
from serving_gym.calibration.lookup import check_choice

DAY_S = 86_400.0


def _day(step_s: float) -> int:
    return max(2, round(DAY_S / step_s))


FORECASTERS: dict[str, Callable[[float, float], SeriesForecaster]] = {
    "last_value": lambda step_s, origin_s: LastValue(),
    "moving_mean": lambda step_s, origin_s: MovingMean(),
    "seasonal_naive": lambda step_s, origin_s: SeasonalNaive(_day(step_s)),
    "arima": lambda step_s, origin_s: Arima(),
    "arima_daily": lambda step_s, origin_s: Arima(ArimaConfig(season=_day(step_s))),
    "ets": lambda step_s, origin_s: Ets(),
    "ets_daily": lambda step_s, origin_s: Ets(EtsConfig(season=_day(step_s))),
    "prophet": lambda step_s, origin_s: ProphetForecaster(step_s, origin_s),
    "kalman": lambda step_s, origin_s: KalmanTrend(),
}


def make_forecaster(name: str, step_s: float, origin_s: float = 0.0) -> SeriesForecaster:
    """A forecaster by name.

    Args:
        name: One of `FORECASTERS`; "daily" stands for a season of a day.
        step_s: Seconds between two values.
        origin_s: Time of the first value, seconds since Monday, 0:00.

    Raises:
        ValueError: There is none of that name, or its library is not installed.
    """
    check_choice("forecaster", name, FORECASTERS)
    return FORECASTERS[name](step_s, origin_s)
