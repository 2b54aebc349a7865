"""Exhaustive search over deployments, the bound of Algorithm 1 (section 6.4, "treated as the optimal baseline").

Every way to divide D GPUs into replicas is visited, and for each every combination of strategies that the bound of
`strategies.py` leaves open, so that what comes out is the optimum. For OPT-66B that takes a millisecond on 16 GPUs, 30
on 32 and a second on 64; it grows with the partitions of D, and faster where one GPU holds the model. `optimal_plan`
gets the same from one mixed integer program (source: ours) in a tenth of a second at any of these sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from serving_gym.envs.deployment.strategies import Plan, PlanEvaluator, Sizes


def partitions(total: int, sizes: Sequence[int]) -> Iterator[Sizes]:
    """Every way to write `total` as a sum of some sizes, each descending.

    Args:
        total: GPUs.
        sizes: Sizes allowed, descending.
    """
    if total == 0:
        yield ()
        return
    for i, size in enumerate(sizes):
        if size <= total:
            for rest in partitions(total - size, sizes[i:]):
                yield (size, *rest)


def exhaustive_search(evaluator: PlanEvaluator) -> Plan:
    """The best deployment that uses every GPU.

    Raises:
        ValueError: There is none.
    """
    best: Plan | None = None
    for sizes in partitions(evaluator.cluster.num_gpus, sorted(evaluator.options, reverse=True)):
        found = evaluator.better(sizes, best.max_requests if best is not None else -1.0)
        best = found if found is not None else best
    if best is None:
        raise ValueError(f"no deployment uses all of {evaluator.cluster.num_gpus} GPUs")
    return best


def optimal_plan(evaluator: PlanEvaluator, relative_gap: float = 0.0) -> Plan:
    """The same as one mixed integer program, solved by HiGHS.

    maximise theta, or requests served, over whole counts c_k of replicas with sum_j x_kj / n_kj <= c_k and
    sum_k d_k c_k = D, and machines filled by whole patterns of stages that fit one.

    Args:
        evaluator: Cluster, capacities and demand.
        relative_gap: How far from the optimum the search may stop, ratio.

    Raises:
        ValueError: There is no deployment that uses all GPUs.
    """
    by_time = evaluator.objective == "completion_time"
    common = _Program(evaluator, common=True)
    counts, times = common.solve(relative_gap)
    if not by_time and times < 1.0:
        counts, _ = _Program(evaluator, common=False).solve(relative_gap)
    return evaluator.plan({kind: int(c) for kind, c in zip(evaluator.table.kinds, counts, strict=True) if c})


class _Program:
    """Columns: x_kj, c_k, one z_p a pattern and, with `common`, theta."""

    def __init__(self, evaluator: PlanEvaluator, common: bool) -> None:
        self.evaluator, self.common = evaluator, common
        self.K, self.J = evaluator.capacity.shape
        self.patterns = _patterns(
            evaluator.cluster.gpus_per_machine, {kind.tp for kind in evaluator.table.kinds}
        )

    def solve(self, relative_gap: float) -> tuple[NDArray[np.int64], float]:
        """(K,) counts and the value: theta, or requests served."""
        K, J, evaluator = self.K, self.J, self.evaluator
        able = evaluator.capacity > 0
        columns = K * J + K + len(self.patterns) + self.common
        scale = max(float(evaluator.demand.sum()), 1e-12)
        cost = np.zeros(columns)
        if self.common:
            cost[-1] = -1.0
        else:
            cost[: K * J] = -1.0
        upper = np.full(columns, np.inf)
        upper[: K * J] = np.where(able.ravel(), np.inf, 0.0)
        upper[K * J : K * J + K] = evaluator.cluster.num_gpus
        whole = np.zeros(columns)
        whole[K * J : K * J + K + len(self.patterns)] = 1
        solution = milp(
            cost,
            constraints=self._constraints(columns, scale),
            integrality=whole,
            bounds=Bounds(np.zeros(columns), upper),
            options={"mip_rel_gap": relative_gap},
        )
        if solution.x is None:
            raise ValueError(
                f"no deployment uses all of {evaluator.cluster.num_gpus} GPUs: {solution.message}"
            )
        counts = np.rint(solution.x[K * J : K * J + K]).astype(np.int64)
        return counts, -float(solution.fun)

    def _constraints(self, columns: int, scale: float) -> list[LinearConstraint]:
        """Demand, spans, GPUs and machines; requests are counted in units of the demand."""
        K, J, evaluator = self.K, self.J, self.evaluator
        kinds, share = evaluator.table.kinds, evaluator.demand / scale
        entries: list[tuple[int, int, float]] = []
        low, high = [], []
        for j in range(J):
            entries += [(j, k * J + j, 1.0) for k in range(K)]
            if self.common:
                entries.append((j, columns - 1, -share[j]))
            low.append(0.0 if self.common else -np.inf)
            high.append(np.inf if self.common else share[j])
        for k in range(K):
            n = evaluator.capacity[k] / scale
            entries += [(J + k, k * J + j, 1.0 / n[j]) for j in range(J) if n[j] > 0]
            entries.append((J + k, K * J + k, -1.0))
            low.append(-np.inf)
            high.append(0.0)
        row = J + K
        entries += [(row, K * J + k, kinds[k].num_gpus) for k in range(K)]
        entries += [(row + 1, K * J + K + p, 1.0) for p in range(len(self.patterns))]
        low += [evaluator.cluster.num_gpus, 0.0]
        high += [evaluator.cluster.num_gpus, evaluator.cluster.num_machines]
        for i, width in enumerate(sorted({kind.tp for kind in kinds})):
            at = row + 2 + i
            entries += [(at, K * J + k, -kind.pp) for k, kind in enumerate(kinds) if kind.tp == width]
            entries += [
                (at, K * J + K + p, float(pattern.count(width))) for p, pattern in enumerate(self.patterns)
            ]
            low.append(0.0)
            high.append(np.inf)
        at_row, at_column, values = zip(*entries, strict=True)
        matrix = coo_array((values, (at_row, at_column)), shape=(len(low), columns))
        return [LinearConstraint(matrix.tocsr(), np.array(low), np.array(high))]


def _patterns(room: int, widths: set[int]) -> list[Sizes]:
    """Multisets of stages that fill a machine, or that leave less free than the narrowest needs."""
    descending = sorted(widths, reverse=True)
    full: list[Sizes] = []
    for used in range(room, max(room - min(widths), 0), -1):
        full += list(partitions(used, descending))
    return full
