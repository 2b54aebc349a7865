"""The closing table of a training and its sentence, on figures of known outcome."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from serving_gym.runners.comparison.results import Kinds, compare_results
from serving_gym.runners.comparison.verdict import closing_rows, roles_of, verdict
from serving_gym.runners.training.start import UNTRAINED, start_name

OFFSETS = {"agent": 0.0, "weak": -10.0, "equal": 0.0, "strong": 5.0}
ROLES = {"agent": "agent", "weak": "static", "equal": "static", "strong": "tuned"}


@pytest.fixture
def comparison(make_episode) -> dict:
    noise = np.random.default_rng(0).normal(0.0, 0.5, (len(OFFSETS), 12))
    results = {
        name: [make_episode(name, seed, **{"return": -100.0 + offset + noise[i, seed]}) for seed in range(12)]
        for i, (name, offset) in enumerate(OFFSETS.items())
    }
    return compare_results(results, Kinds(learned=frozenset({"agent"})))


def test_an_agent_beats_what_its_interval_is_clear_of(comparison):
    said = verdict("agent", comparison)
    beats, level, behind = said.removesuffix(".").split("; it ")
    assert beats.startswith("agent beats weak by +")
    assert beats.endswith(" %" + beats[beats.index(" [") :])
    assert level.startswith("is level with equal (")
    assert behind.startswith("is behind strong (-")
    assert said.count("[") == 3


def test_an_equal_policy_is_level(make_episode):
    same = {name: [make_episode(name, seed) for seed in range(4)] for name in ("agent", "other")}
    comparison = compare_results(same, Kinds(learned=frozenset({"agent"})))
    assert verdict("agent", comparison) == "agent is level with other (+0.0 % [+0.0, +0.0])."


def test_the_start_beats_nobody(comparison):
    said = verdict("agent", comparison, "jsq, step 0")
    assert said.startswith("Training has not improved on its start (jsq, step 0)")
    assert "beats" not in said


def test_the_table_is_sorted_and_marks_the_best_of_each_role(comparison):
    rows = closing_rows("agent", comparison, ROLES, ("slo_attainment",))
    assert rows[0][0] == "strong"
    assert rows[-1][0] == "weak"
    roles = {row[0]: row[1] for row in rows}
    assert roles == {"agent": "agent", "weak": "static", "equal": "static (best)", "strong": "tuned"}
    returns = [row[2][0] for row in rows]
    assert returns == sorted(returns, reverse=True)
    gains = {row[0]: row[4] for row in rows}
    assert gains["agent"] is None
    assert gains["weak"].startswith("+")
    assert gains["strong"].startswith("-")


def test_roles_are_declared_or_follow_from_the_policy():
    names = ("api", "random", "jsq_tuned", "static_2x4", "jsq", "oracle", "fixed_instances")
    policies = {name: SimpleNamespace(clairvoyant=name == "oracle") for name in names}
    assert roles_of(policies, {"fixed_instances": "static"}, ["api"]) == {
        "api": "agent",
        "random": "random",
        "jsq_tuned": "tuned",
        "static_2x4": "static",
        "jsq": "plain",
        "oracle": "clairvoyant",
        "fixed_instances": "static",
    }


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        ({"start": None}, UNTRAINED),
        ({"start": {"name": "linear_score", "params": {}}}, "linear_score"),
        ({"start": {"name": "checkpoint", "path": "zoo/dp_tp"}}, "zoo/dp_tp"),
        ({"heuristic": {"name": "load_threshold", "params": {}}, "start": None}, "load_threshold"),
        ({"baseline": "jsq"}, "jsq"),
    ],
)
def test_the_start_has_a_name(agent, name):
    assert start_name(agent) == name
