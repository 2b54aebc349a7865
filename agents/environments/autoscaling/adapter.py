"""Between the autoscaling environment and the learners."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from serving_gym.agents.config import NetworkConfig
from serving_gym.agents.environments.adapter import Adapter, Observation
from serving_gym.agents.environments.autoscaling.counterfactuals import AutoscalingCounterfactuals
from serving_gym.agents.environments.autoscaling.features import ACTION_SIZE, STATE_SIZE
from serving_gym.agents.environments.autoscaling.policy import LeversPolicy, check_levers
from serving_gym.agents.environments.autoscaling.target_network import TargetNetwork
from serving_gym.agents.environments.spaces import ActionSpace
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.start import start_of
from serving_gym.agents.learners.learner import Task
from serving_gym.agents.networks.score_network import Committee, TrainableNetwork
from serving_gym.baselines.policy import Action
from serving_gym.envs.autoscaling.action import LEVERS, mask_from_state, vector_from_changes
from serving_gym.envs.autoscaling.observation import ENDPOINT_FEATURES
from serving_gym.envs.autoscaling.state import AutoscalingSpec, AutoscalingState
from serving_gym.envs.interface.policy_spec import PolicySpec


class AutoscalingAdapter(Adapter):
    """Endpoints; a decision at equal intervals, three levers each: how many, from where, what work may wait."""

    rows = "endpoints"
    present = ENDPOINT_FEATURES.index("capacity")

    def __init__(self, env: str = "autoscaling") -> None:
        super().__init__(env)

    def mask(self, observation: Observation, state: AutoscalingState, spec: PolicySpec) -> NDArray[np.bool_]:
        """Changes for which there are machines and places."""
        return mask_from_state(spec.setting_of(AutoscalingSpec), state)

    def index_of(
        self, action: Action, state: AutoscalingState, mask: NDArray[np.bool_], spec: PolicySpec
    ) -> Any:
        """The possible vector that is nearest to the changes that an autoscaler names."""
        if isinstance(action, np.ndarray):
            return action
        return vector_from_changes(
            spec.setting_of(AutoscalingSpec), state, () if action is None else cast(Iterable[Any], action)
        )

    def check_setting(
        self, name: str, observation: spaces.Dict, action: ActionSpace, spec: PolicySpec
    ) -> None:
        """Refuses a setting that is not about instances, or has other levers or another number of endpoints."""
        assert isinstance(action, spaces.MultiDiscrete)
        check_levers(name, action, spec.setting_of(AutoscalingSpec))
        here, trained = len(spec.setting_of(AutoscalingSpec).endpoints), len(action.nvec) // LEVERS
        if here != trained:
            raise ValueError(f"{name} was trained for {trained} endpoints, here there are {here}")

    def counterfactuals(
        self, config: APIConfig, task: Task, rng: np.random.Generator
    ) -> AutoscalingCounterfactuals:
        """One episode, forked once for each of a few things that may be done at an endpoint."""
        return AutoscalingCounterfactuals(config, task, rng)

    def search_network(
        self, observation: spaces.Dict, action: ActionSpace, config: NetworkConfig
    ) -> TargetNetwork:
        """The number of instances that is wanted at each endpoint; it has no widths."""
        assert isinstance(action, spaces.MultiDiscrete)
        return TargetNetwork(action)

    def score_network(self, observation: spaces.Dict, config: APIConfig) -> TrainableNetwork:
        """Scores of what may be done at an endpoint."""
        started = config.start is not None
        return TrainableNetwork(STATE_SIZE, ACTION_SIZE + started, config.hidden, started)

    def score_policy(
        self, network: nn.Module, observation: spaces.Dict, action: ActionSpace, config: APIConfig, name: str
    ) -> LeversPolicy:
        """Greedy in such a network."""
        assert isinstance(network, TrainableNetwork | Committee)
        assert isinstance(action, spaces.MultiDiscrete)
        return LeversPolicy(network.export(), name, observation, action, start_of(config.start))
