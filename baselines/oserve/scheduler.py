"""OServe's scheduler as a whole: from the demand of a span to a serving strategy (sections 3 and 4).

A serving strategy is a deployment in its place and the share of every type that each replica serves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from serving_gym.envs.deployment.assignment import Assignment, keep_apart
from serving_gym.envs.deployment.strategies import Plan, PlanEvaluator
from serving_gym.envs.machines.cluster import Deployment
from serving_gym.envs.machines.placement import place


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
    evaluator: PlanEvaluator, plan: Plan, previous: Deployment | None = None, order: ArrayLike | None = None
) -> ServingStrategy:
    """Places a plan and assigns the demand to its replicas.

    Args:
        evaluator: Cluster, capacities and demand.
        plan: How many replicas of each kind.
        previous: The deployment that is replaced; what both have stays where it is.
        order: (J,), types in the order in which they are kept apart among replicas that are alike
            (`assignment.keep_apart`); None: such replicas share all types evenly.

    Raises:
        ValueError: The plan does not fit the machines, or has kinds that the capacities do not know.
    """
    deployment = place(evaluator.cluster, plan.kinds, previous)
    kinds, together = evaluator.assignment(plan)
    of_replicas = [replica.kind for replica in deployment.replicas]
    rows = np.array([kinds.index(kind) for kind in of_replicas], np.int64)
    assignment = Assignment(together.requests[rows], together.capacity[rows], together.demand)
    if order is not None:
        assignment = keep_apart(assignment, of_replicas, order)
    return ServingStrategy(deployment, assignment)
