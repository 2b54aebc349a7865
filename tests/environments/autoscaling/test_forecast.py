"""The environment's own forecast of traffic."""

import numpy as np

from serving_gym.envs.autoscaling.forecast import forecast_tps, unrest, usual_tps

HOUR, WEEK = 3600.0, 7 * 24


def test_what_is_usual_is_the_mean_of_two_hours_a_week_ago():
    """Bins of an hour: a week ago the hour before now had 7200 tokens, the hour after it 3600."""
    tokens = np.full((1, WEEK + 1), 36_000.0)
    tokens[0, :2] = 7200.0, 3600.0
    np.testing.assert_allclose(usual_tps(tokens, HOUR), [1.5])


def test_without_a_season_the_last_hour_is_usual():
    tokens = np.array([[3600.0, 3600.0, 7200.0], [0.0, 0.0, 3600.0]])
    np.testing.assert_allclose(usual_tps(tokens, HOUR), [2.0, 1.0])


def test_what_is_expected_is_last_week_by_the_last_hour():
    """Twice as much came in the last hour as a week ago: so it is expected of the next."""
    tokens = np.full((1, WEEK + 1), 3600.0)
    tokens[0, 0], tokens[0, 1], tokens[0, -1] = 1800.0, 2700.0, 3600.0
    np.testing.assert_allclose(forecast_tps(tokens, HOUR, HOUR), [1.5])


def test_unrest_is_how_far_quarters_of_an_hour_differ():
    """Bins of five minutes. The first endpoint's quarters differ by factors of e, of e^3 or not at all."""
    swings = np.repeat(1e6 * np.exp(np.cumsum([0, 1, -3, 3, -1] * 4)), 3)
    tokens = np.stack([swings, np.full(60, 1e6)])
    np.testing.assert_allclose(unrest(tokens, 300.0), [np.sqrt(80 / 19), 0.0], atol=1e-5)
    a_day = np.concatenate([swings, np.full(288, 1e6)])[None]
    np.testing.assert_allclose(unrest(a_day, 300.0), [0.0], atol=1e-6, err_msg="more than a day ago")


def test_of_half_an_hour_at_least_is_unrest_known():
    np.testing.assert_array_equal(unrest(np.array([[1.0, 1e6, 1.0, 1e6, 1e6]]), 300.0), [0.0])
