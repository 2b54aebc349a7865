"""Between the DP/TP environment and the agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import nn

from agents.api.config import APIConfig
from agents.config import DQNConfig, SB3Config
from agents.dp_tp.candidates import action_size, state_size
from agents.dp_tp.counterfactuals import DPTPCounterfactuals
from agents.dp_tp.features import SetFeatures
from agents.dp_tp.layout_policy import LayoutPolicy
from agents.dp_tp.network_policy import NetworkPolicy
from agents.dp_tp.score_policy import ScorePolicy
from agents.learner import Task
from agents.score_network import TrainableNetwork


class DPTPAdapter:
    """Layouts of a node; decisions at equal intervals."""

    def interval_s(self, arguments: Mapping[str, Any]) -> float:
        """The environment's decision interval."""
        return float(arguments.get("decision_interval_s", 1.0))

    def training_arguments(self, config: SB3Config, task: Task) -> dict[str, Any]:
        """Decisions are `config.training_stride` intervals apart."""
        stride_s = config.training_stride * self.interval_s(task.arguments)
        return {**task.training_arguments, "decision_interval_s": stride_s}

    def plain_action(self, observation: Any, state: Any) -> None:
        """The layout stays as it is."""

    def sb3_network(self, config: SB3Config) -> tuple[Any, dict[str, Any]]:
        """MaskablePPO's knows what a layout is; the others' see the engines as a set and in order."""
        network = config.network
        arguments: dict[str, Any] = {
            "net_arch": list(network.hidden_widths),
            "features_extractor_kwargs": {
                "row_width": network.row_width,
                "place_width": network.place_width,
            },
        }
        if not isinstance(config, DQNConfig):
            arguments["activation_fn"] = nn.Tanh
        if config.masked:
            return LayoutPolicy, {**arguments, "stay_probability": network.stay_probability}
        return "MultiInputPolicy", {**arguments, "features_extractor_class": SetFeatures}

    def sb3_policy(
        self, config: SB3Config, network: Any, observation: spaces.Dict, action: spaces.Discrete, name: str
    ) -> NetworkPolicy:
        """The action that the network likes best."""
        return NetworkPolicy(network, observation, action, config.masked, name)

    def counterfactuals(self, config: APIConfig, task: Task, rng: np.random.Generator) -> DPTPCounterfactuals:
        """One episode, forked once for each of a few layouts."""
        return DPTPCounterfactuals(config, task, rng)

    def score_network(self, observation: spaces.Dict, hidden: int) -> TrainableNetwork:
        """Scores of candidate layouts."""
        num_base, _ = observation["engines"].shape or (0, 0)
        (cluster_size,) = observation["cluster"].shape or (0,)
        return TrainableNetwork(state_size(num_base, cluster_size), action_size(num_base), hidden)

    def score_policy(
        self, network: nn.Module, observation: spaces.Dict, action: spaces.Discrete, name: str
    ) -> ScorePolicy:
        """Greedy in such a network."""
        assert isinstance(network, TrainableNetwork)
        return ScorePolicy(network.export(), name, observation, action)
