"""A policy network of Stable-Baselines3 as a DP/TP policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from agents.dp_tp.setting import check_setting
from agents.spaces import check_observation
from envs.backend import ClusterState
from envs.dp_tp.action import action_mask
from envs.policy_spec import PolicySpec


class NetworkPolicy:
    """Takes the action that the network likes best.

    Args:
        network: Policy of Stable-Baselines3.
        observation: What it expects to see.
        action: What it chooses from.
        masked: Whether it chooses among the possible actions only.
        name: What it is called in results.
    """

    clairvoyant = False

    def __init__(
        self, network: Any, observation: spaces.Dict, action: spaces.Discrete, masked: bool, name: str
    ) -> None:
        self.network, self.observation, self.action = network, observation, action
        self.masked, self.name = masked, name
        network.set_training_mode(False)

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Looks at the setting.

        Raises:
            ValueError: the setting is of another shape than the one it was trained in.
        """
        check_setting(self.name, self.observation, self.action, spec)
        self._num_base, self._can_switch = spec.num_base, spec.node.weights == "whole"
        self._checked = False

    def act(self, observation: Mapping[str, NDArray[np.float32]], state: ClusterState) -> int:
        """The best action, without chance."""
        if not self._checked:
            check_observation(self.name, self.observation, observation)
            self._checked = True
        arguments = {}
        if self.masked:
            arguments["action_masks"] = action_mask(state, self._num_base, self._can_switch)
        action, _ = self.network.predict(observation, deterministic=True, **arguments)
        return int(action)
