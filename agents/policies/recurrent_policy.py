"""Adapter for recurrent policies of sb3-contrib."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from serving_gym.agents.environments.adapter import Adapter, Observation
from serving_gym.agents.environments.spaces import ActionSpace, check_observation, entries, plain_action
from serving_gym.agents.networks.networks import MASK
from serving_gym.envs.interface.policy_spec import PolicySpec


class RecurrentNetworkPolicy:
    """Takes the action with the highest score of a recurrent network.

    Args:
        policy: Of sb3-contrib.
        adapter: Of the environment.
        name: Its name in results.
        observation: Observation space of the training.
        action: Action space of the training.
    """

    clairvoyant = False

    def __init__(
        self, policy: Any, adapter: Adapter, name: str, observation: spaces.Dict, action: ActionSpace
    ) -> None:
        self.policy, self.adapter, self.name = policy, adapter, name
        self.observation, self.action = observation, action

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Checks the setting and resets the memory.

        Raises:
            ValueError: the setting is of another kind than the one it was trained in.
        """
        self.adapter.check_setting(self.name, self.observation, self.action, spec)
        self._spec, self._memory, self._checked = spec, None, False

    def act(self, observation: Observation, state: object) -> Any:
        """The best action, without chance.

        Raises:
            ValueError: the observation is of another shape than those trained on.
        """
        if not self._checked:
            check_observation(self.name, self.observation, observation)
            self._checked = True
        mask = self.adapter.mask(observation, state, self._spec)
        shown = np.ones(sum(entries(self.action)), np.float32) if mask is None else mask.astype(np.float32)
        action, self._memory = self.policy.predict(
            {**observation, MASK: shown}, state=self._memory, deterministic=True
        )
        return plain_action(action)
