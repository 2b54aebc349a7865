"""Algorithm 1 and the searches that bound it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest

from serving_gym.baselines.oserve.exhaustive import exhaustive_search, optimal_plan, partitions
from serving_gym.baselines.oserve.generation import GenerationConfig, generate, uniform_sizes
from serving_gym.baselines.oserve.mutations import merge, split, swap
from serving_gym.baselines.oserve.scheduler import strategy_of
from serving_gym.envs.deployment.profiling import CapacityTable
from serving_gym.envs.deployment.strategies import OBJECTIVES, PlanEvaluator
from serving_gym.envs.machines.cluster import Cluster, ReplicaKind
from serving_gym.envs.machines.placement import packable, stage_widths
from tests.baselines.oserve.samples import demand_for

K = ReplicaKind


def test_partitions_by_hand():
    assert list(partitions(6, (4, 3, 2))) == [(4, 2), (3, 3), (2, 2, 2)]
    assert list(partitions(5, (4, 2))) == []


def toy(
    cluster: Cluster, rates: dict[ReplicaKind, tuple[float, ...]], demand: list[float], **options: str
) -> PlanEvaluator:
    """Kinds with given capacities."""
    table = CapacityTable(tuple(rates), np.array(list(rates.values())), 1.0)
    return PlanEvaluator(cluster, table, demand, **options)


APPENDIX_C = {K(2, 2): (10.0, 5.0), K(2, 1): (5.0, 3.0)}


def test_appendix_c_as_a_search():
    """8 GPUs: two of four do 15 s, four of two 100/20 + 100/12 = 13.33 s, one of four and two of two 13.64 s."""
    evaluator = toy(Cluster(1), APPENDIX_C, [100.0, 100.0], objective="completion_time")
    for kinds, seconds in (({K(2, 2): 2}, 15.0), ({K(2): 4}, 40 / 3), ({K(2, 2): 1, K(2): 2}, 150 / 11)):
        assert 200 / evaluator.plan(kinds).max_requests == pytest.approx(seconds)
    assert exhaustive_search(evaluator).kinds == {K(2): 4}
    assert generate(evaluator).plan.kinds == {K(2): 4}
    assert optimal_plan(evaluator).kinds == {K(2): 4}


def by_brute_force(evaluator: PlanEvaluator) -> float:
    """Every count of every kind, without a bound or a dominance."""

    def all_counts(kinds: tuple[ReplicaKind, ...], gpus: int) -> Iterator[dict[ReplicaKind, int]]:
        if not gpus:
            yield {}
        elif kinds:
            for count in range(gpus // kinds[0].num_gpus + 1):
                for rest in all_counts(kinds[1:], gpus - count * kinds[0].num_gpus):
                    yield {kinds[0]: count, **rest}

    every = all_counts(evaluator.table.kinds, evaluator.cluster.num_gpus)
    return max(
        evaluator.plan(plan).max_requests for plan in every if packable(evaluator.cluster, stage_widths(plan))
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_exhaustive_search_is_exhaustive(table, objective):
    """On eight GPUs, against all counts of all kinds; two machines of four make widths hard to pack."""
    for cluster, seed in ((Cluster(1), 0), (Cluster(1), 1), (Cluster(2, 4), 2), (Cluster(2, 4), 3)):
        rows = [
            i
            for i, kind in enumerate(table.kinds)
            if kind.num_gpus <= 8 and kind.tp <= cluster.gpus_per_machine
        ]
        small = CapacityTable(tuple(table.kinds[i] for i in rows), table.per_span[rows])
        evaluator = PlanEvaluator(cluster, small, demand_for(table, 8, seed), objective)
        best = by_brute_force(evaluator)
        assert exhaustive_search(evaluator).max_requests == pytest.approx(best)
        assert optimal_plan(evaluator).max_requests == pytest.approx(best, rel=1e-6)


def test_the_heuristic_is_within_six_percent_of_the_optimum(table, cluster):
    """Section 6.4, on 16 GPUs; the two optima agree."""
    for seed in range(8):
        demand = demand_for(table, 16, seed)
        best = exhaustive_search(PlanEvaluator(cluster, table, demand))
        found = generate(PlanEvaluator(cluster, table, demand), seed=seed)
        assert packable(cluster, stage_widths(found.plan.kinds))
        assert sum(found.plan.sizes) == 16
        assert 0.94 * best.max_requests <= found.plan.max_requests <= best.max_requests * (1 + 1e-9)
        assert optimal_plan(PlanEvaluator(cluster, table, demand)).max_requests == pytest.approx(
            best.max_requests, rel=1e-6
        )


def test_uniform_beginnings_hold_the_model(table, cluster):
    """Section 4.3: the smallest is two GPUs for OPT-66B; 5, 6, 10 and 12 do not divide 16."""
    evaluator = PlanEvaluator(cluster, table, demand_for(table, 16, 0))
    assert uniform_sizes(evaluator) == (2, 4, 8, 16)
    first = generate(evaluator, GenerationConfig(idle_iterations=1, max_iterations=1, restarts=0))
    assert first.iterations == 1
    assert first.plan.max_requests >= evaluator.plan({K(2): 8}).max_requests


def test_a_uniform_workload_gets_a_uniform_deployment_soon(table, cluster):
    """Appendix J: near uniform within two or three iterations, where replicas of one kind are the best there are."""
    siso = np.zeros(4)
    siso[2] = 10**6
    evaluator = PlanEvaluator(cluster, table, siso)
    assert len(generate(evaluator, seed=1).plan.kinds) == 1
    assert generate(evaluator).plan.max_requests == pytest.approx(exhaustive_search(evaluator).max_requests)


def test_two_full_replicas_merge_if_that_serves_more():
    """Ten requests a GPU alone, thirty for two together; the other way round they stay apart."""
    for pair, kinds in ((30.0, {K(2): 1}), (15.0, {K(1): 2})):
        evaluator = toy(Cluster(1, 2), {K(1): (10.0,), K(2): (pair,)}, [100.0])
        assert generate(evaluator, GenerationConfig(restarts=0)).plan.kinds == kinds


class TestMutations:
    """Each operation by hand, with sizes 1, 2, 3, 4 and 6 allowed."""

    ALLOWED = (1, 2, 3, 4, 6)
    random = np.random.default_rng(0)

    def after(
        self, operation: Callable[..., None], sizes: dict[int, int], *args: object
    ) -> set[tuple[int, ...]]:
        """Sizes in replicas' order after every draw that can happen."""
        outcomes = set()
        for _ in range(100):
            copy = dict(sizes)
            operation(copy, *args, self.ALLOWED, self.random)
            outcomes.add(tuple(copy[r] for r in sorted(copy)))
        return outcomes

    def test_merge(self):
        """With 4 or with 2, not with 3, as five GPUs have no strategy, nor with itself."""
        assert self.after(merge, {0: 2, 1: 4, 2: 3, 3: 2}, 0, [0, 1, 2, 3]) == {(6, 3, 2), (4, 4, 3)}
        assert self.after(merge, {0: 2, 1: 4}, 0, [0]) == {(2, 4)}

    def test_split(self):
        """6 into 2 + 4 or 3 + 3; one GPU cannot be split."""
        assert self.after(split, {0: 6, 1: 1}, 0) == {(4, 1, 2), (2, 1, 4), (3, 1, 3)}
        assert self.after(split, {0: 1}, 0) == {(1,)}

    def test_swap(self):
        """The giver keeps at least one GPU, the taker's size is allowed; who is gone gives nothing."""
        assert self.after(swap, {0: 4, 1: 2}, [0], [1]) == {(3, 3), (2, 4)}
        assert self.after(swap, {0: 1, 1: 2}, [0], [1]) == {(1, 2)}
        assert self.after(swap, {1: 2, 2: 2}, [0, 1], [2]) == {(1, 3)}


