"""Surges: what one is, and that training looks at all of them and rollouts answer at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving_gym.agents.environments.dp_tp.counterfactuals import DPTPCounterfactuals
from serving_gym.agents.environments.dp_tp.score_policy import next_step
from serving_gym.agents.environments.dp_tp.surge import SurgeWatch
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import Batch
from serving_gym.agents.learners.api.learner import APILearner
from serving_gym.agents.learners.learner import Budget
from serving_gym.envs.base.episode import unfinished_in
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from tests.defaults import Task

BURSTS = {
    "low_rate_rps": [1.0, 1.0],
    "low_duration_s": [30.0, 30.0],
    "burst_rate_rps": [60.0, 60.0],
    "burst_duration_s": [10.0, 10.0],
}
ARGUMENTS = {
    "workload": WorkloadSpec(name="flying_bursty", num_requests=1500, params=BURSTS),
    "cluster": ClusterSpec(num_gpus=2),
    "split": "train",
}
RARELY = 1_000_000


def world(**settings: Any) -> DPTPCounterfactuals:
    """Training on quiet times and bursts, without chance."""
    config = APIConfig(even=True, exploration=0.0, sample_every=RARELY, **settings)
    return DPTPCounterfactuals(config, Task("dp_tp", ARGUMENTS), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([0, 8, 9], [False, False, True]),
        ([10, 28, 29], [False, False, True]),
        ([10, 29, 29, 29, 29], [False, True, True, True, False]),  # as at the least of three before
        ([100, 50, 90, 109], [False, False, False, True]),
    ],
)
def test_a_surge_is_twice_as_many_and_eight_more(numbers: list[int], expected: list[bool]) -> None:
    watch = SurgeWatch()
    assert [watch.rises(number) for number in numbers] == expected
    watch.reset()
    assert not watch.rises(1000), "an episode has begun, nothing has risen"
    assert SurgeWatch(10).rises(29)


def test_every_state_of_a_surge_is_sampled_and_no_other_but_the_first() -> None:
    tried, quiet = world(surges=True, horizon=2), world(horizon=2)
    watch, batch, surges = SurgeWatch(), Batch(), 0
    tried.core.reset(3)
    for _ in range(100):
        surges += watch.rises(int(unfinished_in(tried.core.state.totals).sum()))
        tried.play(Budget(total_steps=RARELY), batch)
    assert surges > 1
    assert len(batch.states) == 1 + surges
    batch = Batch()
    quiet.core.reset(3)
    for _ in range(100):
        quiet.play(Budget(total_steps=RARELY), batch)
    assert len(batch.states) == 1


class _Remembers:
    """Stays, and remembers when it was asked."""

    def __init__(self, asked: DPTPCounterfactuals) -> None:
        self.asked_s: list[float] = []
        usual = asked._next

        def follow(core: Any, *rest: Any) -> Any:
            self.asked_s.append(round(core.state.now_s, 6))
            return usual(core, *rest)

        asked._next = follow  # type: ignore[method-assign]

    def choose(self, known: Any, options: Any) -> int:
        return int(options.stay)


def before_a_surge(tried: DPTPCounterfactuals) -> float:
    """Leads an episode to three seconds before one; returns when it comes."""
    tried.core.reset(3)
    ahead, watch = tried.core.fork(), SurgeWatch()
    while not watch.rises(int(unfinished_in(ahead.state.totals).sum())):
        ahead.step(None)
    surge_s = ahead.state.now_s
    while tried.core.state.now_s < surge_s - 3.0:
        tried.core.step(None)
    return surge_s


@pytest.mark.parametrize(("settings", "stride"), [({"commit": 20}, 4), ({"commit": 1}, 5)])
def test_rollouts_decide_as_soon_as_there_is_a_surge(settings: dict[str, int], stride: int) -> None:
    tried = world(surges=True, horizon=30, stride=stride, **settings)
    surge_s = before_a_surge(tried)
    policy = _Remembers(tried)
    tried.present = policy  # type: ignore[assignment]
    tried._rollout(None, None)
    after = [at_s for at_s in policy.asked_s if at_s >= surge_s - 1e-6]
    assert after[0] == pytest.approx(surge_s)
    if settings["commit"] == 20:
        assert after == policy.asked_s, "before the surge it kept to its action"

    unaware = world(horizon=30, stride=stride, **settings)
    before_a_surge(unaware)
    policy = _Remembers(unaware)
    unaware.present = policy  # type: ignore[assignment]
    unaware._rollout(None, None)
    assert not any(at_s == pytest.approx(surge_s) for at_s in policy.asked_s)


def test_smaller_steps_change_no_return() -> None:
    """The first rollouts have nothing that answers a surge: they keep their layout to the end."""
    found = []
    for surges in (False, True):
        tried = world(surges=surges, horizon=30)
        before_a_surge(tried)
        found.append(tried._rollout(None, None))
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def test_surges_are_of_dp_tp_alone() -> None:
    with pytest.raises(ValueError, match=r"agent.surges is for env=dp_tp alone, got True in env=routing"):
        APILearner(APIConfig(surges=True), Task("routing", {}))


def test_rollouts_know_when_engines_were_split() -> None:
    """A merge may follow a split after as long as it may where the policy is deployed, which sees it a second later."""
    tried = world(horizon=30, commit=8, stride=3, dwell_s=20.0)
    tried.core.reset(3)
    while tried.core.state.layout != (2,):
        tried.core.step(next_step(tried.core.state, (2,)))
        tried.memory.follow(tried.core.state)
    tried.present = _Remembers(tried)  # type: ignore[assignment]
    usual, since_s = tried._next, list[float]()

    def follow(core: Any, start: Any, memory: Any) -> Any:
        since_s.append(memory.since_split_s(core.state.now_s))
        return usual(core, start, memory)

    tried._next = follow  # type: ignore[method-assign]
    tried._rollout(next_step(tried.core.state, (1, 1)), None)
    assert since_s == pytest.approx([7.0 + 3.0 * i for i in range(len(since_s))])
