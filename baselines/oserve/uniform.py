"""Layouts of vLLM: the same replica everywhere (section 6.1).

vLLM (static) keeps one layout for a whole trace, vLLM (reload) takes the best uniform layout of every span; "we
optimize the model deployment for each baseline and report the best results". A layout is what all GPUs allow of one
kind; GPUs left over are idle. As replicas are alike, their requests are spread evenly, whatever the types.

Reading of the best layout for a whole trace: most requests served over all spans, and of those that serve all, the one
with most room where room is scarcest (source: ours).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from serving_gym.envs.deployment.profiling import CapacityTable
from serving_gym.envs.deployment.state import DeploymentSetting
from serving_gym.envs.deployment.strategies import Plan, PlanEvaluator
from serving_gym.envs.machines.cluster import Cluster, ReplicaKind
from serving_gym.envs.machines.placement import packable, stage_widths

Kinds = dict[ReplicaKind, int]


def uniform_layouts(cluster: Cluster, kinds: Sequence[ReplicaKind]) -> list[Kinds]:
    """As many replicas of each kind as fit; kinds of which none fits are left out.

    Args:
        cluster: The cluster.
        kinds: Kinds to choose from.
    """
    layouts = []
    for kind in kinds:
        counts = range(cluster.num_gpus // kind.num_gpus, 0, -1)
        fitting = (count for count in counts if packable(cluster, stage_widths({kind: count})))
        most = next(fitting, 0)
        if most:
            layouts.append({kind: most})
    return layouts


def of_holding(table: CapacityTable, setting: DeploymentSetting) -> CapacityTable:
    """The kinds whose KV memory holds the longest request; all of them where none does."""
    holding = [setting.holds(kind) for kind in table.kinds]
    return table.some(holding) if any(holding) else table


def vllm_reload(evaluator: PlanEvaluator) -> Plan:
    """The best uniform layout of one span.

    Args:
        evaluator: Cluster, capacities and the demand of the span.

    Raises:
        ValueError: No kind fits the cluster.
    """
    plans = [evaluator.plan(kinds) for kinds in uniform_layouts(evaluator.cluster, evaluator.table.kinds)]
    if not plans:
        raise ValueError(f"no replica of {', '.join(map(str, evaluator.table.kinds))} fits the cluster")
    return max(plans, key=lambda plan: plan.max_requests)


def vllm_static(cluster: Cluster, table: CapacityTable, demands: ArrayLike) -> Kinds:
    """The best uniform layout of a whole trace.

    Args:
        cluster: The cluster.
        table: Capacities.
        demands: (T, J), requests of each type in each span.

    Raises:
        ValueError: No kind fits the cluster, or the demands have another form.
    """
    layouts = uniform_layouts(cluster, table.kinds)
    if not layouts:
        raise ValueError(f"no replica of {', '.join(map(str, table.kinds))} fits the cluster")
    evaluators = spans(cluster, table, demands)
    return max(
        layouts,
        key=lambda kinds: over_trace(
            evaluators, [evaluator.plan(kinds).max_requests for evaluator in evaluators]
        ),
    )


def spans(cluster: Cluster, table: CapacityTable, demands: ArrayLike) -> list[PlanEvaluator]:
    """One `PlanEvaluator` a span that brings anything.

    Args:
        cluster: The cluster.
        table: Capacities.
        demands: (T, J).

    Raises:
        ValueError: The demands have another form.
    """
    arriving = np.asarray(demands, np.float64)
    if arriving.ndim != 2 or arriving.shape[1] != table.num_types:
        raise ValueError(f"demands must be (spans, {table.num_types} types), got {arriving.shape}")
    return [PlanEvaluator(cluster, table, demand) for demand in arriving if demand.sum() > 0]


def over_trace(evaluators: Sequence[PlanEvaluator], max_requests: Sequence[float]) -> tuple[float, float]:
    """Requests served over a trace, and the least ratio of the requests that can be served to those that arrive.

    Args:
        evaluators: One a span.
        max_requests: What a layout can serve in each, requests.
    """
    arriving = [float(evaluator.demand.sum()) for evaluator in evaluators]
    served = sum(min(some, of) for some, of in zip(max_requests, arriving, strict=True))
    return served, min((some / of for some, of in zip(max_requests, arriving, strict=True)), default=np.inf)
