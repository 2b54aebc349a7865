"""Between the routing environment and the learners."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from serving_gym.agents.environments.adapter import Observation
from serving_gym.agents.environments.place_adapter import PlaceAdapter
from serving_gym.agents.environments.routing.counterfactuals import RoutingCounterfactuals
from serving_gym.agents.environments.routing.policy import NetworkRouter
from serving_gym.agents.environments.spaces import ActionSpace
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.learner import Task
from serving_gym.agents.policies.network_policy import NetworkPolicy
from serving_gym.baselines.common.routers.linear_score import LinearScorePolicy
from serving_gym.baselines.policy import Action
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.routing.state import Dispatch, RoutingState
from serving_gym.envs.simulator.kernel.features import PLACE_FEATURES


class RoutingAdapter(PlaceAdapter):
    """Places of a fleet; a decision for every request that arrives."""

    setting = "fleet"
    features = PLACE_FEATURES
    present = PLACE_FEATURES.index("in_service")
    direct = True
    network_policy = NetworkRouter

    def __init__(self, env: str = "routing") -> None:
        super().__init__(env)
        self.plain = LinearScorePolicy()

    def mask(self, observation: Observation, state: RoutingState, spec: PolicySpec) -> NDArray[np.bool_]:
        """The places that can take the request, and to hold it."""
        rows = len(observation["places"])
        mask = np.zeros(rows + 1, bool)
        mask[: len(state.can_take)] = state.can_take
        mask[rows] = True
        return mask

    def index_of(self, action: Action, state: object, mask: NDArray[np.bool_], spec: PolicySpec) -> int:
        """The place that a request is sent to, or the last action, to hold it."""
        place = action.place if isinstance(action, Dispatch) else action
        return super().index_of(place, state, mask, spec)

    def counterfactuals(
        self, config: APIConfig, task: Task, rng: np.random.Generator
    ) -> RoutingCounterfactuals:
        """Episodes side by side, forked once for each of a few places."""
        return RoutingCounterfactuals(config, task, rng)

    def score_policy(
        self,
        network: nn.Module,
        observation: spaces.Dict,
        action: ActionSpace,
        config: APIConfig,
        name: str,
        **named: Any,
    ) -> NetworkPolicy:
        """Greedy in such a network, over the places that pass the guard, where there is one."""
        return super().score_policy(network, observation, action, config, name, guard=config.guard, **named)
