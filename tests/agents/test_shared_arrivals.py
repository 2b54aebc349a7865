"""What arrivals are to blame for is taken from the advantages."""

from __future__ import annotations

import numpy as np

from serving_gym.agents.learners.shared_arrivals import Clock, centred


def test_the_mean_of_the_others_is_subtracted():
    advantages = np.array([[1.0, 3.0, 8.0, 10.0]], np.float32)
    moments = np.zeros((1, 4), np.int64)
    np.testing.assert_allclose(centred(advantages, moments, 2), [[-2.0, 2.0, -2.0, 2.0]])
    np.testing.assert_allclose(
        centred(advantages, moments, 4), [[-6.0, 3 - 19 / 3, 8 - 14 / 3, 6.0]], rtol=1e-6
    )


def test_moments_are_matched_across_rows_and_lonely_ones_are_left_alone():
    advantages = np.array([[1.0, 5.0], [2.0, 7.0]], np.float32)
    moments = np.array([[0, 1], [1, 2]])  # the second environment is a decision ahead
    np.testing.assert_allclose(centred(advantages, moments, 2), [[1.0, 3.0], [-3.0, 7.0]])


def test_the_clock_counts_episodes_and_decisions_across_rollouts():
    clock = Clock(2)
    first = clock.advance(np.array([[1, 1], [0, 0], [0, 1]], np.float32))
    second = clock.advance(np.array([[1, 0]], np.float32))
    assert first[0, 0] == first[0, 1]
    assert first[1, 0] == first[1, 1]
    assert first[2, 0] != first[2, 1]
    assert second[0, 0] == first[2, 1]  # both begin their second episode
    assert second[0, 1] == first[2, 1] + 1
