"""Prefill and decode workers: how much of a demand they serve, and how GPUs are best divided between them.

A span's demand keeps the workers of a phase busy for sum_j lambda_j / n_j of their spans; a division serves as many
times the demand as its scarcer phase does (source: ours; a planner like Dynamo's, `baselines/oserve/dynamo.py`, counts
likewise).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_gym.envs.deployment.assignment import checked
from serving_gym.envs.deployment.profiling import CapacityTable
from serving_gym.envs.deployment.strategies import Plan
from serving_gym.envs.machines.cluster import Cluster, ReplicaKind
from serving_gym.envs.machines.placement import packable, stage_widths

FloatArray = NDArray[np.float64]
Kinds = dict[ReplicaKind, int]

PREFILL, DECODE = "prefill", "decode"
MOST_TIMES = 1e6  # what a division serves where hardly anything is expected, times the demand


def spans_of_work(table: CapacityTable, kind: ReplicaKind, demand: FloatArray) -> float:
    """How many spans one worker would need for the demand; infinite for a type that it cannot serve.

    Args:
        table: Capacities of workers.
        kind: Of the worker.
        demand: (J,), requests.
    """
    n = table.row(kind)
    some = demand > 0
    if (n[some] <= 0).any():
        return float(np.inf)
    return float((demand[some] / n[some]).sum())


def rebalance(
    cluster: Cluster,
    table: CapacityTable,
    prefill: ReplicaKind,
    decode: ReplicaKind,
    demand: ArrayLike,
    decode_weight: float = 1.0,
) -> tuple[Kinds, float]:
    """Numbers of workers for the demand of a span.

    Args:
        cluster: The cluster.
        table: Capacities of both kinds of workers.
        prefill: Kind of the prefill workers.
        decode: Kind of the decode workers.
        demand: (J,), requests.
        decode_weight: Times that the work of decoding is counted.

    Returns:
        Numbers of workers, at least one of each, and how many times the demand they serve in a span. Of numbers that
        serve as much, those that leave fewest GPUs idle.

    Raises:
        ValueError: A kind has another role, or one worker of each does not fit.
    """
    for kind, role in ((prefill, PREFILL), (decode, DECODE)):
        if kind.role != role:
            raise ValueError(f"{kind} must have the role {role}")
    arriving = checked(table.per_span, demand)[1]
    prefill_work, decode_work = (spans_of_work(table, kind, arriving) for kind in (prefill, decode))
    if not _counts(cluster, prefill, decode):
        raise ValueError(f"no {prefill} and {decode} fit {cluster.num_gpus} GPUs together")
    return _divided(cluster, prefill, decode, prefill_work, decode_work * decode_weight)


def _divided(
    cluster: Cluster, prefill: ReplicaKind, decode: ReplicaKind, prefill_work: float, decode_work: float
) -> tuple[Kinds, float]:
    """The best numbers of workers for what each phase needs, spans of one worker; as `rebalance`."""

    def times(counts: tuple[int, int, int]) -> float:
        first, second, _ = counts
        return min(
            first / prefill_work if prefill_work else np.inf, second / decode_work if decode_work else np.inf
        )

    best = max(_counts(cluster, prefill, decode), key=lambda counts: (times(counts), counts[2], -counts[0]))
    return {prefill: best[0], decode: best[1]}, float(times(best))


@lru_cache(maxsize=4096)
def _counts(cluster: Cluster, prefill: ReplicaKind, decode: ReplicaKind) -> tuple[tuple[int, int, int], ...]:
    """Numbers of prefill workers, with the most decode workers that fit beside them, and the GPUs of all."""
    found = []
    for first in range(1, cluster.num_gpus // prefill.num_gpus + 1):
        for second in range((cluster.num_gpus - first * prefill.num_gpus) // decode.num_gpus, 0, -1):
            if packable(cluster, stage_widths({prefill: first, decode: second})):
                found.append((first, second, first * prefill.num_gpus + second * decode.num_gpus))
                break
    return tuple(found)


def pairs_of(cluster: Cluster, table: CapacityTable) -> list[tuple[ReplicaKind, ReplicaKind]]:
    """Kinds of prefill and of decode workers that fit a cluster together.

    Args:
        cluster: The cluster.
        table: Capacities of the kinds to choose from.
    """
    return list(_pairs(cluster, table.kinds))


@lru_cache(maxsize=64)
def _pairs(cluster: Cluster, kinds: tuple[ReplicaKind, ...]) -> tuple[tuple[ReplicaKind, ReplicaKind], ...]:
    prefills, decodes = ([kind for kind in kinds if kind.role == role] for role in (PREFILL, DECODE))
    return tuple(
        pair for pair in product(prefills, decodes) if packable(cluster, stage_widths(dict.fromkeys(pair, 1)))
    )


class Divisions:
    """Divisions of a cluster between prefill and decode workers, and what they reach of a demand.

    Args:
        cluster: The cluster.
        table: Capacities.
        demand: (J,), requests a span.
        holds: Whether workers of a kind are to be proposed; None: all are.
    """

    def __init__(
        self,
        cluster: Cluster,
        table: CapacityTable,
        demand: FloatArray,
        holds: Callable[[ReplicaKind], bool] | None = None,
    ) -> None:
        self.cluster, self.table, self.demand, self.holds = cluster, table, demand, holds
        self._work: dict[ReplicaKind, float] = {}

    def rooms(self, kinds: Mapping[ReplicaKind, int]) -> tuple[float, float]:
        """Times the demand that prefill and decode workers serve; replicas that do both count for both.

        Args:
            kinds: How many there are of each kind.
        """
        rooms = []
        for role in (PREFILL, DECODE):
            each = [
                count / max(self._of(kind), 1 / MOST_TIMES)
                for kind, count in kinds.items()
                if kind.role in (role, "mixed")
            ]
            rooms.append(min(sum(each), MOST_TIMES))
        return rooms[0], rooms[1]

    def plan(self, kinds: Mapping[ReplicaKind, int]) -> Plan:
        """A division with what it reaches, requests a span."""
        return Plan(dict(kinds), min(self.rooms(kinds)) * float(self.demand.sum()))

    def best(self) -> list[Plan]:
        """The best division with decode workers of each size, the one that reaches most first."""
        found: dict[int, Plan] = {}
        offered = tuple(kind for kind in self.table.kinds if self.holds is None or self.holds(kind))
        for prefill, decode in _pairs(self.cluster, offered):
            work = self._of(prefill), self._of(decode)
            if not np.isfinite(sum(work)):
                continue
            plan = self.plan(_divided(self.cluster, prefill, decode, *work)[0])
            size = decode.num_gpus
            if size not in found or plan.max_requests > found[size].max_requests:
                found[size] = plan
        return sorted(found.values(), key=lambda plan: -plan.max_requests)

    def neighbours(self, kinds: Mapping[ReplicaKind, int]) -> list[Plan]:
        """Divisions in which one worker more, or one less, prefills, and the other workers have what is left.

        Args:
            kinds: A division of one kind of prefill and one of decode workers.
        """
        workers = {kind.role: kind for kind in kinds}
        if len(kinds) != 2 or set(workers) != {PREFILL, DECODE}:
            return []
        prefill, decode = workers[PREFILL], workers[DECODE]
        found = []
        for first in (kinds[prefill] - 1, kinds[prefill] + 1):
            left = (self.cluster.num_gpus - first * prefill.num_gpus) // decode.num_gpus
            counts = range(left if first > 0 else 0, 0, -1)
            fitting = ({prefill: first, decode: count} for count in counts)
            plan = next((k for k in fitting if packable(self.cluster, stage_widths(k))), None)
            if plan is not None and plan != dict(kinds):
                found.append(self.plan(plan))
        return found

    def _of(self, kind: ReplicaKind) -> float:
        if kind not in self._work:
            self._work[kind] = spans_of_work(self.table, kind, self.demand)
        return self._work[kind]
