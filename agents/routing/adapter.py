"""Between the routing environment and the agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import nn

from agents.api.config import APIConfig
from agents.config import DQNConfig, SB3Config
from agents.learner import Task
from agents.routing.counterfactuals import RoutingCounterfactuals
from agents.routing.policy import SetPolicy
from agents.routing.sb3_networks import MaskableSetActorCriticPolicy, SetActorCriticPolicy, SetQPolicy
from agents.routing.set_network import SetNetwork
from baselines.common.routers.linear_score import LinearScorePolicy
from baselines.policy import Action
from envs.routing.config import RoutingConfig
from envs.workload.registry import WorkloadSource


class RoutingAdapter:
    """Places of a fleet; a decision for every request that arrives."""

    def __init__(self) -> None:
        self._plain = LinearScorePolicy()

    def interval_s(self, arguments: Mapping[str, Any]) -> float:
        """The mean time between two arrivals."""
        return 1.0 / WorkloadSource(RoutingConfig(**arguments).workload).rate_rps

    def training_arguments(self, config: SB3Config, task: Task) -> dict[str, Any]:
        """The environment as it is."""
        return task.training_arguments

    def plain_action(self, observation: Any, state: Any) -> Action:
        """Where an untuned score sends the request."""
        return self._plain.act(observation, state)

    def sb3_network(self, config: SB3Config) -> tuple[Any, dict[str, Any]]:
        """A set network."""
        network = config.network
        arguments = {"net_arch": list(network.hidden_widths), "row_width": network.row_width}
        if isinstance(config, DQNConfig):
            return SetQPolicy, arguments
        return MaskableSetActorCriticPolicy if config.masked else SetActorCriticPolicy, arguments

    def sb3_policy(
        self, config: SB3Config, network: Any, observation: spaces.Dict, action: spaces.Discrete, name: str
    ) -> SetPolicy:
        """The action that the network likes best."""
        return SetPolicy(network.set_network.export(), name, observation, config.masked, holds=True)

    def counterfactuals(
        self, config: APIConfig, task: Task, rng: np.random.Generator
    ) -> RoutingCounterfactuals:
        """Episodes side by side, forked once for each of a few places."""
        return RoutingCounterfactuals(config, task, rng)

    def score_network(self, observation: spaces.Dict, hidden: int) -> SetNetwork:
        """Scores of places."""
        context_size = sum((observation[key].shape or (0,))[0] for key in ("request", "cluster"))
        return SetNetwork(context_size, hidden, (hidden,))

    def score_policy(
        self, network: nn.Module, observation: spaces.Dict, action: spaces.Discrete, name: str
    ) -> SetPolicy:
        """Greedy in such a network; it never holds a request that some place can take."""
        assert isinstance(network, SetNetwork)
        return SetPolicy(network.export(), name, observation)
