"""The gap between two bodies, on figures that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.runners.live.gap import COMPARED, gap, transition_gap
from serving_gym.runners.rollouts.rollout import Episode


def episode(value: float, seed: int = 0, overrides: int = 0) -> Episode:
    decisions = [{"overrides": [{}] * overrides}]
    metrics = dict.fromkeys(COMPARED, 1.0) | {"return": value, "e2e_p50_s": abs(value)}
    return Episode("p", seed, metrics, decisions, 1.0, 1.0, None)  # type: ignore[arg-type]


def test_errors_spread_and_ranking_by_hand():
    simulated = {"a": [episode(-1.0)], "b": [episode(-2.0)], "c": [episode(-4.0)]}
    live = {
        "a": [episode(-2.2), episode(-1.8, overrides=3)],  # mean -2, as far apart as the runs of b
        "b": [episode(-2.3), episode(-1.9)],  # mean -2.1: behind a, but by less than runs differ
        "c": [episode(-1.2), episode(-0.8)],  # mean -1: ahead, where simulation has it last
    }
    found = gap(simulated, live)
    assert found["policies"]["a"]["return"] == {
        "simulated": -1.0,
        "live": -2.0,
        "error": pytest.approx(0.5),
    }
    errors = found["gap"]["e2e_p50_s"]  # 1 of 2, 0.1 of 2.1, 3 of 1
    assert errors["ape_median"] == pytest.approx(0.5)
    assert errors["ape_max"] == pytest.approx(3.0)
    assert found["spread"]["return"] == pytest.approx(np.std([0.2, -0.2], ddof=1))
    ranking = found["ranking"]
    assert ranking["simulated"] == ["a", "b", "c"]
    assert ranking["live"] == ["c", "a", "b"]
    assert (ranking["pairs"], ranking["pairs_in_the_same_order"]) == (3, 1)
    # A difference of two means of two runs spreads as one run does: 0.283. c is ahead by 1.0 and 1.1, over twice that.
    assert (ranking["clear_pairs"], ranking["clear_pairs_in_the_same_order"]) == (2, 0)
    assert found["overrides"] == {"a": 3, "b": 0, "c": 0}


def test_without_repeats_nothing_is_known_of_the_spread():
    found = gap({"a": [episode(-1.0)], "b": [episode(-2.0)]}, {"a": [episode(-1.0)], "b": [episode(-3.0)]})
    assert np.isnan(found["spread"]["return"])
    assert found["ranking"]["clear_pairs"] == 0
    assert found["ranking"]["pairs_in_the_same_order"] == 1


def test_what_a_transition_costs():
    found = transition_gap([30.0, 30.0], [40.0, 24.0])
    assert found == {"simulated": [30.0, 30.0], "live": [40.0, 24.0], "error": [-0.25, 0.25]}
