"""`serving_gym.compare`: policies that are objects, typed settings, and one sentence for a mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import serving_gym
from tests.environments.cases import CASES

ROUTING: dict[str, Any] = CASES["routing"]


class FirstFree:
    """Routes to the first place that can take a request."""

    clairvoyant = False

    def __init__(self, name: str = "first_free") -> None:
        self.name = name

    def reset(self, spec: Any, seed: int) -> None:
        self.seed = seed

    def act(self, observation: Any, state: Any) -> int | None:
        return int(np.argmax(state.can_take)) if state.can_take.any() else None


def test_objects_and_names_on_typed_settings():
    result = serving_gym.compare("routing", ["jsq", FirstFree()], seeds=2, **ROUTING)
    assert list(result["policies"]) == ["jsq", "first_free"]
    assert result["workload"] == ROUTING["workload"].name
    assert result["learned"] == []
    alone = serving_gym.compare("routing", [FirstFree()], seeds=2, **ROUTING)
    assert (
        alone["policies"]["first_free"]["metrics"]["return"]
        == result["policies"]["first_free"]["metrics"]["return"]
    )


def test_settings_of_the_environment_are_words_of_a_comparison():
    words = {"workload.num_requests": 60, "split": "validation"}
    returns = [
        serving_gym.compare("dp_tp", ["static_dp"], seeds=1, **words, **setting)["policies"]["static_dp"][
            "metrics"
        ]
        for setting in ({"decision_interval_s": 2.0}, {"env.decision_interval_s": 2.0}, {})
    ]
    assert returns[0]["return"] == returns[1]["return"]
    assert returns[0]["return"] != returns[2]["return"]


@pytest.mark.parametrize(
    ("policies", "words", "said"),
    [
        ("jsq", {}, r"policies must be a list of at least one policy, as \['jsq'\], got 'jsq'"),
        ([], {}, "must be a list of at least one policy"),
        (["jsqq"], {}, "unknown policy 'jsqq'; did you mean 'jsq'"),
        ([FirstFree], {}, r"the class FirstFree: give one of it, FirstFree\(\)"),
        ([3], {}, "policies holds a int, which has no 'name'"),
        ([FirstFree(), FirstFree()], {}, "policies names 'first_free' more than once"),
        (["jsq", FirstFree("jsq")], {}, "policies names 'jsq' more than once"),
        (
            [FirstFree()],
            {"launcher.workers": 2},
            "launcher.workers must be 1 with policies that are objects, got 2",
        ),
        (["oserve"], {}, "policy 'oserve' does not fit env=routing"),
        (["jsq"], {"wrkload": "week"}, "unknown key 'wrkload'; did you mean 'workload'"),
        (["jsq"], {"workload": "wek"}, "unknown workload 'wek'; did you mean 'week'"),
        (["jsq"], {"report": object()}, "report must be a plain value here, got object"),
        (
            ["jsq"],
            {"workload": ROUTING["workload"], "workload.num_requests": 3},
            "workload.num_requests cannot be set beside workload, a WorkloadSpec",
        ),
    ],
)
def test_a_mistake_gets_one_sentence(policies, words, said):
    with pytest.raises(ValueError, match=said) as caught:
        serving_gym.compare("routing", policies, seeds=1, **words)
    assert "\n" not in str(caught.value)
