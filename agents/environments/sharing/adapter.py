"""Between the sharing environment and the learners."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.agents.environments.adapter import Observation
from serving_gym.agents.environments.place_adapter import PlaceAdapter
from serving_gym.agents.environments.sharing.counterfactuals import SharingCounterfactuals
from serving_gym.agents.environments.sharing.policy import SharingNetworkPolicy
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.learner import Task
from serving_gym.baselines.common.place_score import PlaceScorePolicy
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.sharing import SharingSetting
from serving_gym.envs.sharing.state import SharingState
from serving_gym.envs.simulator.sharing.features import PLACE_FEATURES

_CAN_TAKE, _REPLACES = 0, PLACE_FEATURES.index("replaces")  # columns of the places


class SharingAdapter(PlaceAdapter):
    """Instances and nodes; a decision for every request that arrives."""

    setting = SharingSetting
    features = PLACE_FEATURES
    present = PLACE_FEATURES.index("there")
    network_policy = SharingNetworkPolicy

    def __init__(self, env: str = "sharing") -> None:
        super().__init__(env)
        self.plain = PlaceScorePolicy()

    def mask(self, observation: Observation, state: SharingState, spec: PolicySpec) -> NDArray[np.bool_]:
        """The places that can take the request, and to hold it."""
        return np.append(observation["places"][:, _CAN_TAKE] > 0, True)

    def is_obvious(self, observation: Observation, answers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Those for which no idle instance goes."""
        replaces = observation["places"][:, :, _REPLACES] > 0
        nobody = np.zeros((len(answers), 1), bool)
        return ~np.concatenate([replaces, nobody], axis=1)[np.arange(len(answers)), answers]

    def counterfactuals(
        self, config: APIConfig, task: Task, rng: np.random.Generator
    ) -> SharingCounterfactuals:
        """Episodes side by side, forked once for each of a few places."""
        return SharingCounterfactuals(config, task, rng)
