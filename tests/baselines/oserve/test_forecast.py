"""Workload types and forecasts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serving_gym.baselines.oserve.forecast import (
    Forecaster,
    MovingAverage,
    forecasts,
    padded,
    rrmse,
    split,
    windows,
)
from serving_gym.baselines.oserve.lstm import LstmConfig, TotalLstm, TypeLstm
from serving_gym.envs.deployment.workload_types import count_by_span, find_types

SMALL = LstmConfig(history=12, hidden=12, epochs=15, batch_size=64, learning_rate=1e-2)


def requests(seed: int = 0, each: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Four clusters of lengths far apart, mixed; their lengths and which they come from."""
    random = np.random.default_rng(seed)
    means = np.array([(100, 30), (100, 600), (2000, 30), (2000, 600)])
    source = random.permutation(np.repeat(np.arange(4), each))
    lengths = np.rint(means[source] * np.exp(random.normal(0, 0.2, (4 * each, 2)))).astype(int)
    return lengths[:, 0], lengths[:, 1], source


def test_types_that_are_there_are_found_and_named():
    inputs, outputs, source = requests()
    types = find_types(inputs, outputs)
    np.testing.assert_array_equal(types.classify(inputs, outputs), source)
    assert types.names == ("SISO", "SILO", "LISO", "LILO")
    np.testing.assert_allclose(types.mean_tokens, [(100, 30), (100, 600), (2000, 30), (2000, 600)], rtol=0.05)


def test_types_do_not_depend_on_the_order_of_requests():
    inputs, outputs, _ = requests()
    order = np.random.default_rng(1).permutation(len(inputs))
    one, two = find_types(inputs, outputs), find_types(inputs[order], outputs[order])
    np.testing.assert_array_equal(one.centroids, two.centroids)


def test_on_the_plain_scale_lengths_are_means():
    types = find_types([10, 12, 1000, 1010], [5, 5, 5, 5], num_types=2, logarithmic=False)
    np.testing.assert_allclose(types.mean_tokens, [(11, 5), (1005, 5)])


def test_fewer_requests_than_types_are_refused():
    with pytest.raises(ValueError, match="between 1 and the 1 different requests, got 4"):
        find_types([10, 10], [5, 5])


def test_requests_are_counted_by_span_and_type():
    arrival, labels = [0.0, 59.9, 60.0, 61.0, 185.0], [0, 1, 0, 0, 1]
    expected = [[1, 1], [2, 0], [0, 0], [0, 1]]
    np.testing.assert_array_equal(count_by_span(arrival, labels, 2), expected)
    np.testing.assert_array_equal(count_by_span(arrival, labels, 2, until_s=179.0), expected[:2])


def test_windows_are_what_precedes_a_span():
    counts = np.arange(10.0).reshape(5, 2)
    np.testing.assert_array_equal(windows(counts, 3)[0], counts[:3])
    assert windows(counts, 3).shape == (2, 3, 2)
    np.testing.assert_array_equal(padded(counts[:1], 3), counts[[0, 0, 0]])
    with pytest.raises(ValueError, match="more than 5 spans"):
        windows(counts, 5)


def test_moving_average_and_rrmse_by_hand():
    """Means of two: 1.5, 2.5 against 3, 4: errors 1.5, over a mean of 3.5."""
    series = np.array([[1.0], [2.0], [3.0], [4.0]])
    predicted = forecasts(MovingAverage(2), series)
    np.testing.assert_allclose(predicted, [[1.5], [2.5]])
    np.testing.assert_allclose(rrmse(predicted, series[2:]), [1.5 / 3.5])
    assert MovingAverage(2).predict(series[:1]) == 1.0
    with pytest.raises(ValueError, match="history must be at least 1"):
        MovingAverage(0)


def test_nine_tenths_train_and_the_rest_tests_with_its_history():
    counts = np.arange(200.0)[:, None]
    train, test = split(counts, 12)
    assert (len(train), len(windows(test, 12))) == (180, 20)


def waves(spans: int = 400) -> np.ndarray:
    """Two types whose rates swing against each other, so that the total says little; Poisson counts."""
    swing = 0.6 * np.sin(2 * np.pi * np.arange(spans) / 20)
    return (
        np.random.default_rng(3)
        .poisson(np.stack([300 * (1 + swing), 300 * (1 - swing)], axis=1))
        .astype(float)
    )


def test_a_network_a_type_sees_what_an_average_and_the_total_do_not():
    """Section 6.3: type by type the error is a fraction of that of a moving average or of the total alone."""
    train, test = split(waves(), SMALL.history)
    error = {}
    makers: dict[str, Forecaster] = {
        "types": TypeLstm(SMALL),
        "total": TotalLstm(SMALL),
        "average": MovingAverage(SMALL.history),
    }
    for name, forecaster in makers.items():
        forecaster.fit(train)
        predicted = forecasts(forecaster, test)
        assert predicted.shape == (40, 2)
        assert (predicted >= 0).all()
        error[name] = rrmse(predicted, test[SMALL.history :]).mean()
    assert error["types"] < 0.5 * min(error["total"], error["average"])
    assert error["types"] < 0.15


def test_a_seed_gives_the_same_network_and_leaves_torch_alone():
    counts = waves(60)
    torch.manual_seed(5)
    expected, threads = torch.rand(1), torch.get_num_threads()
    torch.manual_seed(5)
    first = []
    for _ in range(2):
        forecaster = TypeLstm(LstmConfig(history=8, hidden=4, epochs=2), seed=7)
        forecaster.fit(counts)
        first.append(forecaster.predict(counts))
    np.testing.assert_array_equal(*first)
    assert torch.rand(1) == expected
    assert torch.get_num_threads() == threads


def test_a_forecaster_for_other_types_is_refused():
    with pytest.raises(ValueError, match="fitted to 0 types, past has 2"):
        TypeLstm(SMALL).predict(waves(20))
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        LstmConfig(epochs=0)
