"""What would look good by a careless count must rank last: to refuse, hold for ever, starve the long, thrash."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.policy import Action
from baselines.registry import make_policy
from envs.registration import make_env
from envs.workload.registry import WorkloadSpec
from runners.comparison import Kinds, compare_results
from runners.rollout import run_episode

LONG_TOKENS = 1000


class Cheat:
    """Does one thing whatever happens."""

    clairvoyant = False

    def __init__(self, name: str) -> None:
        self.name = name
        self._honest = make_policy("jsq")

    def reset(self, spec, seed: int) -> None:
        self._seen = 0
        if spec.engines is not None:
            self._honest.reset(spec, seed)
        else:
            self._rng = np.random.default_rng(seed)

    def act(self, observation, state) -> Action:
        self._seen += 1
        if self.name == "thrash":
            return int(self._rng.choice(np.arange(26)) * 3 + 2)  # some layout, hard
        if self.name == "starve_the_long" and state.request.input_tokens <= LONG_TOKENS:
            return self._honest.act(observation, state)
        return None


ROUTING = {
    "workload": WorkloadSpec(name="azure_conv_fitted", num_requests=150, rate_scale=8.0),
    "split": "test",
}


@pytest.mark.parametrize(
    ("env_name", "arguments", "cheats", "honest"),
    [
        ("routing", {**ROUTING, "drain_limit_s": 10.0}, ("hold", "starve_the_long"), ("random", "jsq")),
        ("routing", {**ROUTING, "queue_capacity": 0}, ("refuse", "starve_the_long"), ("random", "jsq")),
        (
            "dp_tp",
            {"workload": WorkloadSpec(name="flying_bursty", num_requests=200), "split": "test"},
            ("thrash",),
            ("static_dp", "static_tp", "flying_serving"),
        ),
    ],
    ids=["hold", "refuse", "thrash"],
)
def test_cheats_rank_last(env_name, arguments, cheats, honest):
    env = make_env(env_name, **arguments)
    policies = {name: Cheat(name) for name in cheats} | {name: make_policy(name) for name in honest}
    results = {
        name: [run_episode(env, policy, seed, name) for seed in range(4)] for name, policy in policies.items()
    }
    comparison = compare_results(results, Kinds(learned=frozenset(cheats)))
    ranks = sorted(policies, key=lambda name: comparison["policies"][name]["metrics"]["return"]["iqm"])
    assert set(ranks[: len(cheats)]) == set(cheats)
    assert not any(comparison["gates"][name]["holds"] for name in cheats)
    assert comparison["badge"] != "solved"
