"""Learns to switch between policies from observations.

At sampled choices the world is forked once for each of several policies, and each fork follows its own to the end on
the arrivals that really come: what Chang, Givan and Chong (2004, "Parallel rollout for online solution of partially
observable Markov decision processes", policy switching) estimate by simulation at every decision, is learned here
beforehand. A network that sees the episode so far is trained to put its probability on the policy that came out best;
how much more than the first another must promise is found on states held out. To choose one of several algorithms by
what an instance looks like is algorithm selection (Rice 1976).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from serving_gym.agents.environments.adapter import Adapter, adapter_of
from serving_gym.agents.environments.spaces import ActionSpace
from serving_gym.agents.learners.api.data import in_spreads
from serving_gym.agents.learners.api.learner import PolicyIterationLearner, load_with
from serving_gym.agents.learners.learner import Task
from serving_gym.agents.learners.portfolio.config import PortfolioConfig
from serving_gym.agents.learners.portfolio.counterfactuals import PortfolioCounterfactuals
from serving_gym.agents.learners.portfolio.policies import make_policies
from serving_gym.agents.learners.portfolio.policy import PortfolioPolicy
from serving_gym.agents.learners.portfolio.portfolio_state import state_size
from serving_gym.agents.networks.score_network import Committee, TrainableNetwork
from serving_gym.baselines.policy import Policy

_LEAST_STAKE = 1e-9  # reward


class Choosing:
    """Choices among policies, in place of decisions.

    Args:
        adapter: Of the environment.
    """

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter

    def counterfactuals(
        self, config: PortfolioConfig, task: Task, rng: np.random.Generator
    ) -> PortfolioCounterfactuals:
        """One episode, forked once for each policy."""
        return PortfolioCounterfactuals(config, task, self.adapter, rng)

    def score_network(self, observation: spaces.Dict, config: PortfolioConfig) -> TrainableNetwork:
        """Scores of the policies."""
        num_policies = len(config.policies)
        size = state_size(self.adapter.summary_size(observation), num_policies, config.memory)
        described = self.adapter.described_size(observation)
        return TrainableNetwork(size, num_policies + described + 1, config.hidden, started=True)

    def score_policy(
        self,
        network: nn.Module,
        observation: spaces.Dict,
        action: ActionSpace,
        config: PortfolioConfig,
        name: str,
    ) -> PortfolioPolicy:
        """A policy that takes the highest score of such a network."""
        assert isinstance(network, TrainableNetwork | Committee)
        policies = make_policies(config)
        return PortfolioPolicy(
            network.export(), policies, config.every, self.adapter, name, observation, action, config.memory
        )


class PortfolioLearner(PolicyIterationLearner):
    """Learns which policy to follow.

    Args:
        config: Its settings.
        task: The training task.

    Raises:
        ValueError: a policy looks at the future or does not fit the environment.
    """

    def __init__(self, config: PortfolioConfig, task: Task) -> None:
        super().__init__(config, task, Choosing(adapter_of(task.env)))
        self.pooled = config.pooled
        self.knows_limits = not config.memory  # what is remembered differs from episode to episode

    def _gains(
        self, returns: Sequence[NDArray[np.float64]], kinds: NDArray[np.str_], widest: int
    ) -> NDArray[np.float32]:
        """Advantages in spreads; where they are pooled, the mean ones of a state's part, by what is at stake."""
        if not self.pooled:
            return super()._gains(returns, kinds, widest)
        table = np.array(self.world.advantages(returns))
        stakes = np.maximum(np.abs(np.max(returns, axis=1)), _LEAST_STAKE)
        for kind in np.unique(kinds):
            table[kinds == kind] = np.average(table[kinds == kind], axis=0, weights=stakes[kinds == kind])
        return in_spreads(list(table), np.zeros_like(kinds), widest)


def load(folder: Path, config: Mapping[str, Any], name: str) -> Policy:
    """The policy of a checkpoint; see `agents.learners.learner.AgentEntry`."""
    return load_with(Choosing(adapter_of(config["env"]["name"])), folder, config, name)
