"""A planner like Dynamo's: prefill and decode workers of fixed parallelism, whose numbers follow the demand.

Section 6.1: "dynamically rebalances GPUs"; Appendix H: it autoscales prefill and decode workers, "whereas Dynamo fixes
per-worker parallelism". How Dynamo's planner counts is not in the text. Here: what arrives in a span keeps the workers
of a phase busy for sum_j lambda_j / n_j of their spans, and GPUs are divided so that the phase with less room has most
of it (source: ours). Both parallelisms are the best ones for the whole trace, as all baselines are given their best.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from baselines.oserve.uniform import Kinds, over_trace, spans
from envs.deployment.assignment import checked
from envs.deployment.cluster import Cluster, ReplicaKind
from envs.deployment.placement import packable, stage_widths
from envs.deployment.profiling import CapacityTable

FloatArray = NDArray[np.float64]


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
    cluster: Cluster, table: CapacityTable, prefill: ReplicaKind, decode: ReplicaKind, demand: ArrayLike
) -> tuple[Kinds, float]:
    """Numbers of workers for the demand of a span.

    Args:
        cluster: The cluster.
        table: Capacities of both kinds of workers.
        prefill: Kind of the prefill workers.
        decode: Kind of the decode workers.
        demand: (J,), requests.

    Returns:
        Numbers of workers, at least one of each, and how many times the demand they serve in a span.

    Raises:
        ValueError: A kind has another role, or one worker of each does not fit.
    """
    for kind, role in ((prefill, "prefill"), (decode, "decode")):
        if kind.role != role:
            raise ValueError(f"{kind} must have the role {role}")
    arriving = checked(table.per_span, demand)[1]
    work = [spans_of_work(table, kind, arriving) for kind in (prefill, decode)]
    found: list[tuple[float, int, Kinds]] = []
    for first in range(1, cluster.num_gpus // prefill.num_gpus + 1):
        for second in range((cluster.num_gpus - first * prefill.num_gpus) // decode.num_gpus, 0, -1):
            kinds = {prefill: first, decode: second}
            if packable(cluster, stage_widths(kinds)):
                times = min(
                    count / of if of else np.inf for count, of in zip((first, second), work, strict=True)
                )
                found.append((float(times), -first, kinds))
                break
    if not found:
        raise ValueError(f"no {prefill} and {decode} fit {cluster.num_gpus} GPUs together")
    times, _, best = max(found, key=lambda entry: entry[:2])
    return best, times


def best_workers(
    cluster: Cluster, table: CapacityTable, demands: ArrayLike
) -> tuple[ReplicaKind, ReplicaKind]:
    """Parallelism of prefill and of decode workers that serves most of a trace when their numbers follow it.

    Args:
        cluster: The cluster.
        table: Capacities of the kinds to choose from, of both roles.
        demands: (T, J), requests of each type in each span.

    Raises:
        ValueError: A role has no kind, no pair fits, or the demands have another form.
    """
    prefills, decodes = (
        [kind for kind in table.kinds if kind.role == role] for role in ("prefill", "decode")
    )
    worths = spans(cluster, table, demands)

    def served(pair: tuple[ReplicaKind, ReplicaKind]) -> tuple[float, float]:
        times = [rebalance(cluster, table, *pair, worth.demand)[1] for worth in worths]
        return over_trace(
            worths, [float(worth.demand.sum()) * some for worth, some in zip(worths, times, strict=True)]
        )

    pairs = [
        pair for pair in product(prefills, decodes) if packable(cluster, stage_widths(dict.fromkeys(pair, 1)))
    ]
    if not pairs:
        raise ValueError("the table must have kinds of role prefill and of role decode that fit together")
    return max(pairs, key=served)
