"""Between the routing environment and the learners."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from serving_gym.agents.config import NetworkConfig
from serving_gym.agents.environments.adapter import Observation
from serving_gym.agents.environments.place_adapter import ADMISSION, PlaceAdapter
from serving_gym.agents.environments.routing.counterfactuals import RoutingCounterfactuals
from serving_gym.agents.environments.routing.policy import NetworkRouter
from serving_gym.agents.environments.spaces import ActionSpace, entries
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.learner import Task
from serving_gym.agents.networks.networks import DecisionNetwork, PooledNetwork
from serving_gym.agents.policies.network_policy import NetworkPolicy
from serving_gym.baselines.common.routers.linear_score import LinearScorePolicy
from serving_gym.baselines.policy import Action
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.routing.action import decode_action, encode_action
from serving_gym.envs.routing.state import RoutingState
from serving_gym.envs.simulator.kernel.features import PLACE_FEATURES
from serving_gym.envs.simulator.kernel.place_scores import VERDICTS


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
        """The places that can take the request, and to hold it; with admission, to refuse and to defer it as well."""
        rows = len(observation["places"])
        mask = np.zeros(rows + (len(VERDICTS) if spec.admission else 1), bool)
        mask[: len(state.can_take)] = state.can_take
        mask[rows] = True
        if spec.admission and state.request is not None:
            mask[rows + 1 :] = True, not state.request.deferred
        return mask

    def index_of(self, action: Action, state: object, mask: NDArray[np.bool_], spec: PolicySpec) -> int:
        """The place that a request is sent to, or what else is done with it; what is impossible holds it."""
        rows = len(mask) - (len(VERDICTS) if spec.admission else 1)
        said: Any = int(action) if isinstance(action, np.integer) else action
        chosen = encode_action(decode_action(said, rows), rows)
        return chosen if mask[chosen] else rows

    def candidates(
        self, observation: Observation, state: object, mask: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """The places that can take the request; with admission, all that is possible."""
        return (
            np.flatnonzero(mask) if ADMISSION in observation else super().candidates(observation, state, mask)
        )

    def network(
        self,
        observation: spaces.Dict,
        action: ActionSpace,
        config: NetworkConfig,
        outputs: int = 1,
        memory_size: int = 0,
    ) -> DecisionNetwork:
        """The network that learners train; with admission, over everything pooled: some actions are no rows."""
        if ADMISSION in observation.spaces:
            return PooledNetwork(observation, sum(entries(action)), config, outputs, memory_size)
        return super().network(observation, action, config, outputs, memory_size)

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
