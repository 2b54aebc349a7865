"""Several trainings of one agent as one: intervals over trainings and episodes both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from serving_gym.runners import compare
from serving_gym.runners.comparison.pooling import pooled
from serving_gym.runners.comparison.statistics import bootstrap_interval, crossed_interval, interquartile_mean
from serving_gym.runners.configuration.policies import ZOO_DIR, is_pattern, members_of
from serving_gym.runners.rollouts.rollout import Episode

MakeEpisode = Callable[..., Episode]
FACTORS = {"plain": 1.0, "runs/a/0": 0.8, "runs/a/1": 0.9, "runs/a/2": 1.0, "runs/a/3": 0.9}
MEMBERS = tuple(FACTORS)[1:]


@pytest.fixture
def results(make_episode: MakeEpisode) -> dict[str, list[Episode]]:
    """Four trainings that gain 20, 10, 0 and 10 % on each of eight episodes of the same size."""
    return {
        name: [make_episode(name, seed, **{"return": -100.0 * factor}) for seed in range(8)]
        for name, factor in FACTORS.items()
    }


def test_a_pool_is_judged_over_its_trainings(results: dict[str, list[Episode]]) -> None:
    """Episodes are all alike here, so that all spread is between trainings: 20, 10, 0, 10 % have the middle 10."""
    pool = pooled(results, {"runs/a/*": MEMBERS})["runs/a/*"]
    assert pool["members"] == list(MEMBERS)
    gain = pool["relative_improvement"]["plain"]
    assert gain["iqm"] == pytest.approx(0.1)
    assert 0.0 <= gain["ci95"][0] < 0.1 < gain["ci95"][1] <= 0.2
    assert pool["return"]["iqm"] == pytest.approx(-90.0)
    assert list(pool["relative_improvement"]) == ["plain"]
    assert pool["probability_of_improvement"]["plain"] == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    assert pooled(results, {}) == {}


def test_every_workload_counts_by_its_own_size(results: dict[str, list[Episode]]) -> None:
    strata = ["light"] * 4 + ["heavy"] * 4
    for episodes in results.values():
        for episode in episodes[4:]:
            episode.metrics["return"] *= 50.0
    pool = pooled(results, {"runs/a/*": MEMBERS}, strata)["runs/a/*"]
    assert pool["relative_improvement"]["plain"]["iqm"] == pytest.approx(0.1)


def test_intervals_widen_with_what_differs() -> None:
    rng = np.random.default_rng(0)
    blocks, trainings = rng.standard_normal((1, 40)), rng.standard_normal((10, 1))
    alike = crossed_interval([np.repeat(blocks, 10, axis=0)])
    plain = bootstrap_interval([blocks[0]])
    assert alike == pytest.approx(plain, abs=0.15), "trainings that are alike add nothing"
    both = crossed_interval([blocks + trainings])
    assert both[1] - both[0] > 1.2 * (alike[1] - alike[0])
    low, high = crossed_interval([np.full((3, 5), 2.0)])
    assert low == high == 2.0
    middle = interquartile_mean((blocks + trainings).ravel())
    assert both[0] < middle < both[1]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="level"):
        crossed_interval([np.ones((2, 2))], level=1.0)
    with pytest.raises(ValueError, match="a table of trainings and blocks"):
        crossed_interval([np.ones(3)])
    with pytest.raises(ValueError, match="the same trainings"):
        crossed_interval([np.ones((2, 3)), np.ones((3, 3))])
    with pytest.raises(ValueError, match="at least two trained agents, it matches 0"):
        members_of(f"{tmp_path}/*")
    assert not is_pattern("jsq")
    assert not is_pattern("zoo/dp_tp")


def test_compare_pools_what_a_pattern_matches(tmp_path: Path) -> None:
    for name in ("0", "1"):
        shutil.copytree(ZOO_DIR / "dp_tp", tmp_path / "ten" / name / "checkpoint")
    (tmp_path / "ten" / "multirun.yaml").write_text("")
    (tmp_path / "ten" / "empty").mkdir()
    pattern = f"{tmp_path}/ten/*"
    assert members_of(pattern) == (f"{tmp_path}/ten/0", f"{tmp_path}/ten/1")
    words = ["workload=flying_bursty", "workload.num_requests=60", "seeds=2", "plots=false"]
    words.append(f"policies=[static_dp,{pattern}]")
    assert compare.main([*words, f"out={tmp_path / 'out'}"]) == 0
    comparison = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert list(comparison["policies"]) == ["static_dp", *members_of(pattern)]
    assert comparison["learned"] == list(members_of(pattern))
    pool = comparison["pools"][pattern]
    one = comparison["relative_improvement"][f"{members_of(pattern)[0]}>static_dp"]
    assert pool["relative_improvement"]["static_dp"]["iqm"] == pytest.approx(one["iqm"])
