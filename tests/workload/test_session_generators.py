"""Chats, coding agents and rollouts: what they promise, and the published figures that they are fitted to."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.workload.registry import SESSIONS, WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.sessions.base import mean_of_counts
from serving_gym.envs.workload.sessions.tables import BLOCK_TOKENS


def drawn(name: str, count: int = 400, seed: int = 0, **params: object) -> Workload:
    return WorkloadSource(WorkloadSpec(name, num_requests=count, params=dict(params))).sample(seed).validate()


@pytest.mark.parametrize("name", SESSIONS)
def test_a_longer_one_begins_with_the_shorter_one(name: str) -> None:
    assert drawn(name, 300).head(100).equals(drawn(name, 100))
    assert not drawn(name, 100, seed=1).equals(drawn(name, 100))


@pytest.mark.parametrize("name", SESSIONS)
def test_a_turn_carries_the_turn_before_it(name: str) -> None:
    """Its prompt begins with the prompt and the answer that it waits for, unless the context was compacted."""
    workload = drawn(name)
    assert workload.after is not None
    assert workload.after_offsets is not None
    assert workload.hash_ids is not None
    assert workload.hash_offsets is not None
    assert workload.session_id is not None
    carried = 0
    for row in np.flatnonzero(workload.num_awaited == 1):
        before = workload.after[workload.after_offsets[row]]
        assert name == "rl_rollouts" or workload.session_id[row] == workload.session_id[before]
        own = workload.hash_ids[workload.hash_offsets[row] : workload.hash_offsets[row + 1]]
        context = int(workload.input_tokens[before] + workload.output_tokens[before])
        ids = workload.hash_ids[workload.hash_offsets[before] : workload.hash_offsets[before + 1]]
        assert len(ids) == -(-context // BLOCK_TOKENS)
        carried += workload.input_tokens[row] > context and np.array_equal(own[: len(ids)], ids)
    assert carried > 0.9 * np.sum(workload.num_awaited == 1)


@pytest.mark.parametrize("name", SESSIONS)
def test_lengths_stay_within_what_is_declared(name: str) -> None:
    source = WorkloadSource(WorkloadSpec(name, num_requests=800))
    workload = source.sample(3)
    assert workload.input_tokens.max() <= source.max_input_tokens
    assert workload.output_tokens.max() <= source.max_output_tokens == workload.max_output_tokens.max()


def test_coding_agents_have_the_published_figures() -> None:
    """TraceLab: growth and lengths per step, waits for tools and users."""
    workload = drawn("agentic_coding", 6000, sub_agent_share=0.0, arrival_rate_rps=20.0)
    assert workload.after is not None
    assert workload.after_offsets is not None
    assert workload.delay_s is not None
    later = np.flatnonzero(workload.num_awaited)
    before = workload.after[workload.after_offsets[later]]
    growth = (workload.input_tokens[later] - workload.input_tokens[before]).astype(float)
    growth = growth[growth > 0]
    assert np.median(growth) == pytest.approx(652, rel=0.45)
    assert np.mean(growth) == pytest.approx(1738, rel=0.25)
    assert np.percentile(growth, 90) == pytest.approx(4122, rel=0.25)
    assert workload.output_tokens.mean() == pytest.approx(520, rel=0.1)
    assert np.median(workload.delay_s[later]) == pytest.approx(0.4, rel=0.5)
    assert mean_of_counts(2.1) == pytest.approx(10.0, rel=0.1)


def test_chats_have_the_figures_of_the_trace() -> None:
    """Mooncake's conversation: share of chats of one turn, prompts, answers, time to the next turn."""
    workload = drawn("chat_sessions", 8000, history_s=2000.0, arrival_rate_rps=2.0)
    first = workload.turn == 0
    assert np.median(workload.input_tokens[first]) == pytest.approx(6637, rel=0.1)
    assert np.percentile(workload.input_tokens[first], 90) == pytest.approx(27_885, rel=0.15)
    assert np.median(workload.output_tokens) == pytest.approx(356, rel=0.05)
    assert workload.delay_s is not None
    assert np.median(workload.delay_s[~first]) == pytest.approx(112, rel=0.25)


def test_a_batch_of_rollouts_waits_for_all_of_the_one_before() -> None:
    workload = drawn("rl_rollouts", 1500, prompts=2, group=3, mean_turns=4.0)
    assert workload.session_id is not None
    first = np.flatnonzero(workload.num_awaited > 1)
    assert set(workload.num_awaited[first]) == {6}
    assert (workload.session_id[first] > 0).all()


@pytest.mark.parametrize(
    ("name", "words", "named"),
    [
        ("rl_rollouts", {"rate_rps": 3.0}, "rate_rps"),
        ("rl_rollouts", {"params": {"patience_s": 3.0}}, "patience_s"),
        ("chat_sessions", {"num_clients": 4}, "num_clients"),
        ("chat_sessions", {"params": {"turns_median": -1.0}}, "turns_median"),
        ("agentic_coding", {"params": {"context_tokens": 100}}, "context_tokens"),
        ("agentic_coding", {"priority_share": 0.2}, "priority_share"),
    ],
)
def test_settings_that_mean_nothing_are_refused(name: str, words: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        WorkloadSource(WorkloadSpec(name, **words))  # type: ignore[arg-type]
