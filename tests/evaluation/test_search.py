import math
from collections.abc import Mapping

import numpy as np
import pytest

from serving_gym.baselines.policy import Tunable
from serving_gym.baselines.ranges import from_unit, to_unit
from serving_gym.runners.tuning.cma_es import search

RANGES = {"level": Tunable(0.1, 10.0, log=True), "share": Tunable(0.0, 1.0)}


def test_places_in_a_range() -> None:
    assert to_unit(RANGES["level"], 1.0) == pytest.approx(0.5)
    assert from_unit(RANGES["level"], 0.5) == 1.0
    assert to_unit(RANGES["share"], -3.0) == 0.0
    assert to_unit(RANGES["level"], 0.0) == 0.0
    assert from_unit(RANGES["share"], 1.7) == 1.0


def _best(ranges: Mapping[str, Tunable], seed: int) -> tuple[dict[str, float], int]:
    seen: list[tuple[float, dict[str, float]]] = []

    def score(params: Mapping[str, float]) -> float:
        value = -sum((to_unit(ranges[name], params[name]) - 0.75) ** 2 for name in ranges)
        seen.append((value, dict(params)))
        return value

    search(score, ranges, {name: tunable.low for name, tunable in ranges.items()}, 60, 0.3, seed)
    return max(seen, key=lambda pair: pair[0])[1], len(seen)


@pytest.mark.parametrize("names", [["level", "share"], ["level"]])
def test_the_optimum_is_found_with_the_calls_given(names: list[str]) -> None:
    ranges = {name: RANGES[name] for name in names}
    best, calls = _best(ranges, seed=0)
    assert calls == 60
    assert best["level"] == pytest.approx(10**0.5, rel=0.35)


def test_the_search_repeats_and_leaves_the_global_generator_alone() -> None:
    state = np.random.get_state()[1]  # noqa: NPY002
    assert _best(RANGES, seed=1) == _best(RANGES, seed=1)
    assert _best(RANGES, seed=1) != _best(RANGES, seed=2)
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002
    assert math.isfinite(_best(RANGES, seed=1)[0]["share"])


def test_words_are_searched_as_equal_shares_of_a_range():
    tunable = Tunable(0.0, 3.0, values=("text", "code", None))
    assert [from_unit(tunable, place) for place in (0.0, 0.32, 0.34, 0.99, 1.0)] == [
        "text", "text", "code", None, None,
    ]  # fmt: skip
    assert all(from_unit(tunable, to_unit(tunable, value)) == value for value in tunable.values)
    scores = {"text": 0.0, "code": 2.0, None: 1.0}
    seen = []
    search(
        lambda params: seen.append(params["rule"]) or scores[params["rule"]],
        {"rule": tunable},
        {"rule": "text"},
        30,
        0.3,
        0,
    )
    assert "code" in seen[-5:]
