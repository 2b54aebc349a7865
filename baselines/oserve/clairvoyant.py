"""A clairvoyant reference: the optimal deployment for what the next spans really bring.

It is no bound: it looks a few spans ahead, counts capacities instead of queues, pays for every switch it makes, and
deploys replicas that do both alone, as OServe does; with prefill and decode workers others may well beat it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from serving_gym.baselines.common.deploying import DeployingPolicy, worth_it
from serving_gym.baselines.oserve.exhaustive import optimal_plan
from serving_gym.baselines.oserve.scheduler import strategy_of
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_at_least, check_not_negative
from serving_gym.envs.deployment.state import Deploy, DeploymentState
from serving_gym.envs.deployment.strategies import PlanEvaluator


@dataclass(frozen=True)
class ClairvoyantConfig(Constants):
    """Constants of the policy.

    Attributes:
        min_gain: Share by which a deployment must reach more than the present one to replace it. Source: ours.
        look_ahead: Spans whose mean a deployment is chosen for; 1 is the next span alone. The assignment is always for
            the next span. Source: ours; what pays for one span may not pay for the switch.
    """

    min_gain: float = tunable(0.05, 0.0, 1.0)
    look_ahead: int = 3

    def __post_init__(self) -> None:
        check_not_negative(self, "min_gain", finite=True)
        check_at_least(self, 1, "look_ahead")


class ClairvoyantDeploymentPolicy(DeployingPolicy, Configured[ClairvoyantConfig]):
    """The exhaustive search's deployment and the exact assignment for the true next spans."""

    name = "clairvoyant_deployment"
    clairvoyant = True

    def act(self, observation: Any, state: DeploymentState) -> Action:
        """The strategy for the next span."""
        if not len(state.coming) or state.coming[0].sum() <= 0:
            return None
        ahead = state.coming[: self.config.look_ahead]
        evaluator = self._evaluator(ahead[ahead.sum(axis=1) > 0].mean(axis=0))
        found, present = optimal_plan(evaluator), evaluator.plan(state.deployment.kinds)
        plan = found if worth_it(found, present, state, self.config.min_gain) else present
        strategy = strategy_of(self._evaluator(state.coming[0]), plan, state.deployment, self.setting.order)
        return Deploy(strategy.deployment, strategy.assignment.routing())

    def _evaluator(self, demand: np.ndarray[Any, np.dtype[np.float64]]) -> PlanEvaluator:
        """Values deployments by when they are done with a demand: a type that is dear is not given up."""
        setting = self.setting
        return PlanEvaluator(setting.cluster, setting.table.of_role("mixed"), demand, "completion_time")
