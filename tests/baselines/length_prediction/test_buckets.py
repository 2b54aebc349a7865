"""mu-Serve's buckets of length."""

import numpy as np
import pytest

from serving_gym.baselines.mu_serve.buckets import percentile_buckets
from serving_gym.baselines.mu_serve.config import MuServePredictorConfig

PERCENTILES = MuServePredictorConfig().percentiles


def test_worked_example():
    """Of 1 to 101, the percentiles 25, 50, 75 and 99 are 26, 51, 76 and 100."""
    buckets = percentile_buckets(np.arange(1.0, 102.0), PERCENTILES)
    assert buckets.edges == (26.0, 51.0, 76.0, 100.0)
    assert buckets.counts == (25, 25, 25, 24, 2)
    # 1 to 25, 26 to 50, 51 to 75, 76 to 99, and 100 with 101.
    assert buckets.medians == (13.0, 38.0, 63.0, 87.5, 100.5)
    assert buckets.of(np.array([1.0, 25.9, 26.0, 99.0, 100.0, 9000.0])).tolist() == [0, 0, 1, 3, 4, 4]


@pytest.mark.parametrize(
    ("lengths", "edges", "counts", "medians"),
    [
        ([5, 5, 5, 5], (), (4,), (5,)),  # all edges are 5: nothing is below them
        ([9], (), (1,), (9,)),
        ([1, 1, 1, 1, 1, 1, 1, 8], (7.51,), (7, 1), (1, 8)),  # 25, 50 and 75 coincide
        ([1, 100], (25.75,), (1, 1), (1, 100)),  # 25.75, 50.5, 75.25, 99.01: all but one side are empty
    ],
)
def test_no_bucket_is_empty(lengths, edges, counts, medians):
    buckets = percentile_buckets(np.array(lengths, dtype=float), PERCENTILES)
    assert len(buckets.edges) == len(edges)
    assert buckets.counts == counts
    assert buckets.medians == medians
    assert np.bincount(buckets.of(np.array(lengths, dtype=float))).tolist() == list(counts)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"percentiles": (50.0, 25.0)}, "predictor.percentiles must be ascending and between 0 and 100"),
        ({"percentiles": (0.0, 25.0)}, "predictor.percentiles must be ascending"),
        ({"percentiles": (25.0, 100.0)}, "predictor.percentiles must be ascending"),
        ({"tuned_epochs": -1}, "predictor.tuned_epochs must not be negative, got -1"),
        ({"head_width": 0}, "predictor.head_width must be at least 1, got 0"),
    ],
)
def test_bad_settings_give_one_sentence(words, message):
    with pytest.raises(ValueError, match=message):
        MuServePredictorConfig(**words)