def test_a_search_that_improves_nothing_ends_with_what_it_had():
    """Twenty idle iterations, and the deployment is the one of the beginning: every change was taken back."""
    evaluator = toy(Cluster(1, 4), {K(1): (10.0,), K(2): (15.0,), K(4): (20.0,)}, [100.0])
    found = generate(evaluator, GenerationConfig(restarts=0))
    assert found.iterations == 20
    assert found.plan.kinds == {K(1): 4}


def test_strategies_are_the_best_of_all_combinations():
    """Sizes 4, 4 and 2: for each the best of what every combination reaches."""
    rates = {K(4): (10.0, 90.0), K(2, 2): (60.0, 20.0), K(2): (12.0, 14.0), K(1, 2): (20.0, 1.0)}
    evaluator = toy(Cluster(2, 8), rates, [70.0, 80.0])
    every = [
        evaluator.plan({K(4): four, K(2, 2): 2 - four, K(2): two, K(1, 2): 1 - two}).max_requests
        for four, two in product((0, 1, 2), (0, 1))
    ]
    best = evaluator.best((4, 4, 2))
    assert best is not None
    assert best.max_requests == max(every)


def test_a_seed_gives_the_same_deployment_and_bad_input_is_refused(table, cluster):
    demand = demand_for(table, 16, 5)
    one, two = (generate(PlanEvaluator(cluster, table, demand), seed=9) for _ in range(2))
    assert (one.plan.kinds, one.iterations) == (two.plan.kinds, two.iterations)
    with pytest.raises(ValueError, match="objective='speed'"):
        PlanEvaluator(cluster, table, demand, "speed")
    with pytest.raises(ValueError, match="idle_iterations must be at least 1"):
        GenerationConfig(idle_iterations=0)
    with pytest.raises(ValueError, match="no replicas of equal size fill 8 GPUs"):
        generate(toy(Cluster(1), {K(3): (1.0,)}, [1.0]))


def test_a_serving_strategy_says_who_serves_what_where(table, cluster):
    """Rows follow the placed replicas, and those that both spans have keep their GPUs."""
    first = PlanEvaluator(cluster, table, demand_for(table, 16, 2))
    plan = generate(first, GenerationConfig(restarts=2)).plan
    before = strategy_of(first, plan)
    again = strategy_of(first, plan, before.deployment)
    assert again.deployment == before.deployment
    second = PlanEvaluator(cluster, table, demand_for(table, 16, 3))
    for strategy in (before, strategy_of(second, generate(second).plan, before.deployment)):
        for replica, capacity in zip(strategy.deployment.replicas, strategy.assignment.capacity, strict=True):
            np.testing.assert_array_equal(capacity, table.row(replica.kind))
        assert (strategy.assignment.utilisation <= 1 + 1e-9).all()
        assert (strategy.assignment.requests.sum(axis=0) <= strategy.assignment.demand * (1 + 1e-9)).all()


def test_the_assignment_of_a_plan_has_a_row_for_each_replica(table, cluster):
    evaluator = PlanEvaluator(cluster, table, demand_for(table, 16, 2))
    plan = evaluator.plan({K(4): 2, K(2, 2): 1, K(2): 2})
    kinds, assignment = evaluator.assignment(plan)
    assert kinds == (K(2), K(2), K(2, 2), K(4), K(4))
    assert assignment.requests.shape == (5, 4)
    np.testing.assert_array_equal(assignment.requests[3], assignment.requests[4])
    assert (assignment.utilisation <= 1 + 1e-9).all()
