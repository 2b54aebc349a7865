"""Off-policy estimates: against truths that are known, and where they cannot know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving_gym.runners.replaying.estimate import Logged, Settings, estimates

ACTIONS = 4


def bandit(rows: int, seed: int, explore: float) -> tuple[Logged, dict[str, Any], dict[str, float]]:
    """A log of a contextual bandit with known costs: by policy its actions, and its true gain over the log."""
    random = np.random.default_rng(seed)
    context = random.normal(size=(rows, ACTIONS))
    mean = 3.0 + context + 0.5 * np.arange(ACTIONS)  # cost of each action
    own = context.argmin(axis=1)
    drawn = random.integers(0, ACTIONS, rows)
    taken = np.where(random.random(rows) < explore, drawn, own)
    propensity = explore / ACTIONS + (1.0 - explore) * (taken == own)
    cost = mean[np.arange(rows), taken] + random.normal(scale=0.5, size=rows)

    def features(action: np.ndarray) -> np.ndarray:
        return np.column_stack([context[np.arange(rows), action], action, context])

    policies = {
        "best": mean.argmin(axis=1),
        "first": np.zeros(rows, np.int64),
        "even": random.integers(0, ACTIONS, rows),
    }
    logging = (1.0 - explore) * mean[np.arange(rows), own] + explore * mean.mean(axis=1)
    truth = {
        name: 1.0 - mean[np.arange(rows), action].mean() / logging.mean() for name, action in policies.items()
    }
    logged = Logged(cost, taken, propensity, np.zeros(rows, np.int64), features(taken))
    return logged, {name: (action, features(action)) for name, action in policies.items()}, truth


@pytest.mark.parametrize("model", ["lightgbm", "ridge"])
def test_the_doubly_robust_interval_covers_the_truth_and_is_the_narrower(model: str) -> None:
    covered, narrower = [], []
    for seed in range(8):
        logged, chosen, truth = bandit(600, seed, 0.4)
        for name, entry in estimates(logged, chosen, Settings(model)).items():
            low, high = entry["gain"]["doubly_robust"]["ci95"]
            weighted = entry["gain"]["ips"]["ci95"]
            covered.append(low <= truth[name] <= high)
            narrower.append(high - low < weighted[1] - weighted[0])
            assert not entry["note"]
    assert np.mean(covered) >= 0.85  # of 24 intervals of 95 %
    assert np.mean(narrower) >= 0.9


def test_a_wrong_model_is_corrected_by_weights() -> None:
    logged, chosen, truth = bandit(4000, 0, 0.5)
    blind = Logged(logged.cost, logged.taken, logged.propensity, logged.episode, np.zeros((4000, 1)))
    found = estimates(
        blind,
        {name: (action, np.zeros((4000, 1))) for name, (action, _) in chosen.items()},
        Settings("ridge"),
    )
    for name, entry in found.items():
        low, high = entry["gain"]["doubly_robust"]["ci95"]
        assert low <= truth[name] <= high
        assert abs(entry["gain"]["direct"]["mean"] - truth[name]) > abs(
            entry["gain"]["doubly_robust"]["mean"] - truth[name]
        )


def test_the_policy_that_was_logged_gains_nothing() -> None:
    logged, _, _ = bandit(500, 1, 0.5)
    [entry] = estimates(logged, {"same": (logged.taken, logged.features)}, Settings()).values()
    assert entry["agreement"] == 1.0
    assert abs(entry["gain"]["direct"]["mean"]) < 0.02


def test_a_log_without_random_decisions_is_said_to_rest_on_the_model() -> None:
    logged, chosen, _ = bandit(500, 2, 0.0)
    found = estimates(logged, chosen, Settings())
    for entry in found.values():
        assert entry["gain"]["ips"] is None
        assert "rests on the model alone" in entry["note"]
    assert found["first"]["supported_ratio"] == pytest.approx(found["first"]["agreement"])


def test_choices_that_the_log_never_takes_are_said() -> None:
    logged, chosen, _ = bandit(800, 3, 0.4)
    canary = np.where(logged.taken == 3, 0, logged.taken)  # a log in which action 3 never came
    partial = Logged(logged.cost, canary, logged.propensity, logged.episode, logged.features)
    action = np.full(800, 3, np.int64)
    [entry] = estimates(partial, {"third": (action, chosen["first"][1])}, Settings()).values()
    assert entry["supported_ratio"] == 0.0
    assert "rests on the model alone" in entry["note"]
    assert entry["effective_sample_size"] == 0.0


def test_large_weights_are_clipped_and_counted() -> None:
    logged, chosen, _ = bandit(600, 4, 0.05)
    found = estimates(logged, chosen, Settings(clip=10.0))
    assert found["even"]["clipped"] > 0
    assert found["even"]["effective_sample_size"] < 600
