"""Which deployments are worth how much, and the best parallelism for given sizes of replicas (section 4.3).

The upper level asks two things over and over: what a deployment reaches (the lower level, `simplex.py`), and which
combination of strategies S^R is the best for given sizes {d_r}. Replicas of one size are exchangeable, so combinations
are counted, not listed; and a branch is left as soon as a bound says that it cannot win: a group of replicas that may
split its time freely over its strategies is worth n*_dj = max_s n_sj of each type, which no real choice exceeds.

Reading: the text maximises throughput. Where a deployment serves all demand, a better one is recognised by the rate at
which it could serve the same mix (source: ours; `simplex.max_requests`), without which the search would stop at the
first deployment that suffices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_gym.envs.deployment.assignment import Assignment, assign, checked, soonest
from serving_gym.envs.deployment.profiling import CapacityTable
from serving_gym.envs.deployment.simplex import max_requests, most_served, most_times
from serving_gym.envs.machines.cluster import Cluster, ReplicaKind
from serving_gym.envs.machines.placement import packable, stage_widths

FloatArray = NDArray[np.float64]
Sizes = tuple[int, ...]  # GPUs of each replica, descending

OBJECTIVES = ("throughput", "completion_time")
GAIN = 1.0 + 1e-9  # by how much a throughput must be higher to be higher


@dataclass(frozen=True, eq=False)
class Plan:
    """A deployment and the requests that it can serve.

    Attributes:
        kinds: How many replicas of each kind.
        max_requests: Requests that it can serve in a span; see `simplex.max_requests`.
    """

    kinds: Mapping[ReplicaKind, int]
    max_requests: float

    @property
    def sizes(self) -> Sizes:
        """GPUs of each replica, descending."""
        return tuple(
            sorted((k.num_gpus for k, count in self.kinds.items() for _ in range(count)), reverse=True)
        )


class PlanEvaluator:
    """Evaluates deployments on a cluster under one demand; results are kept.

    Args:
        cluster: The cluster.
        table: Capacities.
        demand: (J,), lambda_j, requests a span.
        objective: "throughput" (the text), or "completion_time" (Appendix C): the rate at which the whole mix is served
            even where that is less than what arrives. The former gives up types that are dear when it cannot serve all.

    Raises:
        ValueError: shapes differ, or the objective is unknown.
    """

    def __init__(
        self, cluster: Cluster, table: CapacityTable, demand: ArrayLike, objective: str = "throughput"
    ) -> None:
        if objective not in OBJECTIVES:
            raise ValueError(f"objective={objective!r} is not allowed; choose one of {', '.join(OBJECTIVES)}")
        self.cluster, self.table, self.objective = cluster, table, objective
        self.capacity, self.demand = checked(table.per_span, demand)
        self.options = _options(table, cluster)
        self.most = {size: self.capacity[list(rows)].max(axis=0) for size, rows in self.options.items()}
        self._best: dict[Sizes, Plan | None] = {}
        self.programs = 0

    def value(self, rows: FloatArray) -> float:
        """Requests that groups of replicas can serve in a span.

        Args:
            rows: (groups, J), what each serves of a type alone.
        """
        self.programs += 1
        return max_requests(np.ascontiguousarray(rows), self.demand, self.objective == "completion_time")

    def plan(self, kinds: Mapping[ReplicaKind, int]) -> Plan:
        """A deployment with its value."""
        counts = self.table.counts(kinds)
        present = counts > 0
        return Plan(dict(kinds), self.value(self.capacity[present] * counts[present, None]))

    def assignment(self, plan: Plan) -> tuple[tuple[ReplicaKind, ...], Assignment]:
        """The lower level's answer: one row for each replica, in the order of its kinds."""
        groups = sorted(kind for kind, count in plan.kinds.items() if count)
        counts = np.array([plan.kinds[kind] for kind in groups], np.int64)
        alone = np.array([self.table.row(kind) for kind in groups]).reshape(len(groups), -1)
        solve = soonest if self.objective == "completion_time" else assign
        together = solve(alone * counts[:, None], self.demand)
        requests, capacity = (
            np.repeat(rows, counts, axis=0) for rows in (together.requests / counts[:, None], alone)
        )
        kinds = tuple(kind for kind, count in zip(groups, counts, strict=True) for _ in range(count))
        return kinds, Assignment(requests, capacity, self.demand)

    def utilisation(self, plan: Plan) -> list[tuple[ReplicaKind, float]]:
        """Each replica with the share of its span that a maximum flow keeps it busy; those of one kind alike.

        A demand that leaves the deployment idle is speeded up to what it can just serve, so that somebody is full.
        """
        groups = sorted(kind for kind, count in plan.kinds.items() if count)
        together = np.array([self.table.row(kind) * plan.kinds[kind] for kind in groups])
        times = most_times(together, self.demand)[0]
        speed = times if 1.0 < times < np.inf else 1.0
        busy = most_served(together, self.demand * speed)[1].sum(axis=1)
        return [
            (kind, float(share))
            for kind, share in zip(groups, busy, strict=True)
            for _ in range(plan.kinds[kind])
        ]

    def bound(self, sizes: Mapping[int, int]) -> float:
        """What replicas of some sizes reach at most, whatever their strategies."""
        return self.value(np.array([self.most[size] * count for size, count in sizes.items()]))

    def best(self, sizes: Sizes) -> Plan | None:
        """The best strategies for replicas of some sizes: argmax over S^R. None if no combination fits the machines."""
        if sizes not in self._best:
            self._best[sizes] = self.better(sizes, -1.0)
        return self._best[sizes]

    def better(self, sizes: Sizes, than: float) -> Plan | None:
        """The best strategies for replicas of some sizes if they reach more than `than`, else None."""
        groups = Counter(sizes)
        if any(size not in self.options for size in groups):
            return None
        if self.bound(groups) <= than:
            return None
        order = sorted(groups, key=lambda size: -size * groups[size])
        found = _Search(self, {size: groups[size] for size in order}, than)
        found.descend(0, np.zeros((0, self.capacity.shape[1])), {})
        return found.plan


