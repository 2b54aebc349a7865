"""The learned policy: it follows one of several, and chooses anew from time to time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.adapter import Adapter
from serving_gym.agents.environments.spaces import ActionSpace
from serving_gym.agents.learners.api.start import Start
from serving_gym.agents.learners.portfolio.panel import Panel
from serving_gym.agents.networks.score_network import Scores
from serving_gym.baselines.policy import Action
from serving_gym.envs.interface.policy_spec import PolicySpec

Observation = Mapping[str, NDArray[np.float32]]


class PortfolioPolicy:
    """Follows the member with the highest score.

    Args:
        network: Scores of the members.
        members: The policies.
        every: Decisions between two choices.
        adapter: Of the environment.
        name: What it is called in results.
        observation: What it was trained to see.
        action: What was chosen from in training.
        memory: Whether it remembers what has been.
    """

    clairvoyant = False

    def __init__(
        self,
        network: Scores,
        members: Sequence[Start],
        every: int,
        adapter: Adapter,
        name: str,
        observation: spaces.Dict,
        action: ActionSpace,
        memory: bool = True,
    ) -> None:
        self.network, self.every, self.adapter, self.name = network, every, adapter, name
        self.observation, self.action = observation, action
        self.panel = Panel(members, adapter, memory)

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Looks at the setting.

        Raises:
            ValueError: it, or one of its members, was not made for the setting.
        """
        self.adapter.check_setting(self.name, self.observation, self.action, spec)
        self.panel.reset(spec, seed)
        self._checked = False

    def act(self, observation: Observation, state: Any) -> Action:
        """What the one that is followed says.

        Raises:
            ValueError: the observation says other things than those trained on.
        """
        panel = self.panel
        if not self._checked:
            self._check(observation)
        panel.see(observation, state)
        if (panel.seen - 1) % self.every == 0:
            panel.followed = self.choose(panel)
        return panel.said[panel.followed]

    def _check(self, observation: Observation) -> None:
        trained = self.adapter.summary_size(self.observation)
        here = len(self.adapter.summary(observation))
        if trained != here:
            raise ValueError(
                f"{self.name} was trained on observations that come to {trained} numbers, here they come to {here}: "
                "other classes of requests, or types, than in training"
            )
        self._checked = True

    def choose(self, panel: Panel) -> int:
        """Number of the member to follow, by what a panel remembers."""
        return int(np.argmax(self.network.scores(panel.state(), panel.rows())))
