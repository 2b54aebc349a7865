"""Kinds of replicas and where they stand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_gym.calibration.models import get_model
from serving_gym.envs.machines.cluster import Cluster, Deployment, Replica, ReplicaKind, replica_kinds
from serving_gym.envs.machines.placement import packable, place, stage_widths

K = ReplicaKind


def test_every_strategy_of_table_3_is_a_kind_of_opt_66b_on_16_gpus():
    kinds = set(replica_kinds(get_model("opt-66b"), Cluster(2)))
    assert {K(3, 2), K(2, 2), K(2), K(4, 2), K(1, 4), K(1, 2)} <= kinds


def test_degrees_divide_the_heads_and_spread_the_layers():
    """64 heads over 8 key/value heads: no width of 3; 64 layers over 7 stages leave one with 10 of 9.1."""
    assert {kind.tp for kind in replica_kinds(get_model("llama-2-70b"), Cluster(4))} == {1, 2, 4, 8}
    opt = replica_kinds(get_model("opt-66b"), Cluster(4))
    assert {kind.tp for kind in opt} == {1, 2, 3, 4, 6, 8}
    assert {kind.pp for kind in opt} == {1, 2, 3, 4, 5, 6, 8}
    assert max(kind.num_gpus for kind in replica_kinds(get_model("opt-66b"), Cluster(1))) == 8


def test_kinds_and_deployments_are_written_as_in_table_3():
    assert [str(kind) for kind in (K(3, 2), K(2), K(1, 4), K(1))] == [
        "(TP=3, PP=2)",
        "(TP=2)",
        "(PP=4)",
        "(TP=1)",
    ]
    first = {K(3, 2): 1, K(2, 2): 1, K(2): 3}  # trace 1, P1: five replicas on 16 GPUs
    assert str(place(Cluster(2), first)) == "(TP=3, PP=2), (TP=2, PP=2), (TP=2)×3"


def test_stages_of_three_leave_gaps_that_stages_of_two_fill():
    """Trace 1, P6: 4 + 6 + 6 GPUs fit as 3 + 3 + 2 in each machine; 3 x 4 + 4 do not fit at all."""
    assert packable(Cluster(2), stage_widths({K(2, 2): 1, K(3, 2): 2}))
    assert not packable(Cluster(2), stage_widths({K(3, 2): 2, K(4): 1}))
    with pytest.raises(ValueError, match="do not fit 2 machines of 8 GPUs"):
        place(Cluster(2), {K(3, 2): 2, K(4): 1})


kind_counts = st.dictionaries(
    st.sampled_from([K(1), K(2), K(3), K(4), K(6), K(8), K(2, 2), K(3, 2), K(1, 4), K(4, 2)]),
    st.integers(0, 4),
)


@given(kind_counts, kind_counts)
def test_what_can_be_packed_is_placed_and_what_can_stay_stays(first, second):
    cluster = Cluster(2)
    if not packable(cluster, stage_widths(first)) or not packable(cluster, stage_widths(second)):
        return
    before = place(cluster, first)
    after = place(cluster, second, before)
    assert before.kinds == +Counter(first)
    assert after.kinds == +Counter(second)
    assert place(cluster, first, before).replicas == before.replicas


def test_a_replica_of_both_deployments_keeps_its_gpus():
    """Trace 1, P1 to P2: (TP=3, PP=2) and a (TP=2) become (TP=4, PP=2); the others need not move."""
    cluster = Cluster(2)
    before = place(cluster, {K(3, 2): 1, K(2, 2): 1, K(2): 3})
    after = place(cluster, {K(4, 2): 1, K(2, 2): 1, K(2): 2}, before)
    assert len(set(before.replicas) & set(after.replicas)) >= 2


def test_deployments_that_cannot_be_are_refused():
    cluster = Cluster(2)
    with pytest.raises(ValueError, match="it must lie in one"):
        Deployment(cluster, (Replica(K(2), (7, 8)),))
    with pytest.raises(ValueError, match="disjoint"):
        Deployment(cluster, (Replica(K(2), (0, 1)), Replica(K(2), (1, 2))))
    with pytest.raises(ValueError, match="4 different GPUs"):
        Replica(K(2, 2), (0, 1, 2))
    with pytest.raises(ValueError, match=r"cluster.nvlink_bytes_per_s must be positive"):
        Cluster(2, nvlink_bytes_per_s=0.0)


def test_packing_is_exact():
    """Against every way to fill two machines of six, by brute force."""
    cluster, widths = Cluster(2, 6), (1, 2, 3, 4)
    random = np.random.default_rng(0)
    for _ in range(60):
        stages = sorted(random.choice(widths, random.integers(1, 8)).tolist(), reverse=True)
        sums = {0}
        for width in stages:
            sums |= {some + width for some in sums}
        fits = any(some <= 6 and sum(stages) - some <= 6 for some in sums)
        assert packable(cluster, stage_widths(Counter(K(width) for width in stages))) == fits
