"""Between the sharing environment and the agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import nn

from agents.api.config import APIConfig
from agents.config import DQNConfig, SB3Config
from agents.learner import Task
from agents.routing.sb3_networks import MaskableSetActorCriticPolicy, SetActorCriticPolicy, SetQPolicy
from agents.routing.set_network import IN_SERVICE, SetNetwork
from agents.sharing.counterfactuals import SharingCounterfactuals
from agents.sharing.policy import SharingSetPolicy
from baselines.common.place_score import PlaceScorePolicy
from baselines.policy import Action
from envs.sharing.config import SharingConfig
from envs.simulator.sharing.features import PLACE_FEATURES
from envs.workload.registry import WorkloadSource

assert PLACE_FEATURES[IN_SERVICE] == "there", "the set network pools the rows that there are by this column"


class SharingAdapter:
    """Instances and nodes; a decision for every request that arrives."""

    def __init__(self) -> None:
        self._plain = PlaceScorePolicy()

    def interval_s(self, arguments: Mapping[str, Any]) -> float:
        """The mean time between two arrivals."""
        return 1.0 / WorkloadSource(SharingConfig(**arguments).workload).rate_rps

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
    ) -> SharingSetPolicy:
        """The action that the network likes best."""
        scorer = network.set_network.export()
        return SharingSetPolicy(scorer, name, observation, config.masked, holds=True)

    def counterfactuals(
        self, config: APIConfig, task: Task, rng: np.random.Generator
    ) -> SharingCounterfactuals:
        """Episodes side by side, forked once for each of a few places."""
        return SharingCounterfactuals(config, task, rng)

    def score_network(self, observation: spaces.Dict, hidden: int) -> SetNetwork:
        """Scores of places."""
        context_size = sum((observation[key].shape or (0,))[0] for key in ("request", "cluster"))
        return SetNetwork(context_size, hidden, (hidden,), len(PLACE_FEATURES))

    def score_policy(
        self, network: nn.Module, observation: spaces.Dict, action: spaces.Discrete, name: str
    ) -> SharingSetPolicy:
        """Greedy in such a network; it never holds a request that some place can take."""
        assert isinstance(network, SetNetwork)
        return SharingSetPolicy(network.export(), name, observation)
