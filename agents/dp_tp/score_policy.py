"""The learned policy: take the possible action with the highest score."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from agents.dp_tp.candidates import encode_actions, encode_state, shortlist
from agents.dp_tp.setting import check_setting
from agents.score_network import ScoreNetwork
from agents.spaces import ActionSpace, check_observation
from envs.backend import ClusterState
from envs.dp_tp.action import action_mask
from envs.policy_spec import PolicySpec

Observation = Mapping[str, NDArray[np.float32]]


class ScorePolicy:
    """Greedy in a score network.

    Args:
        network: Scores actions.
        name: What it is called in results.
        observation: What it was trained to see; None: not checked.
        action: What it was trained to choose from.
    """

    clairvoyant = False

    def __init__(
        self,
        network: ScoreNetwork,
        name: str = "api",
        observation: spaces.Dict | None = None,
        action: ActionSpace | None = None,
    ) -> None:
        self.network, self.name = network, name
        self.observation, self.action = observation, action
        self._checked, self._can_switch = True, True

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Looks at the setting.

        Raises:
            ValueError: the setting is of another shape than the one it was trained in.
        """
        if self.observation is not None and self.action is not None:
            check_setting(self.name, self.observation, self.action, spec)
            self._checked = False
        self._can_switch = spec.node.weights == "whole"

    def act(self, observation: Observation, state: ClusterState) -> int:
        """The action with the highest score."""
        if not self._checked and self.observation is not None:
            check_observation(self.name, self.observation, observation)
            self._checked = True
        return self.choose(observation["engines"], observation["cluster"], state)

    def choose(self, engines: NDArray[np.float32], cluster: NDArray[np.float32], state: ClusterState) -> int:
        """`act` on the observation's two arrays."""
        target = state.target_layout
        actions = shortlist(target, action_mask(state, sum(target), self._can_switch).tobytes())
        scores = self.network.scores(
            encode_state(engines, cluster, target), encode_actions(engines, target, actions)
        )
        return int(actions[np.argmax(scores)])
