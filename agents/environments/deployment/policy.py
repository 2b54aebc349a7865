"""The learned policy: take the choice with the highest score."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.deployment.features import encode_actions, encode_state
from serving_gym.agents.environments.deployment.proposal import Proposals
from serving_gym.agents.environments.spaces import check_observation
from serving_gym.agents.learners.api.start import Start
from serving_gym.agents.networks.score_network import Scores
from serving_gym.baselines.policy import Action
from serving_gym.envs.deployment.state import DeploymentSetting, DeploymentState
from serving_gym.envs.interface.policy_spec import PolicySpec

Observation = Mapping[str, NDArray[np.float32]]


class ChoicePolicy:
    """Greedy in a score network.

    Args:
        network: Scores choices.
        name: Its name in results.
        observation: Observation space of the training.
        start: The policy that it was started from, whose proposal is one of its choices; None: none.
    """

    clairvoyant = False

    def __init__(
        self, network: Scores, name: str, observation: spaces.Dict, start: Start | None = None
    ) -> None:
        self.network, self.name, self.observation, self.start = network, name, observation, start
        self._checked = False
        self._proposals: Proposals | None = None

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Checks the setting.

        Raises:
            ValueError: the setting is not about deployments.
        """
        _ = spec.setting_of(DeploymentSetting)
        self._spec, self._checked, self._proposals = spec, False, None
        if self.start is not None:
            self.start.reset(spec, seed)

    def act(self, observation: Observation, state: DeploymentState) -> Action:
        """The choice with the highest score: its number, or what the policy that it was started from proposes.

        Raises:
            ValueError: the observation is of another shape than those trained on; there may be any number of replicas.
        """
        if not self._checked:
            check_observation(self.name, self.observation, observation, rows_of="replicas")
            self._checked = True
            if self.start is not None:
                self._proposals = Proposals(self._spec, len(observation["replicas"]))
        if self.start is None:
            return self.best(observation, encode_actions(observation))
        proposed = self.start.act(observation, state)
        rows = encode_actions(observation, usual_row(observation, state, proposed, self._proposals))
        best = self.best(observation, rows)
        return proposed if best == len(rows) - 1 else best

    def best(self, observation: Observation, rows: NDArray[np.float32]) -> int:
        """Row of the highest score.

        Args:
            observation: The observation.
            rows: (K, action_size).
        """
        return int(np.argmax(self.network.scores(encode_state(observation), rows)))


def usual_row(
    observation: Observation, state: DeploymentState, proposed: Action, proposals: Proposals | None
) -> NDArray[np.float32]:
    """(F,), what describes the proposal of the policy that was started from.

    Args:
        observation: The observation.
        state: The state that it encodes.
        proposed: The proposal.
        proposals: What describes those that have no number.
    """
    if isinstance(proposed, (int, np.integer)):
        return observation["candidates"][int(proposed)]
    assert proposals is not None
    return proposals.row(proposed, state)
