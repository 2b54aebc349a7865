"""Divisions between prefill and decode workers, and which of them can be chosen."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from serving_gym.envs.deployment.candidate_rows import CANDIDATE_FEATURES
from serving_gym.envs.deployment.candidates import find_candidates
from serving_gym.envs.deployment.division import Divisions, rebalance
from serving_gym.envs.deployment.observation import REPLICA_FEATURES
from serving_gym.envs.deployment.profiling import CapacityTable
from serving_gym.envs.deployment.state import Deploy
from serving_gym.envs.deployment.strategies import PlanEvaluator
from serving_gym.envs.machines.cluster import Cluster, ReplicaKind
from tests.defaults import make_env
from tests.environments.deployment.samples import BASE, SMALL, play

K = ReplicaKind
BOTH, PREFILL, DECODE, WIDE = K(1), K(1, 1, "prefill"), K(1, 1, "decode"), K(2, 1, "decode")
TABLE = CapacityTable(
    (BOTH, PREFILL, DECODE, WIDE), np.array([[8.0, 8.0], [30.0, 60.0], [15.0, 15.0], [40.0, 40.0]])
)
CLUSTER = Cluster(1, 4)
DEMAND = np.array([30.0, 60.0])


def divisions(holds=None) -> Divisions:
    return Divisions(CLUSTER, TABLE, DEMAND, holds)


def test_the_scarcer_phase_decides():
    """A prefill worker takes 30/30 + 60/60 = 2 spans for the demand, a decode worker 90/15 = 6, a wide one 2.25."""
    assert divisions().rooms({PREFILL: 1, DECODE: 3}) == pytest.approx((0.5, 0.5))
    assert divisions().rooms({PREFILL: 2, WIDE: 1}) == pytest.approx((1.0, 1 / 2.25))
    assert divisions().plan({PREFILL: 2, WIDE: 1}).max_requests == pytest.approx(40.0)  # of 90
    assert divisions().rooms({BOTH: 4}) == pytest.approx((4 / 11.25, 4 / 11.25))


def test_the_best_division_of_each_size_of_decode_workers():
    """With narrow ones 1 + 3, half the demand; with a wide one 2 + 1, 1 / 2.25 of it."""
    best = divisions().best()
    assert [dict(plan.kinds) for plan in best] == [{PREFILL: 1, DECODE: 3}, {PREFILL: 2, WIDE: 1}]
    assert [plan.max_requests for plan in best] == pytest.approx([45.0, 40.0])
    (only,) = divisions(lambda kind: kind != DECODE).best()
    assert WIDE in only.kinds


def test_idle_gpus_break_ties():
    """One prefill worker or two, the wide decode worker is the bottleneck."""
    assert rebalance(CLUSTER, TABLE, PREFILL, WIDE, DEMAND)[0] == {PREFILL: 2, WIDE: 1}


def test_neighbours_have_one_prefill_worker_more_or_less():
    near = divisions().neighbours({PREFILL: 2, DECODE: 2})
    assert [dict(plan.kinds) for plan in near] == [{PREFILL: 1, DECODE: 3}, {PREFILL: 3, DECODE: 1}]
    assert [dict(plan.kinds) for plan in divisions().neighbours({PREFILL: 1, DECODE: 3})] == [
        {PREFILL: 2, DECODE: 2}
    ]
    assert divisions().neighbours({BOTH: 4}) == []


def test_more_weight_on_decoding_gives_it_more_gpus():
    table = CapacityTable((PREFILL, DECODE), np.array([[15.0, 15.0], [15.0, 15.0]]))
    assert rebalance(CLUSTER, table, PREFILL, DECODE, DEMAND)[0] == {PREFILL: 2, DECODE: 2}
    assert rebalance(CLUSTER, table, PREFILL, DECODE, DEMAND, 3.0)[0] == {PREFILL: 1, DECODE: 3}
    assert rebalance(CLUSTER, table, PREFILL, DECODE, DEMAND, 0.3)[0] == {PREFILL: 3, DECODE: 1}


@pytest.mark.parametrize("most", [2, 3, 4, 16])
@pytest.mark.parametrize("present", [{BOTH: 4}, {PREFILL: 2, DECODE: 2}])
def test_there_are_never_more_choices_than_asked_for(most, present):
    evaluator = PlanEvaluator(CLUSTER, TABLE.of_role("mixed"), DEMAND)
    found = find_candidates(evaluator, present, most, divisions())
    assert 0 < len(found) <= most
    assert found[0].stay
    assert dict(found[0].plan.kinds) == present
    assert sum(candidate.stay for candidate in found) == (1 if PREFILL in present else 2)
    assert sum(candidate.divided and not candidate.stay for candidate in found) <= most // 2
    keys = [(str(sorted(c.plan.kinds.items())), c.apart) for c in found]
    assert len(set(keys)) == len(keys)
    assert not any(candidate.divided and candidate.apart for candidate in found)


def test_an_agent_can_divide_the_cluster_and_undo_it():
    env = make_env("deployment", **BASE | {"cluster": dataclasses.replace(SMALL, disaggregation=True)})

    def choose(env):
        """Divided in one span, not in the next."""
        here = env.core.candidates[0].divided
        return next((i for i, c in enumerate(env.core.candidates) if c.divided != here), 0)

    seen = Counter()
    for observation, *_, info in play(env, 2, choose):
        assert info["refused"] == ""
        assert env.observation_space.contains(observation)
        rows = observation["replicas"][: len(env.state.deployment.replicas)]
        prefills, decodes = (rows[:, REPLICA_FEATURES.index(name)] for name in ("prefills", "decodes"))
        roles = [replica.kind.role for replica in env.state.deployment.replicas]
        assert prefills.tolist() == [role != "decode" for role in roles]
        assert decodes.tolist() == [role != "prefill" for role in roles]
        seen["decode" in roles] += 1
    assert seen[True] > 1
    assert seen[False] > 1
    assert env.records().finished.all()


def test_a_divided_candidate_shows_both_phases():
    env = make_env("deployment", **BASE | {"cluster": dataclasses.replace(SMALL, disaggregation=True)})
    observation, _ = env.reset(seed=0)
    number = next(i for i, c in enumerate(env.core.candidates) if c.divided)
    candidate, row = env.core.candidates[number], observation["candidates"][number]
    shown = dict(zip(CANDIDATE_FEATURES, row.tolist(), strict=False))
    rooms = env.core.setting.divisions(env.core.forecast).rooms(candidate.plan.kinds)
    assert np.expm1((shown["prefill_room"], shown["decode_room"])) == pytest.approx(rooms, rel=1e-5)
    assert np.expm1(shown["room"]) == pytest.approx(min(rooms), rel=1e-5)
    prefill = {kind: n for kind, n in candidate.plan.kinds.items() if kind.role == "prefill"}
    assert shown["prefill_gpus"] == pytest.approx(sum(k.num_gpus * n for k, n in prefill.items()) / 4)
    table = env.core.setting.table
    each = [
        sum(table.row(kind) * n for kind, n in candidate.plan.kinds.items() if kind.role == role)
        for role in ("prefill", "decode")
    ]
    np.testing.assert_allclose(
        np.expm1(row[len(CANDIDATE_FEATURES) :]), np.minimum(*each) / env.core.forecast, rtol=1e-4
    )
    env.step(Deploy(env.core.placed(candidate)))
    assert env.core.candidates[0].divided
