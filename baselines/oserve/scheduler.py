"""OServe's scheduler as a whole: from the demand of a span to a serving strategy (sections 3 and 4).

A serving strategy is a deployment in its place and the share of every type that each replica serves.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_gym.baselines.oserve.flow_network import READINGS, maximum_flow
from serving_gym.envs.deployment.assignment import Assignment, keep_apart
from serving_gym.envs.deployment.strategies import Plan, PlanEvaluator
from serving_gym.envs.machines.cluster import Deployment, ReplicaKind
from serving_gym.envs.machines.placement import place

SOLVERS = ("exact", *READINGS)


@dataclass(frozen=True, eq=False)
class ServingStrategy:
    """What is deployed and who serves what.

    Attributes:
        deployment: Replicas in their places.
        assignment: One row for each of `deployment.replicas`, in their order.
    """

    deployment: Deployment
    assignment: Assignment


def strategy_of(
    evaluator: PlanEvaluator,
    plan: Plan,
    previous: Deployment | None = None,
    order: ArrayLike | None = None,
    solver: str = "exact",
    share_alike: bool = True,
) -> ServingStrategy:
    """Places a plan and assigns the demand to its replicas.

    Args:
        evaluator: Cluster, capacities and demand.
        plan: How many replicas of each kind.
        previous: The deployment that is replaced; what both have stays where it is.
        order: (J,), types in the order in which they are kept apart among replicas that are alike
            (`assignment.keep_apart`); None: such replicas share all types evenly.
        solver: Of the assignment, see `assignment_of`.
        share_alike: With order None: whether replicas that are alike share all types evenly where the solver does not
            make them. False: each serves what the solver gives it.

    Raises:
        ValueError: The plan does not fit the machines, or has kinds that the capacities do not know.
    """
    deployment = place(evaluator.cluster, plan.kinds, previous)
    kinds, together = assignment_of(evaluator, plan, solver)
    if solver != "exact" and share_alike:
        together = _shared(together, kinds)
    of_replicas = [replica.kind for replica in deployment.replicas]
    rows = _rows(kinds, of_replicas)
    assignment = Assignment(together.requests[rows], together.capacity[rows], together.demand)
    if order is not None:
        assignment = keep_apart(assignment, of_replicas, order)
    return ServingStrategy(deployment, assignment)


def assignment_of(
    evaluator: PlanEvaluator, plan: Plan, solver: str = "exact"
) -> tuple[tuple[ReplicaKind, ...], Assignment]:
    """The lower level's answer (section 4.2): one row for each replica, in the order of its kinds.

    Args:
        evaluator: Capacities and demand.
        plan: How many replicas of each kind.
        solver: "exact", by linear programs of C1 to C3; or the maximum flow, "flow_units" or "flow_requests"
            (`flow_network`).

    Raises:
        ValueError: The plan has kinds that the capacities do not know.
    """
    if solver == "exact":
        return evaluator.assignment(plan)
    kinds = tuple(kind for kind in sorted(plan.kinds) for _ in range(plan.kinds[kind]))
    capacity = np.array([evaluator.table.row(kind) for kind in kinds]).reshape(len(kinds), -1)
    return kinds, maximum_flow(capacity, evaluator.demand, solver).assignment


def _rows(kinds: Sequence[Hashable], of_replicas: Sequence[Hashable]) -> NDArray[np.int64]:
    """(K,), the row of `kinds` for each replica: the first of a kind for its first replica, and so on."""
    rows = {kind: iter([row for row, other in enumerate(kinds) if other == kind]) for kind in set(kinds)}
    return np.array([next(rows[kind]) for kind in of_replicas], np.int64)


def _shared(assignment: Assignment, kinds: Sequence[Hashable]) -> Assignment:
    """The same work, with replicas of one kind sharing every type evenly."""
    requests = assignment.requests.copy()
    for kind in dict.fromkeys(kinds):
        alike = [k for k, other in enumerate(kinds) if other == kind]
        requests[alike] = requests[alike].mean(axis=0)
    return Assignment(requests, assignment.capacity, assignment.demand)
