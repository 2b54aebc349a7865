import numpy as np
import pytest

from serving_gym.calibration.fitting.bayes import Prior, fit_map


def test_measurements_win_over_a_wide_prior():
    x = np.linspace(0.0, 1.0, 50)
    measured = 2.0 + 3.0 * x
    priors = [Prior("level", 0.0, 10.0, -50.0), Prior("slope", 0.0, 10.0, -50.0)]
    found = fit_map(priors, lambda p: (p["level"] + p["slope"] * x - measured) / 0.01)
    assert found == pytest.approx({"level": 2.0, "slope": 3.0}, rel=0.01)


def test_what_nothing_measures_stays_at_its_prior():
    found = fit_map(
        [Prior("seen", 1.0, 1.0), Prior("unseen", 0.7, 0.1)], lambda p: np.array([p["seen"] - 3.0]) / 0.01
    )
    assert found["unseen"] == pytest.approx(0.7)
    assert found["seen"] == pytest.approx(3.0, abs=0.05)


def test_bounds_hold_and_odd_rows_count_less():
    rows = np.array([-1.0] * 20)
    assert fit_map([Prior("x", 0.5, 1.0, 0.0)], lambda p: (p["x"] - rows) / 0.1)["x"] == 0.0
    rows = np.array([1.0] * 20 + [50.0])
    assert fit_map([Prior("x", 0.0, 10.0)], lambda p: (p["x"] - rows) / 0.1)["x"] == pytest.approx(
        1.0, abs=0.1
    )
