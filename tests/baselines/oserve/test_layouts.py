"""Layouts of the baselines."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.baselines.oserve.dynamo import best_workers
from serving_gym.baselines.oserve.exhaustive import exhaustive_search
from serving_gym.baselines.oserve.uniform import uniform_layouts, vllm_reload, vllm_static
from serving_gym.envs.deployment.division import rebalance, spans_of_work
from serving_gym.envs.deployment.profiling import CapacityTable, profile_capacities
from serving_gym.envs.deployment.strategies import PlanEvaluator
from serving_gym.envs.machines.cluster import Cluster, ReplicaKind
from tests.baselines.oserve.samples import ENGINE, demand_for, lengths

K = ReplicaKind


def test_uniform_layouts_take_all_gpus_that_they_can():
    """Stages of three: two in a machine of eight, four in two machines, so two pipelines of two stages."""
    layouts = uniform_layouts(Cluster(2), [K(2), K(3), K(6), K(3, 2), K(8, 2), K(16)])
    assert layouts == [{K(2): 8}, {K(3): 4}, {K(6): 2}, {K(3, 2): 2}, {K(8, 2): 1}]


def small() -> CapacityTable:
    """Four GPUs: one GPU is good at type 1, two together at type 2."""
    return CapacityTable((K(1), K(2)), np.array([[10.0, 1.0], [12.0, 10.0]]))


def test_reload_takes_the_best_uniform_layout_of_a_span():
    cluster = Cluster(1, 4)
    assert vllm_reload(PlanEvaluator(cluster, small(), [40.0, 0.0])).kinds == {K(1): 4}
    assert vllm_reload(PlanEvaluator(cluster, small(), [0.0, 20.0])).kinds == {K(2): 2}


def test_static_takes_the_layout_that_serves_most_of_the_trace():
    """Four small replicas serve 40 or 4, two large ones 24 or 20."""
    cluster = Cluster(1, 4)
    assert vllm_static(cluster, small(), [[40, 0], [0, 20]]) == {K(2): 2}  # 24 + 20 against 40 + 4
    assert vllm_static(cluster, small(), [[40, 0], [40, 0], [0, 20]]) == {
        K(1): 4
    }  # 40 + 40 + 4 against 24 + 24 + 20
    assert vllm_static(cluster, small(), [[20, 0], [0, 0]]) == {
        K(1): 4
    }  # both serve all: 40 / 20 against 24 / 20


def test_a_span_of_its_own_layout_is_never_worse_and_a_mixed_one_never_worse_still(table, cluster):
    demands = np.array([demand_for(table, 16, seed) for seed in range(6)])
    static = vllm_static(cluster, table, demands)
    for demand in demands:
        evaluator = PlanEvaluator(cluster, table, demand)
        reload, best = vllm_reload(evaluator), exhaustive_search(evaluator)
        assert evaluator.plan(static).max_requests <= reload.max_requests * (1 + 1e-9)
        if sum(reload.sizes) == 16:
            assert reload.max_requests <= best.max_requests * (1 + 1e-9)


def workers() -> CapacityTable:
    """A prefill worker of one GPU and a decode worker of two."""
    kinds = (K(1, 1, "prefill"), K(2, 1, "decode"))
    return CapacityTable(kinds, np.array([[100.0, 20.0], [40.0, 40.0]]))


def test_gpus_follow_the_phase_that_is_short():
    """Eight GPUs, 60 requests. Type 1: 0.6 of a prefill and 1.5 of a decode span; type 2: 3 and 1.5."""
    table, cluster = workers(), Cluster(1)
    prefill, decode = table.kinds
    assert spans_of_work(table, prefill, np.array([60.0, 0.0])) == pytest.approx(0.6)
    # 2 + 3 x 2 GPUs: min(2 / 0.6, 3 / 1.5) = 2. One prefill worker would leave room for no fourth decode worker but
    # serve min(1 / 0.6, 2) = 1.67.
    kinds, times = rebalance(cluster, table, prefill, decode, [60.0, 0.0])
    assert (kinds, times) == ({prefill: 2, decode: 3}, pytest.approx(2.0))
    # 4 + 2 x 2 GPUs: min(4 / 3, 2 / 1.5).
    kinds, times = rebalance(cluster, table, prefill, decode, [0.0, 60.0])
    assert (kinds, times) == ({prefill: 4, decode: 2}, pytest.approx(4 / 3))


def test_the_best_workers_of_a_trace():
    """Decode workers of one GPU that do a third as much are worse, whatever the mix."""
    kinds = (*workers().kinds, K(1, 1, "decode"))
    table = CapacityTable(kinds, np.vstack([workers().per_span, [[13.0, 13.0]]]))
    assert best_workers(Cluster(1), table, [[60, 0], [0, 60]]) == kinds[:2]
    with pytest.raises(ValueError, match="prefill and decode workers that hold"):
        best_workers(Cluster(1), small(), [[1, 1]])
    with pytest.raises(ValueError, match="must have the role prefill"):
        rebalance(Cluster(1), table, kinds[1], kinds[1], [1, 1])
    with pytest.raises(ValueError, match=r"demands must be \(spans, 2 types\)"):
        vllm_static(Cluster(1), small(), [[1, 1, 1]])


def test_workers_are_profiled_by_role():
    """Long prompts call for prefill workers, long answers for decode workers."""
    kinds = [K(tp, 1, role) for tp in (2, 4) for role in ("prefill", "decode")]
    table = profile_capacities(ENGINE, kinds, [lengths(1200, 50), lengths(200, 400)])
    cluster, (prefill, decode) = Cluster(2), (K(2, 1, "prefill"), K(4, 1, "decode"))
    reading, _ = rebalance(cluster, table, prefill, decode, [1000.0, 0.0])
    writing, _ = rebalance(cluster, table, prefill, decode, [0.0, 1000.0])
    assert reading[prefill] > writing[prefill]
    assert reading[decode] < writing[decode]
