"""Scores of forecasters on real series."""

import os

import numpy as np
import pytest

from serving_gym.runners.reproduction.forecasts import METHODS, MODES, RealSeries, real_series, score


def test_scores_by_hand():
    """Of 1, 2, ..., 8 the second half is 5 to 8; the last value errs by 1 / actual, or by 2, or stays at 4."""
    series = RealSeries("Azure code, prompt tokens", "code", 600.0, 0.0, np.arange(1.0, 9.0))
    found = {one.mode: one for one in score(series, "last_value")}
    assert tuple(found) == MODES
    assert found["next"].mean_ape == pytest.approx(np.mean([1 / 5, 1 / 6, 1 / 7, 1 / 8]))
    assert found["after next"].max_ape == pytest.approx(2 / 5)
    assert found["whole half"].max_ape == pytest.approx(4 / 8)
    assert found["next"].paper is None


def test_the_paper_stands_beside_prompts_of_its_services_alone():
    pytest.importorskip("statsmodels")
    values = 100 + np.random.default_rng(0).normal(size=80)
    for name, paper in (("Azure conv, prompt tokens", (0.1593, 0.7395)), ("Azure conv, requests", None)):
        (found,) = score(RealSeries(name, "conv", 1221.0, 0.0, values), "ets", ["whole half"])
        assert found.paper == paper
    assert "mlstm" in METHODS


@pytest.mark.skipif("SERVING_GYM_DATA" not in os.environ, reason="reads the reference data")
def test_real_series_are_evenly_spaced_and_gaps_are_left_out():
    series = {one.name: one for one in real_series()}
    assert len(series) == 8
    middle = series["ServeGen m-mid, requests"]
    assert (len(middle.values), middle.step_s) == (1440, 600.0)
    assert 60 < np.isnan(middle.values).sum() < 90
    code = series["Azure code, prompt tokens"]
    assert code.step_s == pytest.approx(1221, abs=2)
    assert code.origin_s // 86_400 == 4  # a Friday
    assert "Azure code, answer tokens" not in series
