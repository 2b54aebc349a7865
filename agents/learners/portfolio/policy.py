"""The learned policy of a portfolio: it follows one of several policies and chooses again at fixed intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.adapter import Adapter
from serving_gym.agents.environments.spaces import ActionSpace
from serving_gym.agents.learners.api.start import Start
from serving_gym.agents.learners.portfolio.portfolio_state import PortfolioState
from serving_gym.agents.networks.score_network import Scores
from serving_gym.baselines.policy import Action
from serving_gym.envs.interface.policy_spec import PolicySpec

Observation = Mapping[str, NDArray[np.float32]]


class PortfolioPolicy:
    """Follows the policy with the highest score.

    Args:
        network: Scores of the policies.
        policies: The policies.
        every: Decisions between two choices.
        adapter: Of the environment.
        name: Its name in results.
        observation: Observation space of the training.
        action: What was chosen from in training.
        memory: As in `PortfolioState`.
    """

    clairvoyant = False

    def __init__(
        self,
        network: Scores,
        policies: Sequence[Start],
        every: int,
        adapter: Adapter,
        name: str,
        observation: spaces.Dict,
        action: ActionSpace,
        memory: bool = True,
    ) -> None:
        self.network, self.every, self.adapter, self.name = network, every, adapter, name
        self.observation, self.action = observation, action
        self.portfolio = PortfolioState(policies, adapter, memory)

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Checks the setting.

        Raises:
            ValueError: it, or one of its policies, was not made for the setting.
        """
        self.adapter.check_setting(self.name, self.observation, self.action, spec)
        self.portfolio.reset(spec, seed)
        self._checked = False

    def act(self, observation: Observation, state: Any) -> Action:
        """The action of the policy that is followed.

        Raises:
            ValueError: the observation has another size than in training.
        """
        portfolio = self.portfolio
        if not self._checked:
            self._check(observation)
        portfolio.observe(observation, state)
        if (portfolio.num_decisions - 1) % self.every == 0:
            portfolio.followed = self.choose(portfolio)
        return portfolio.actions[portfolio.followed]

    def _check(self, observation: Observation) -> None:
        trained = self.adapter.summary_size(self.observation)
        here = len(self.adapter.summary(observation))
        if trained != here:
            raise ValueError(
                f"{self.name} was trained on observations that come to {trained} numbers, here they come to {here}: "
                "other classes of requests, or types, than in training"
            )
        self._checked = True

    def choose(self, portfolio: PortfolioState) -> int:
        """Number of the policy to follow."""
        return int(np.argmax(self.network.scores(portfolio.state(), portfolio.rows())))
