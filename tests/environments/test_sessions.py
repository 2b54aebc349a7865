"""Sessions in every environment whose cluster serves them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving_gym.envs.workload.registry import WorkloadSpec
from tests.defaults import make_env, make_vector_env
from tests.environments.cases import CASES, possible

CHATS = WorkloadSpec(
    "chat_sessions",
    num_requests=60,
    rate_rps=4.0,
    params={"think_median_s": 2.0, "turns_median": 3.0, "context_tokens": 8000, "patience_s": 60.0},
)
SERVED = ("autoscaling", "deployment", "dp_tp", "routing")


def case_of(name: str) -> dict[str, Any]:
    return {**CASES[name], "workload": CHATS}


@pytest.mark.parametrize("name", SERVED)
def test_later_turns_wait_and_batches_give_the_same(name: str) -> None:
    """Turns arrive after the answers before them, and a vector environment gives what scalar ones do."""
    env = make_env(name, **case_of(name))
    batched = make_vector_env(name, 2, **case_of(name))
    _, info = env.reset(seed=5)
    _, infos = batched.reset(seed=[5, 6])
    rng = np.random.default_rng(0)
    ended = False
    while not ended:
        action = possible(env.action_space, env.action_masks(), rng)
        actions = np.stack([action, possible(env.action_space, infos["action_mask"][1], rng)])
        _, reward, terminated, truncated, info = env.step(action)
        _, rewards, terminations, truncations, infos = batched.step(actions)
        assert rewards[0] == reward
        assert (terminations[0], truncations[0]) == (terminated, truncated)
        ended = terminated or truncated
    records = env.records()
    assert records.session is not None
    assert records.turn is not None
    assert info["dt"] > 0
    later = np.flatnonzero(records.turn > 0)
    assert len(later) > 5
    for row in later:
        before = (records.session == records.session[row]) & (records.turn == records.turn[row] - 1)
        assert records.arrival_s[row] >= records.finish_s[before].max()


def test_sharing_says_that_it_does_not_serve_them() -> None:
    with pytest.raises(ValueError, match="chat_sessions"):
        make_env("sharing", **case_of("sharing")).reset(seed=0)
