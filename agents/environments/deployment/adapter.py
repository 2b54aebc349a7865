"""Between the deployment environment and the learners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from serving_gym.agents.environments.adapter import Adapter, Describe, Observation
from serving_gym.agents.environments.deployment.counterfactuals import DeploymentCounterfactuals
from serving_gym.agents.environments.deployment.features import EXISTS, action_size, encode_state, state_size
from serving_gym.agents.environments.deployment.policy import ChoicePolicy, usual_row
from serving_gym.agents.environments.deployment.proposal import Proposals
from serving_gym.agents.environments.spaces import ActionSpace
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.start import start_of
from serving_gym.agents.learners.learner import Task
from serving_gym.agents.networks.score_network import Committee, TrainableNetwork
from serving_gym.baselines.policy import Action
from serving_gym.envs.deployment.state import Deploy, DeploymentSetting, DeploymentState
from serving_gym.envs.interface.policy_spec import PolicySpec

STAY = 0  # the first choice: the deployment as it is


class DeploymentAdapter(Adapter):
    """Deployments of a cluster; a decision each span."""

    setting = DeploymentSetting

    rows = "candidates"
    present = EXISTS

    def __init__(self, env: str = "deployment") -> None:
        super().__init__(env)

    def interval_s(self, arguments: Mapping[str, Any]) -> float:
        """A span."""
        return float(arguments.get("span_s", 60.0))

    def plain_action(self, observation: Observation, state: DeploymentState) -> int:
        """The deployment stays as it is."""
        return STAY

    def mask(self, observation: Observation, state: DeploymentState, spec: PolicySpec) -> NDArray[np.bool_]:
        """The choices that there are."""
        return observation["candidates"][:, EXISTS] > 0

    def index_of(
        self, action: Action, state: DeploymentState, mask: NDArray[np.bool_], spec: PolicySpec
    ) -> int:
        """To stay, where the deployment that a baseline names is the present one.

        Raises:
            ValueError: it names another, which no number stands for.
        """
        if action is None or (isinstance(action, Deploy) and action.deployment == state.deployment):
            return STAY
        return int(super().index_of(action, state, mask, spec))

    def counterfactuals(
        self, config: APIConfig, task: Task, rng: np.random.Generator
    ) -> DeploymentCounterfactuals:
        """One episode, forked once for each of a few choices."""
        return DeploymentCounterfactuals(config, task, rng)

    def summary(self, observation: Observation) -> NDArray[np.float32]:
        """The cluster, the types in their order, and the replicas' mean and maximum."""
        return encode_state(observation)

    def describer(self, spec: PolicySpec) -> Describe:
        """As the environment describes what can be chosen."""
        proposals: list[Proposals] = []

        def describe(
            proposed: Action, observation: Observation, state: DeploymentState
        ) -> NDArray[np.float32]:
            if not proposals:
                proposals.append(Proposals(spec, len(observation["replicas"])))
            return usual_row(observation, state, proposed, proposals[0])

        return describe

    def described_size(self, observation: spaces.Dict) -> int:
        """A row of the choices."""
        return action_size(observation)

    def score_network(self, observation: spaces.Dict, config: APIConfig) -> TrainableNetwork:
        """Scores of choices."""
        started = config.start is not None
        return TrainableNetwork(
            state_size(observation), action_size(observation, started), config.hidden, started
        )

    def score_policy(
        self, network: nn.Module, observation: spaces.Dict, action: ActionSpace, config: APIConfig, name: str
    ) -> ChoicePolicy:
        """Greedy in such a network."""
        assert isinstance(network, TrainableNetwork | Committee)
        return ChoicePolicy(network.export(), name, observation, start_of(config.start))
