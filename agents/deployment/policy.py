"""The learned policy: take the choice with the highest score."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from agents.deployment.features import encode_actions, encode_state
from agents.score_network import ScoreNetwork
from agents.spaces import check_observation
from envs.deployment.state import DeploymentState
from envs.policy_spec import PolicySpec


class ChoicePolicy:
    """Greedy in a score network.

    Args:
        network: Scores choices.
        name: What it is called in results.
        observation: What it was trained to see.
    """

    clairvoyant = False

    def __init__(self, network: ScoreNetwork, name: str, observation: spaces.Dict) -> None:
        self.network, self.name, self.observation = network, name, observation
        self._checked = False

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Looks at the setting.

        Raises:
            ValueError: the setting is not about deployments.
        """
        _ = spec.setting
        self._checked = False

    def act(self, observation: Mapping[str, NDArray[np.float32]], state: DeploymentState) -> int:
        """The choice with the highest score.

        Raises:
            ValueError: the observation is of another shape than those trained on.
        """
        if not self._checked:
            check_observation(self.name, self.observation, observation)
            self._checked = True
        return self.choose(observation)

    def choose(self, observation: Mapping[str, NDArray[np.float32]]) -> int:
        """`act` without a look at the shape."""
        scores = self.network.scores(encode_state(observation), encode_actions(observation))
        return int(np.argmax(scores))
