"""`runners.pareto`: dominance, hypervolume, and the command."""

from __future__ import annotations

import json

import numpy as np
import pytest

from serving_gym.runners import pareto
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.pareto_front.config import Candidate
from serving_gym.runners.pareto_front.front import hypervolume, not_dominated

ROUTING = ["env=routing", "workload.num_requests=150", "seeds=2", "launcher.workers=1"]
AXES = "axes={ttft_mean_finished_s: lower, goodput_rps: higher}"


def test_dominance_by_hand():
    costs = np.array([[1.0, 4.0], [2.0, 2.0], [2.0, 2.0], [3.0, 3.0], [4.0, 1.0], [4.0, 1.5]])
    assert not_dominated(costs).tolist() == [True, True, True, False, True, False]


def test_hypervolume_by_hand():
    costs = np.array([[1.0, 4.0], [2.0, 2.0], [3.0, 3.0], [4.0, 1.0], [6.0, 0.0]])
    # Strips below y = 5, 4 and 2 from x = 1, 2 and 4 to x = 5; (6, 0) lies outside.
    assert hypervolume(costs, (5.0, 5.0)) == 4.0 * 1.0 + 3.0 * 2.0 + 1.0 * 1.0
    assert hypervolume(costs[:0], (5.0, 5.0)) == 0.0


def test_hypervolume_agrees_with_counting_points():
    rng = np.random.default_rng(0)
    costs, drawn = rng.random((12, 2)), rng.random((40_000, 2))
    covered = (drawn[:, None, :] >= costs[None, :, :]).all(axis=2).any(axis=1).mean()
    assert hypervolume(costs, (1.0, 1.0)) == pytest.approx(covered, abs=0.01)


def test_higher_is_better_where_an_axis_says_so():
    table = np.array([[[1.0, 3.0], [0.5, 0.7]], [[4.0, 4.0], [0.9, 0.9]], [[5.0, 5.0], [0.8, 0.8]]])
    each = [Candidate("a", {}), Candidate("b", {"target": 1}), Candidate("b", {"target": 2})]
    found = pareto.front_of(each, table, {"cost": "lower", "kept": "higher"}, None)
    assert [point["dominated"] for point in found["points"]] == [False, False, True]
    assert found["points"][1]["label"] == "b target=1"
    assert found["reference"] == [5.0, pytest.approx(0.6)]
    box = 3.0 * 0.3
    assert found["hypervolume"]["value"] == pytest.approx(1.0 * 0.3)
    assert found["hypervolume"]["share"] == pytest.approx(0.3 / box)
    assert found["hypervolume"]["by_policy"] == {"a": 0.0, "b": pytest.approx(0.3 / box)}


def test_the_command_draws_and_goes_on(tmp_path, capsys):
    words = [*ROUTING, AXES, f"out={tmp_path}"]
    assert pareto.main([*words, "policies=[random]"]) == 0
    kept = (tmp_path / "episodes.jsonl").read_text()
    more = ["policies=[random,linear_score]", "settings={linear_score: {cost_s: [0.5, 2.0]}}", "figures=pdf"]
    name = next(iter(_constants("linear_score")))
    more[1] = f"settings={{linear_score: {{{name}: [0.5, 2.0]}}}}"
    assert pareto.main([*words, *more]) == 0
    assert (tmp_path / "episodes.jsonl").read_text().startswith(kept)
    found = json.loads((tmp_path / "pareto.json").read_text())
    assert [point["label"] for point in found["points"]] == [
        "random",
        f"linear_score {name}=0.5",
        f"linear_score {name}=2.0",
    ]
    assert not all(point["dominated"] for point in found["points"])
    assert 0.0 <= found["hypervolume"]["share"] <= 1.0
    assert (tmp_path / "pareto.png").stat().st_size > 10_000
    assert (tmp_path / "pareto.pdf").is_file()
    capsys.readouterr()
    assert pareto.main([*words, "policies=[random]", "workload.rate_scale=2"]) == USER_ERROR
    assert "holds results without workload.rate_scale=2" in capsys.readouterr().err


def _constants(policy: str) -> dict:
    from serving_gym.runners.configuration.policies import policy_config

    return policy_config(policy)["params"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["policies=[]"], "policies must name at least one policy"),
        (["policies=[jsq]", "axes={cost_usd: lower}"], "axes must be two metrics, got 1: cost_usd"),
        (["policies=[jsq]", "axes={a: low, b: higher}"], "unknown axes.a 'low'; did you mean 'lower'"),
        (["policies=[jsq]", "settings={llm_d: {x: [1]}}"], "policy of settings 'llm_d'"),
        (
            ["policies=[zoo/routing]", "settings={zoo/routing: {x: [1]}}"],
            "a checkpoint has no constants to set",
        ),
        (["policies=[jsq]"], "axes.cost_usd: episodes here have "),
    ],
)
def test_mistakes_are_one_sentence(words, said, tmp_path, capsys):
    assert pareto.main([*ROUTING, *words, f"out={tmp_path}"]) == USER_ERROR
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in error
