"""A planner like Dynamo's: prefill and decode workers of fixed parallelism, whose numbers follow the demand.

Section 6.1: "dynamically rebalances GPUs"; Appendix H: it autoscales prefill and decode workers, "whereas Dynamo fixes
per-worker parallelism". How Dynamo's planner counts is not in the text. Here: what arrives in a span keeps the workers
of a phase busy for sum_j lambda_j / n_j of their spans, and GPUs are divided so that the phase with less room has most
of it (source: ours; `envs.deployment.division`). A worker that could not hold the longest request that clients may
send, or the longest prompt if it prefills, is not chosen: no engine starts with a context longer than its KV memory.
Both parallelisms are the best ones for the whole trace, as all baselines are given their best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_gym.baselines.common.deploying import DeployingPolicy
from serving_gym.baselines.oserve.uniform import over_trace, spans
from serving_gym.baselines.policy import Action, Configured, Constants, PolicySpec, tunable
from serving_gym.calibration.fields import check_not_negative, check_positive
from serving_gym.envs.deployment.division import DECODE, PREFILL, Divisions, pairs_of, rebalance
from serving_gym.envs.deployment.profiling import CapacityTable
from serving_gym.envs.deployment.state import DeploymentState
from serving_gym.envs.machines.cluster import Cluster, ReplicaKind

FloatArray = NDArray[np.float64]


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
    evaluators = spans(cluster, table, demands)

    def served(pair: tuple[ReplicaKind, ReplicaKind]) -> tuple[float, float]:
        requests = [
            float(each.demand.sum()) * rebalance(cluster, table, *pair, each.demand)[1] for each in evaluators
        ]
        return over_trace(evaluators, requests)

    pairs = pairs_of(cluster, table)
    if not pairs:
        raise ValueError(
            "there must be prefill and decode workers that hold the longest request and fit the cluster together"
        )
    return max(pairs, key=served)


@dataclass(frozen=True)
class DynamoConfig(Constants):
    """Constants of the policy.

    Attributes:
        min_gain: Share by which a division must serve more than the present one to replace it. Source: ours.
        prefill: TP and PP of prefill workers; None: the best for the past, by capacity. Source: section 6.1, "we
            optimize the model deployment for each baseline".
        decode: TP and PP of decode workers, likewise.
        decode_weight: Times that the work of decoding is counted when GPUs are divided; 1 is the rule above. More
            leaves decode workers room, which answers are faster for. Source: ours.
        period_s: Between two decisions, seconds, each from the mean demand since the last one; None: each span of the
            environment, from its forecast. Source: Dynamo 1.6, `planner/config/defaults.py`,
            `throughput_adjustment_interval`.
    """

    min_gain: float = tunable(0.05, 0.0, 1.0)
    prefill: Sequence[int] | None = None
    decode: Sequence[int] | None = None
    decode_weight: float = tunable(1.0, 0.25, 4.0, log=True)
    period_s: float | None = 180.0

    def __post_init__(self) -> None:
        check_not_negative(self, "min_gain", finite=True)
        check_positive(self, "decode_weight", "period_s", finite=True)
        for name in (PREFILL, DECODE):
            degrees = getattr(self, name)
            if degrees is not None and not _is_pair(degrees):
                raise ValueError(f"{name} must be TP and PP, as [4, 1], or null; got {degrees!r}")

    def kind(self, role: str) -> ReplicaKind | None:
        """The kind that is asked for."""
        degrees = self.prefill if role == PREFILL else self.decode
        if degrees is None:
            return None
        tp, pp = degrees
        return ReplicaKind(tp, pp, role)


def _is_pair(degrees: Any) -> bool:
    pair = isinstance(degrees, Sequence) and len(degrees) == 2
    return pair and all(isinstance(degree, int) and degree >= 1 for degree in degrees)


class DynamoPolicy(DeployingPolicy, Configured[DynamoConfig]):
    """Numbers of prefill and decode workers follow the forecast; their parallelism is the best for the past.

    It needs a cluster that allows such workers (`cluster.disaggregation`). Requests go to prefill workers evenly.
    """

    name = "dynamo"

    @property
    def period_s(self) -> float | None:
        """Time between decisions."""
        return self.config.period_s

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Chooses the parallelism of both kinds of workers.

        Raises:
            ValueError: the cluster allows no prefill and decode workers, or not those that are asked for.
        """
        super().reset(spec, seed)
        table = self.setting.table
        self._spans = round(spec.decision_interval_s / table.span_s)
        if all(kind.role == "mixed" for kind in table.kinds):
            raise ValueError("dynamo needs prefill and decode workers: set cluster.disaggregation=true")
        self.workers = self._offered(table.of_role(PREFILL, DECODE))
        self.prefill, self.decode = best_workers(self.setting.cluster, self.workers, self.setting.past)

    def _offered(self, workers: CapacityTable) -> CapacityTable:
        """Kinds to choose from: those that hold their part of the longest request, or the one that is asked for."""
        chosen = {role: self.config.kind(role) for role in (PREFILL, DECODE)}
        for role, kind in chosen.items():
            if kind is not None and kind not in workers.kinds:
                raise ValueError(f"policy.params.{role}: there is no {kind} in this cluster")
        return workers.some(
            kind == chosen[kind.role] or (chosen[kind.role] is None and self.setting.holds(kind))
            for kind in workers.kinds
        )

    def demand(self, state: DeploymentState) -> FloatArray:
        """(J,), requests of each type that a span is expected to bring: the mean of those since the last decision."""
        if self._spans <= 1 or not len(state.history):
            return state.forecast
        return np.asarray(state.history[-self._spans :].mean(axis=0), np.float64)

    def act(self, observation: Any, state: DeploymentState) -> Action:
        """The division of GPUs until the next decision."""
        demand = self.demand(state)
        if state.switch is not None or demand.sum() <= 0:
            return None
        weight = self.config.decode_weight
        kinds, times = rebalance(
            self.setting.cluster, self.workers, self.prefill, self.decode, demand, weight
        )
        present = state.deployment.kinds
        if set(present) == {self.prefill, self.decode}:
            prefill, decode = Divisions(self.setting.cluster, self.workers, demand).rooms(present)
            if times <= min(prefill, decode / weight) * (1.0 + self.config.min_gain):
                kinds = dict(present)
        return self.evenly(kinds, state)