class _Search:
    """Depth first over the groups of equal size, with the bound of those that are still open."""

    def __init__(self, evaluator: PlanEvaluator, groups: dict[int, int], than: float) -> None:
        self.evaluator, self.groups = evaluator, list(groups.items())
        self.than = than
        self.plan: Plan | None = None

    def descend(self, level: int, rows: FloatArray, kinds: dict[ReplicaKind, int]) -> None:
        """Decides the strategies of one group after another."""
        evaluator = self.evaluator
        if level == len(self.groups):
            value = evaluator.value(rows)
            if value > self.than * GAIN and packable(evaluator.cluster, stage_widths(kinds)):
                self.than, self.plan = value, Plan(dict(kinds), value)
            return
        size, count = self.groups[level]
        options = evaluator.options[size]
        rest = [evaluator.most[other] * times for other, times in self.groups[level + 1 :]]
        for split in _splits(count, len(options)):
            chosen = [(row, times) for row, times in zip(options, split, strict=True) if times]
            mine = np.vstack([rows, *(evaluator.capacity[row] * times for row, times in chosen)])
            if rest and evaluator.value(np.vstack([mine, *rest])) <= self.than * GAIN:
                continue
            added = {evaluator.table.kinds[row]: times for row, times in chosen}
            self.descend(level + 1, mine, {**kinds, **added})


def _splits(count: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to share `count` replicas among `parts` strategies, all of one strategy first."""
    if parts == 1:
        yield (count,)
        return
    for first in range(count, -1, -1):
        for rest in _splits(count - first, parts - 1):
            yield (first, *rest)


def _options(table: CapacityTable, cluster: Cluster) -> dict[int, tuple[int, ...]]:
    """Rows of the table by size of the replica, without those that another row of the size makes needless.

    A row is needless if another serves as much of every type and its stages fit wherever the row's do.
    """
    sizes: dict[int, list[int]] = {}
    for row, kind in enumerate(table.kinds):
        if kind.num_gpus <= cluster.num_gpus and kind.tp <= cluster.gpus_per_machine:
            sizes.setdefault(kind.num_gpus, []).append(row)
    return {
        size: tuple(row for row in rows if not any(_makes_needless(table, other, row) for other in rows))
        for size, rows in sizes.items()
    }


def _makes_needless(table: CapacityTable, other: int, row: int) -> bool:
    a, b = table.per_span[other], table.per_span[row]
    fits = table.kinds[row].tp % table.kinds[other].tp == 0
    return other != row and fits and bool((a >= b).all()) and (bool((a > b).any()) or other < row)
