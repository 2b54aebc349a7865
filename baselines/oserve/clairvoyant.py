"""A clairvoyant reference: the optimal deployment for what the next span really brings.

It is no bound: it looks one span ahead, counts capacities instead of queues, and pays for every switch it makes.
"""

from __future__ import annotations

from typing import Any

from baselines.common.deploying import DeployingPolicy, worth_it
from baselines.oserve.exhaustive import optimal_plan
from baselines.oserve.scheduler import strategy_of
from baselines.policy import Action
from envs.deployment.state import Deploy, DeploymentState


class ClairvoyantDeploymentPolicy(DeployingPolicy):
    """The exhaustive search's deployment and the exact assignment for the true next span.

    Args:
        min_gain: Share by which a deployment must reach more than the present one to replace it. Source: ours.

    Raises:
        ValueError: `min_gain` is negative.
    """

    name = "clairvoyant_deployment"
    clairvoyant = True

    def __init__(self, min_gain: float = 0.05) -> None:
        if not 0 <= min_gain < float("inf"):
            raise ValueError(f"min_gain must be finite and not negative, got {min_gain}")
        self.min_gain = min_gain

    def act(self, observation: Any, state: DeploymentState) -> Action:
        """The strategy for the next span."""
        if not len(state.coming) or state.coming[0].sum() <= 0:
            return None
        worth = self.setting.worth(state.coming[0])
        found, present = optimal_plan(worth), worth.plan(state.deployment.kinds)
        plan = found if worth_it(found, present, state, self.min_gain) else present
        strategy = strategy_of(worth, plan, state.deployment, self.setting.order)
        return Deploy(strategy.deployment, strategy.assignment.routing())
