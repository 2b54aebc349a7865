"""A planner like Dynamo's: prefill and decode workers of fixed parallelism, whose numbers follow the demand.

Section 6.1: "dynamically rebalances GPUs"; Appendix H: it autoscales prefill and decode workers, "whereas Dynamo fixes
per-worker parallelism". How Dynamo's planner counts is not in the text. Here: what arrives in a span keeps the workers
of a phase busy for sum_j lambda_j / n_j of their spans, and GPUs are divided so that the phase with less room has most
of it (source: ours). Both parallelisms are the best ones for the whole trace, as all baselines are given their best.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from baselines.common.deploying import DeployingPolicy
from baselines.oserve.uniform import Kinds, over_trace, spans
from baselines.policy import Action, PolicySpec
from envs.deployment.assignment import checked
from envs.deployment.profiling import CapacityTable
from envs.deployment.state import DeploymentState
from envs.machines.cluster import Cluster, ReplicaKind
from envs.machines.placement import packable, stage_widths

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


class DynamoPolicy(DeployingPolicy):
    """Numbers of prefill and decode workers follow the forecast; their parallelism is the best for the past.

    It needs a cluster that allows such workers (`cluster.disaggregation`). Requests go to prefill workers evenly.

    Args:
        min_gain: Share by which a division must serve more than the present one to replace it. Source: ours.

    Raises:
        ValueError: `min_gain` is negative.
    """

    name = "dynamo"

    def __init__(self, min_gain: float = 0.05) -> None:
        if not 0 <= min_gain < float("inf"):
            raise ValueError(f"min_gain must be finite and not negative, got {min_gain}")
        self.min_gain = min_gain

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Chooses the parallelism of both kinds of workers.

        Raises:
            ValueError: the cluster allows no prefill and decode workers.
        """
        super().reset(spec, seed)
        if all(kind.role == "mixed" for kind in self.setting.table.kinds):
            raise ValueError("dynamo needs prefill and decode workers: set cluster.disaggregation=true")
        self.workers = self.setting.table.of_role("prefill", "decode")
        self.prefill, self.decode = best_workers(self.setting.cluster, self.workers, self.setting.past)

    def act(self, observation: Any, state: DeploymentState) -> Action:
        """The division of GPUs for the next span."""
        if state.switch is not None or state.forecast.sum() <= 0:
            return None
        kinds, times = rebalance(
            self.setting.cluster, self.workers, self.prefill, self.decode, state.forecast
        )
        present = state.deployment.kinds
        if set(present) == {self.prefill, self.decode}:
            served = min(
                present[kind] / spans_of_work(self.workers, kind, state.forecast)
                for kind in (self.prefill, self.decode)
            )
            if times <= served * (1.0 + self.min_gain):
                kinds = dict(present)
        return self.evenly(kinds, state)
