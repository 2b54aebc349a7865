import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from serving_gym.runners.comparison.statistics import (
    Improvement,
    bootstrap_interval,
    holm,
    interquartile_mean,
    mean,
    over_strata,
    paired_p_value,
    probability_of_improvement,
    relative_improvement,
)

finite = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


def test_interquartile_mean_by_hand() -> None:
    assert interquartile_mean([100, 1, 2, 3, 4, 5, 6, -100]) == pytest.approx(3.5)  # of 2, 3, 4, 5
    assert interquartile_mean([7.0]) == 7.0
    assert interquartile_mean([1, 2, 3, math.inf]) == 2.5
    assert interquartile_mean([1, math.inf, math.inf, math.inf]) == math.inf
    np.testing.assert_allclose(interquartile_mean([[1, 2, 3, 4], [0, 10, 20, 90]]), [2.5, 15.0])


@given(finite)
def test_interquartile_mean_is_scipys_trimmed_mean(values: list[float]) -> None:
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25), rel=1e-9, abs=1e-6)


def test_bootstrap_interval_covers_the_normal_theory() -> None:
    values = np.random.default_rng(1).normal(5.0, 2.0, 400)
    low, high = bootstrap_interval([values], statistic=lambda x: x.mean(axis=-1))
    half = 1.96 * values.std() / math.sqrt(values.size)
    assert low == pytest.approx(values.mean() - half, abs=0.03)
    assert high == pytest.approx(values.mean() + half, abs=0.03)


def test_strata_and_blocks_are_kept_together() -> None:
    constant = [np.zeros(5), np.ones(5)]  # nothing varies inside a stratum
    assert bootstrap_interval(constant, statistic=lambda x: x.mean(axis=-1)) == (0.5, 0.5)
    blocks = np.tile([0.0, 10.0], (8, 1))  # all variation is inside the blocks
    assert bootstrap_interval([blocks], statistic=lambda x: x.mean(axis=-1)) == (5.0, 5.0)
    low, high = bootstrap_interval([blocks.ravel()], statistic=lambda x: x.mean(axis=-1))
    assert low < 5.0 < high


def test_bootstrap_is_reproducible_and_refuses_nothing() -> None:
    values = [1.0, 4.0, 2.0, 8.0, math.inf]
    assert bootstrap_interval([values], seed=3) == bootstrap_interval([values], seed=3)
    with pytest.raises(ValueError, match="at least one value"):
        bootstrap_interval([[]])
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        bootstrap_interval([[1.0]], level=95)


def test_probability_of_improvement_by_hand() -> None:
    assert probability_of_improvement([3, 2, 1, 5], [1, 2, 3, 4]) == pytest.approx((1 + 0.5 + 0 + 1) / 4)
    with pytest.raises(ValueError, match="one length"):
        probability_of_improvement([1.0], [1.0, 2.0])


@given(finite)
def test_both_directions_add_up_to_one(values: list[float]) -> None:
    others = list(reversed(values))
    total = probability_of_improvement(values, others) + probability_of_improvement(others, values)
    assert total == pytest.approx(1.0)


def test_holm_by_hand() -> None:
    # Holm (1979): 0.01 * 4, then 0.02 * 3 = 0.06, then max(0.06, 0.03 * 2), then max(0.06, 0.04)
    assert holm({"d": 0.04, "a": 0.01, "c": 0.03, "b": 0.02}) == pytest.approx(
        {"d": 0.06, "a": 0.04, "c": 0.06, "b": 0.06}
    )
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_relative_improvement_of_negative_returns() -> None:
    gain = relative_improvement([-8.0, -9.5, -7.0, -8.0], [-10.0, -10.0, -10.0, -10.0])
    assert gain.iqm == pytest.approx(0.2)
    assert gain.mean == pytest.approx(0.1875)
    assert 0.05 <= gain.ci95[0] <= 0.2 <= gain.ci95[1] <= 0.3
    assert relative_improvement([0.0, 0.0], [0.0, 0.0]) == Improvement(0.0, (0.0, 0.0), 0.0, (0.0, 0.0))


def test_each_stratum_counts_as_often_as_it_has_values() -> None:
    strata = [np.array([1.0, 1.0, 1.0, 100.0]), np.array([-5.0])]
    assert over_strata(strata) == pytest.approx(0.8 * 1.0 - 0.2 * 5.0)
    assert over_strata(strata, mean) == pytest.approx(98.0 / 5)
    np.testing.assert_allclose(over_strata([np.tile(each, (3, 1)) for each in strata]), [-0.2] * 3)


def test_paired_p_value() -> None:
    assert paired_p_value([1, 2, 3], [1, 2, 3]) == 1.0
    better = np.arange(10.0) + 1
    assert paired_p_value(better, better - np.linspace(0.1, 1.0, 10)) == pytest.approx(2 / 2**10)
