"""Policy of a baseline with corrections by a trained network."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.adapter import Adapter, Observation
from serving_gym.agents.environments.spaces import (
    ActionSpace,
    check_observation,
    entries,
    highest,
    one_hot,
    plain_action,
)
from serving_gym.agents.networks.networks import BASELINE
from serving_gym.agents.policies.network_policy import Scores
from serving_gym.baselines.policy import BatchPolicy, Policy
from serving_gym.envs.interface.policy_spec import PolicySpec


class ResidualPolicy:
    """Takes the action with the highest score of a network that observes a baseline's action.

    Args:
        baseline: The baseline.
        scores: The network.
        adapter: Of the environment.
        name: Its name in results.
        observation: What it was trained to see, the baseline's choice left out.
        action: Action space of the training.
    """

    def __init__(
        self,
        baseline: Policy,
        scores: Scores,
        adapter: Adapter,
        name: str,
        observation: spaces.Dict,
        action: ActionSpace,
    ) -> None:
        self.baseline, self.scores, self.adapter, self.name = baseline, scores, adapter, name
        self.observation, self.action = observation, action
        self.clairvoyant = baseline.clairvoyant

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Checks the setting and prepares the baseline.

        Raises:
            ValueError: the setting is of another kind than the one it was trained in.
        """
        self.adapter.check_setting(self.name, self.observation, self.action, spec)
        self.baseline.reset(spec, seed)
        self._spec, self._checked = spec, False

    def act(self, observation: Observation, state: object) -> Any:
        """The best action, without chance.

        Raises:
            ValueError: the observation is of another shape than those trained on.
        """
        if not self._checked:
            check_observation(self.name, self.observation, observation, rows_of=self.adapter.rows)
            self._checked = True
        mask = self.adapter.mask(observation, state, self._spec)
        masks = np.ones((1, sum(entries(self.action))), bool) if mask is None else mask[None]
        chosen = self.adapter.index_of(self.baseline.act(observation, state), state, masks[0], self._spec)
        seen = {key: value[None] for key, value in observation.items()}
        return plain_action(self._corrected(seen, np.array([chosen]), masks)[0])

    def _corrected(
        self, observation: Observation, chosen: NDArray[np.int64], masks: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        shown = one_hot(chosen, self.action)
        return highest(self.scores({**observation, BASELINE: shown}), masks, self.action)


class BatchResidualPolicy(ResidualPolicy):
    """A correction of a baseline that decides for many episodes in one call, as it does itself."""

    def act_batch(self, observation: Observation, masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The best action in each of N episodes, (N,) or (N, levers)."""
        assert isinstance(self.baseline, BatchPolicy)
        return self._corrected(observation, self.baseline.act_batch(observation, masks), masks)
