"""What policies that cut a cluster into replicas have in common, and the one that never does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from serving_gym.baselines.policy import Action, PolicySpec
from serving_gym.envs.deployment.profiling import PRECISION
from serving_gym.envs.deployment.state import Deploy, DeploymentSetting, DeploymentState
from serving_gym.envs.deployment.strategies import GAIN, Plan
from serving_gym.envs.machines.cluster import ReplicaKind
from serving_gym.envs.machines.placement import place

FIRST_GAIN = 2 * PRECISION


class DeployingPolicy:
    """A policy of `Serving/Deployment-v1`."""

    name: str
    clairvoyant = False

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Takes note of what is known before an episode."""
        self.setting = spec.setting_of(DeploymentSetting)

    def act(self, observation: Any, state: DeploymentState) -> Action:
        """Decides."""
        raise NotImplementedError

    def evenly(
        self, kinds: Mapping[ReplicaKind, int], state: DeploymentState, switch: str = "ad_hoc"
    ) -> Action:
        """Some replicas that all requests go to evenly, beside those that stay; None where all is so already."""
        if Counter(kinds) == state.deployment.kinds:
            shares = np.ones(state.shares.shape)
            return None if (state.shares == shares).all() else Deploy(state.deployment, shares)
        deployment = place(self.setting.cluster, kinds, state.deployment)
        return Deploy(deployment, np.ones((len(deployment.replicas), self.setting.num_types)), switch)


def worth_it(
    found: Plan, present: Plan, state: DeploymentState, min_gain: float, first_gain: float = FIRST_GAIN
) -> bool:
    """Whether a deployment is to replace the present one.

    At the first decision, which is free, a gain will do that the profile can tell from none: the intervals of two
    capacities, each of `PRECISION` to either side, do not overlap.

    Args:
        found: What may replace it.
        present: What there is.
        state: At the decision; while a switch is under way there is no other.
        min_gain: Share by which it must reach more.
        first_gain: The same at the first decision, which needs no more than `min_gain`.
    """
    if state.switch is not None:
        return False
    least = min_gain if state.now_s > 0 else min(min_gain, first_gain)
    return found.max_requests > present.max_requests * (GAIN + least)


class StayPolicy(DeployingPolicy):
    """Keeps the deployment that the episode begins with; the assignment follows the environment's forecast."""

    name = "stay"

    def act(self, observation: Any, state: DeploymentState) -> Action:
        """Action 0."""
        return 0
