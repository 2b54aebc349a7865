"""A policy network of Stable-Baselines3 as a policy of deployments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from agents.deployment.features import EXISTS
from agents.spaces import check_observation
from envs.deployment.state import DeploymentState
from envs.policy_spec import PolicySpec


class ActionPolicy:
    """Takes the action that the network likes best.

    Args:
        network: Policy of Stable-Baselines3.
        observation: What it expects to see.
        masked: Whether it chooses among the possible actions only.
        name: What it is called in results.
    """

    clairvoyant = False

    def __init__(self, network: Any, observation: spaces.Dict, masked: bool, name: str) -> None:
        self.network, self.observation, self.masked, self.name = network, observation, masked, name
        network.set_training_mode(False)

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Looks at the setting.

        Raises:
            ValueError: the setting is not about deployments.
        """
        _ = spec.setting
        self._checked = False

    def act(self, observation: Mapping[str, NDArray[np.float32]], state: DeploymentState) -> int:
        """The best action, without chance.

        Raises:
            ValueError: the observation is of another shape than those trained on.
        """
        if not self._checked:
            check_observation(self.name, self.observation, observation)
            self._checked = True
        masks = {"action_masks": observation["candidates"][:, EXISTS] > 0} if self.masked else {}
        action, _ = self.network.predict(observation, deterministic=True, **masks)
        return int(action)
