"""Our routers choose as vllm-router does: on a recording always, on the router itself where it is installed."""

from dataclasses import replace

import numpy as np
import pytest

from tests.baselines.routers.vllm_router import driver, recording
from tests.baselines.routers.vllm_router.replay import loads, our_choices
from tests.baselines.routers.vllm_router.scripts import scripts

VERSION, RUNS = recording.read()
SLOW = ("cache_aware_pruned",)  # waits for prunings
LIVE = [pytest.param(s, id=s.name, marks=[pytest.mark.slow] if s.name in SLOW else []) for s in scripts()]


def _names(runs):
    return [script.name for script, _ in runs]


def _assert_alike(script, chosen):
    ours = our_choices(script, chosen)
    if script.policy != "power_of_two":
        assert ours == chosen
        return
    before = loads(script, chosen)
    if script.num_workers == 2:  # both are drawn: only a tie is left to chance
        decided = [counts[0] != counts[1] for counts in before]
        assert [place for place, d in zip(ours, decided, strict=True) if d] == [
            place for place, d in zip(chosen, decided, strict=True) if d
        ]
        assert sum(decided) > len(decided) / 3
        assert {place for place, d in zip(chosen, decided, strict=True) if not d} == {0, 1}
    for counts, one, other in zip(before, ours, chosen, strict=True):
        alone = [
            place for place in range(script.num_workers) if (counts[place] > np.delete(counts, place)).all()
        ]
        assert one not in alone
        assert other not in alone


@pytest.mark.parametrize(("script", "chosen"), RUNS, ids=_names(RUNS))
def test_our_choices_are_those_of_the_recording(script, chosen):
    _assert_alike(script, chosen)


def test_the_recording_is_of_these_scripts():
    assert VERSION == "0.1.17"
    assert [script for script, _ in RUNS] == scripts()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cache_aware", {"cache_threshold": 1.0}),
        ("cache_aware", {"cache_threshold": 0.4}),
        ("cache_aware_balancing", {"balance_abs_threshold": 64}),
        ("cache_aware_balancing", {"balance_abs_threshold": 3}),
        ("cache_aware_balancing", {"balance_abs_threshold": 1}),
        ("cache_aware_balancing", {"cache_threshold": 0.45}),
        ("cache_aware_balancing", {"cache_threshold": 0.6}),
        ("cache_aware_by_ratio", {"balance_rel_threshold": 1.5}),
        ("cache_aware_by_ratio", {"balance_rel_threshold": 3.0}),
        ("cache_aware_thresholds", {"cache_threshold": 0.7000001}),
        ("cache_aware_thresholds", {"cache_threshold": 0.59}),
        ("cache_aware_pruned", {"max_tree_size": 2**25}),
        ("cache_aware_pruned", {"max_tree_size": 8 * 44}),
        ("cache_aware_pruned", {"max_tree_size": 8 * 36}),
    ],
)
def test_the_recording_tells_other_constants_apart(name, options):
    script, chosen = next(run for run in RUNS if run[0].name == name)
    assert our_choices(replace(script, options=script.options | options), chosen) != chosen


@pytest.mark.skipif(not driver.available(), reason="vllm-router is not installed")
@pytest.mark.parametrize("script", LIVE)
def test_our_choices_are_those_of_the_router(script):
    _assert_alike(script, driver.choices(script))
