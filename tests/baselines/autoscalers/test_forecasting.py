"""Forecasters of one series."""

import importlib

import numpy as np
import pytest

from serving_gym.baselines.common.forecasting.arima import Arima, ArimaConfig
from serving_gym.baselines.common.forecasting.ets import Ets, EtsConfig
from serving_gym.baselines.common.forecasting.registry import FORECASTERS, make_forecaster
from serving_gym.baselines.common.forecasting.series import (
    filled,
    library,
    one_shot,
    percentage_errors,
    rolling,
)
from serving_gym.baselines.common.forecasting.simple import LastValue, MovingMean, SeasonalNaive

TEN_MINUTES = 600.0
DAY = 144


def daily(days: int = 4, noise: float = 0.0) -> np.ndarray:
    """A daily wave between 40 and 160."""
    wave = 100 + 60 * np.sin(2 * np.pi * np.arange(days * DAY) / DAY)
    return wave + noise * np.random.default_rng(0).normal(size=len(wave))


def autoregressive(coefficient: float = 0.8, mean: float = 50.0, points: int = 400) -> np.ndarray:
    noise = np.random.default_rng(1).normal(size=points)
    values = np.zeros(points)
    for step in range(1, points):
        values[step] = coefficient * values[step - 1] + noise[step]
    return mean + values


def test_errors_by_hand():
    """|90 - 100| / 100 and |30 - 20| / 20; zero and missing values count for nothing."""
    errors = percentage_errors([90, 30, 5, 7], [100, 20, 0, np.nan])
    assert (errors.mean, errors.max) == pytest.approx((0.3, 0.5))
    with pytest.raises(ValueError, match="at least one positive"):
        percentage_errors([1.0], [0.0])


def test_gaps_are_bridged_along_straight_lines():
    np.testing.assert_allclose(filled(np.array([np.nan, 1, np.nan, np.nan, 4])), [1, 1, 2, 3, 4])


def test_simple_forecasters_by_hand():
    past = np.array([1.0, 2.0, 3.0, 4.0, np.nan])
    np.testing.assert_array_equal(LastValue().forecast(past, 2), [4, 4])
    np.testing.assert_array_equal(MovingMean(3).forecast(past, 2), [11 / 3, 11 / 3])
    np.testing.assert_array_equal(SeasonalNaive(3).forecast(past[:4], 5), [2, 3, 4, 2, 3])
    np.testing.assert_array_equal(SeasonalNaive(9).forecast(past[:4], 2), [4, 4])
    for make in (MovingMean, SeasonalNaive):
        with pytest.raises(ValueError, match="must be at least 1"):
            make(0)


def test_rolling_forecasts_know_nothing_later():
    series = np.arange(1.0, 7.0)
    np.testing.assert_array_equal(rolling(LastValue(), series, 3), [3, 4, 5])
    np.testing.assert_array_equal(rolling(LastValue(), series, 3, ahead=2), [2, 3, 4])
    np.testing.assert_array_equal(one_shot(LastValue(), series, 3), [3, 3, 3])
    for start, ahead in ((0, 1), (6, 1), (1, 2), (3, 0)):
        with pytest.raises(ValueError, match="must"):
            rolling(LastValue(), series, start, ahead)


def test_refits_see_all_that_is_known_then():
    fitted = []

    class Recorder(LastValue):
        def fit(self, series):
            fitted.append(len(series))

    rolling(Recorder(), np.arange(10.0), 4, ahead=2, refit_every=3)
    assert fitted == [4, 6]


def test_arima_finds_the_order_and_the_coefficient():
    series = autoregressive()
    arima = Arima(ArimaConfig(max_p=1, max_q=1))
    arima.fit(series)
    assert arima.order is not None
    assert arima.order[:2] == (1, 0)
    ahead = arima.forecast(series, 200)
    deviation = series[-1] - 50
    assert ahead[0] == pytest.approx(50 + 0.8 * deviation, abs=0.4)
    assert ahead[-1] == pytest.approx(50, abs=0.6)


def test_arima_differences_what_wanders():
    walk = 1000 + np.cumsum(np.random.default_rng(2).normal(size=300))
    arima = Arima(ArimaConfig(max_p=0, max_q=0))
    arima.fit(walk)
    assert arima.order == (0, 1, 0)
    np.testing.assert_allclose(arima.forecast(walk, 3), walk[-1], rtol=1e-6)


def test_a_season_carries_the_daily_shape():
    series = daily(noise=1.0)
    plain, seasonal = Arima(ArimaConfig(max_p=1, max_q=0)), Arima(ArimaConfig(max_p=1, max_q=0, season=DAY))
    errors = [
        percentage_errors(one_shot(f, series, 3 * DAY), series[3 * DAY :]).mean for f in (plain, seasonal)
    ]
    assert errors[1] < 0.05 < errors[0]


def test_ets_by_hand():
    """Without trend, a constant stays; with a daily season, the shape does."""
    constant = Ets(EtsConfig(trend=False))
    constant.fit(np.full(40, 7.0) + 1e-3 * np.random.default_rng(0).normal(size=40))
    np.testing.assert_allclose(constant.forecast(np.full(40, 7.0), 3), 7, rtol=1e-2)
    series = daily(noise=0.5)[:: DAY // 24]
    shape = Ets(EtsConfig(season=24))
    assert percentage_errors(one_shot(shape, series, 72), series[72:]).mean < 0.05


def test_prophet_learns_the_day_and_looks_at_the_time_alone():
    pytest.importorskip("prophet")
    series = daily(6, noise=1.0)[::3]
    prophet = make_forecaster("prophet", 3 * TEN_MINUTES)
    predicted = one_shot(prophet, series, len(series) // 2)
    assert percentage_errors(predicted, series[len(series) // 2 :]).mean < 0.1
    other = np.zeros(len(series) // 2)
    np.testing.assert_array_equal(prophet.forecast(other, 4), predicted[:4])


def test_kalman_follows_a_slope():
    series = 10 + 2 * np.arange(60.0) + 0.1 * np.random.default_rng(0).normal(size=60)
    kalman = make_forecaster("kalman", TEN_MINUTES)
    kalman.fit(series)
    np.testing.assert_allclose(kalman.forecast(series, 3), series[-1] + 2 * np.arange(1, 4), atol=1.0)


@pytest.mark.parametrize("name", ["arima", "ets", "prophet", "kalman"])
def test_forecasts_are_asked_for_after_a_fit(name):
    pytest.importorskip("prophet" if name == "prophet" else "statsmodels")
    with pytest.raises(ValueError, match="not fitted"):
        make_forecaster(name, TEN_MINUTES).forecast(daily(1), 1)


def test_a_missing_library_is_named(monkeypatch):
    def refuse(name, *args):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(ValueError, match=r"needs prophet.*serving-gym\[forecast\]"):
        library("prophet")


def test_mistakes_are_named():
    assert "prophet" in FORECASTERS
    with pytest.raises(ValueError, match="did you mean 'arima'"):
        make_forecaster("arma", TEN_MINUTES)
    for config, name in (
        ({"max_p": -1}, "max_p"),
        ({"level": 1.0}, "level"),
        ({"fit_points": 5}, "fit_points"),
    ):
        with pytest.raises(ValueError, match=name):
            ArimaConfig(**config)
    with pytest.raises(ValueError, match="season"):
        EtsConfig(season=1)
    with pytest.raises(ValueError, match="at least 20 values"):
        Arima().fit(np.ones(5))
