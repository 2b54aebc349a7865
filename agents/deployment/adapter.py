"""Between the deployment environment and the agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import nn

from agents.api.config import APIConfig
from agents.config import SB3Config
from agents.deployment.counterfactuals import DeploymentCounterfactuals
from agents.deployment.features import action_size, state_size
from agents.deployment.policy import ChoicePolicy
from agents.deployment.sb3_policy import ActionPolicy
from agents.learner import Task
from agents.score_network import TrainableNetwork


class DeploymentAdapter:
    """Deployments of a cluster; a decision each span."""

    def interval_s(self, arguments: Mapping[str, Any]) -> float:
        """A span."""
        return float(arguments.get("span_s", 60.0))

    def training_arguments(self, config: SB3Config, task: Task) -> dict[str, Any]:
        """The environment as it is."""
        return task.training_arguments

    def plain_action(self, observation: Any, state: Any) -> int:
        """The deployment stays as it is."""
        return 0

    def sb3_network(self, config: SB3Config) -> tuple[Any, dict[str, Any]]:
        """All parts of the observation, flattened, before the hidden layers."""
        return "MultiInputPolicy", {"net_arch": list(config.network.hidden_widths)}

    def sb3_policy(
        self, config: SB3Config, network: Any, observation: spaces.Dict, action: spaces.Discrete, name: str
    ) -> ActionPolicy:
        """The action that the network likes best."""
        return ActionPolicy(network, observation, config.masked, name)

    def counterfactuals(
        self, config: APIConfig, task: Task, rng: np.random.Generator
    ) -> DeploymentCounterfactuals:
        """One episode, forked once for each of a few choices."""
        return DeploymentCounterfactuals(config, task, rng)

    def score_network(self, observation: spaces.Dict, hidden: int) -> TrainableNetwork:
        """Scores of choices."""
        return TrainableNetwork(state_size(observation), action_size(observation), hidden)

    def score_policy(
        self, network: nn.Module, observation: spaces.Dict, action: spaces.Discrete, name: str
    ) -> ChoicePolicy:
        """Greedy in such a network."""
        assert isinstance(network, TrainableNetwork)
        return ChoicePolicy(network.export(), name, observation)
