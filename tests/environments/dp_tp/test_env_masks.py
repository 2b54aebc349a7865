"""Every action that the mask allows is accepted; every other one is refused and changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.dp_tp.action import decode_action, encode_action, num_actions
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.layout import all_layouts
from serving_gym.envs.workload.registry import WorkloadSpec
from tests.defaults import make_env

BURSTY = WorkloadSpec(name="flying_bursty", num_requests=200)


def wanderings(env, seed, steps, rng):
    """States that random possible actions lead to."""
    env.reset(seed=seed)
    for _ in range(steps):
        if env.core.done:
            return
        yield
        env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))


@pytest.mark.parametrize("cluster", [ClusterSpec(), ClusterSpec(num_gpus=2), ClusterSpec(weights="sharded")])
def test_the_mask_says_what_the_simulator_accepts(cluster):
    env = make_env("dp_tp", workload=BURSTY, cluster=cluster)
    rng = np.random.default_rng(0)
    accepted = refused = 0
    for _ in wanderings(env, 1, 30, rng):
        mask = env.action_masks()
        for action in range(env.action_space.n):
            fork = env.fork()
            receipt = fork.core.simulator.apply(decode_action(action, env.core.num_base))
            if mask[action]:
                assert receipt.accepted, f"{decode_action(action, env.core.num_base)}: {receipt.reason}"
                accepted += 1
            elif not receipt.accepted:
                assert receipt.reason
                refused += 1
    assert accepted > 50 or cluster.weights == "sharded"
    assert refused > 10 or cluster.num_gpus == 2


def test_a_refused_action_is_counted_explained_and_changes_nothing():
    env = make_env("dp_tp", workload=BURSTY)
    rng = np.random.default_rng(3)
    refusals = 0
    for _ in wanderings(env, 2, 40, rng):
        fork = env.fork()
        for action in np.flatnonzero(~env.action_masks())[::7]:
            tried, stayed = fork.fork(), fork.fork()
            before = tried.core.num_refused
            ours, theirs = tried.step(int(action)), stayed.step(None)
            if not ours[4]["refused"]:
                continue  # the same as an action that is possible
            refusals += 1
            assert ours[4]["num_refused"] == before + 1
            assert ours[1] == theirs[1]
            np.testing.assert_array_equal(ours[0]["engines"], theirs[0]["engines"])
            np.testing.assert_array_equal(ours[0]["cluster"], theirs[0]["cluster"])
    assert refusals > 5


def test_staying_is_always_possible():
    env = make_env("dp_tp", workload=BURSTY)
    for _ in wanderings(env, 4, 60, np.random.default_rng(4)):
        stay = all_layouts(8).index(env.state.target_layout) * 3
        assert env.action_masks()[stay]
        kept, none = env.fork(), env.fork()
        assert kept.step(stay)[1] == none.step(None)[1]


def test_actions_are_numbered_layout_by_layout():
    assert num_actions(8) == 78
    assert num_actions(4) == 15
    assert num_actions(2) == 6
    for num_base in (2, 4, 8):
        assert [encode_action(decode_action(a, num_base)) for a in range(num_actions(num_base))] == list(
            range(num_actions(num_base))
        )


def test_sharded_weights_allow_nothing_but_staying():
    env = make_env("dp_tp", workload=BURSTY, cluster=ClusterSpec(weights="sharded"))
    env.reset(seed=0)
    assert np.flatnonzero(env.action_masks()).tolist() == [75]
