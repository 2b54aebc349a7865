"""The learned policy: at every endpoint, what has the highest score."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from agents.autoscaling.features import encode_actions, encode_state, options
from agents.score_network import ScoreNetwork
from agents.spaces import check_observation
from envs.autoscaling.action import mask_from_state
from envs.autoscaling.state import AutoscalingState
from envs.policy_spec import PolicySpec

Observation = Mapping[str, NDArray[np.float32]]


class LeversPolicy:
    """Greedy in a score network, endpoint by endpoint.

    Args:
        network: Scores what may be done at an endpoint.
        name: What it is called in results.
        observation: What it was trained to see.
        action: What it was trained to choose from.
    """

    clairvoyant = False

    def __init__(
        self, network: ScoreNetwork, name: str, observation: spaces.Dict, action: spaces.MultiDiscrete
    ) -> None:
        self.network, self.name, self.observation, self.action = network, name, observation, action
        self._checked = False

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Looks at the setting.

        Raises:
            ValueError: The setting is not about instances, or has other levers.
        """
        self.spec = spec.scaling
        own = (2 * self.spec.max_change + 1, 2, self.spec.num_levels)
        if own != tuple(self.action.nvec[: len(own)]):
            raise ValueError(
                f"{self.name} was trained with env.max_change and env.queue.levels that give levers of "
                f"{self.action.nvec[: len(own)].tolist()} entries, here they have {list(own)}"
            )
        self._checked = False

    def act(self, observation: Observation, state: AutoscalingState) -> NDArray[np.int64]:
        """(3 P,), the best entries of all levers.

        Raises:
            ValueError: The observation is of another shape than those trained on.
        """
        if not self._checked:
            check_observation(self.name, self.observation, observation)
            self._checked = True
        return self.choose(observation, mask_from_state(self.spec, state))

    def choose(self, observation: Observation, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """`act` without a look at the shape.

        Args:
            observation: What is seen.
            mask: (sum of entries,), which entries are possible.
        """
        chosen = []
        for endpoint, rows in enumerate(options(mask, self.action)):
            scores = self.network.scores(
                encode_state(observation, endpoint), encode_actions(observation, endpoint, rows, self.action)
            )
            chosen.append(rows[int(np.argmax(scores))])
        return np.concatenate(chosen)
