"""Counterfactual rollouts from one episode at a time: what the environments of one cluster have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import relative_advantages
from serving_gym.agents.learners.api.start import Start, start_of
from serving_gym.agents.learners.learner import Task
from serving_gym.baselines.policy import Policy

CoreT = TypeVar("CoreT")
PolicyT = TypeVar("PolicyT")


class EpisodeCounterfactuals(Generic[CoreT, PolicyT]):
    """Plays one episode after another; at sampled states the episode is forked once for each candidate action.

    Args:
        env: The environment that is played in.
        config: Settings of the agent.
        task: The training task.
        rng: Draws episodes, sampled states and exploration.

    Attributes:
        policy_class: Of the policies that are trained.
        core: The episode.
        start: The policy to start from; None: there is none.
        present: The current policy; None: the policy to start from or, without one, to change nothing.

    Raises:
        ValueError: The policy to start from does not fit.
    """

    policy_class: ClassVar[type[Any]]
    action: Any  # action space

    def __init__(self, env: Any, config: APIConfig, task: Task, rng: np.random.Generator) -> None:
        self.config, self.rng = config, rng
        self.core: CoreT = env.core
        self.observation: spaces.Dict = env.observation_space
        self.action = env.action_space
        self.spec = env.policy_spec
        self.start = start_of(config.start)
        if self.start is not None:
            self.start.reset(self.spec, task.seed)
        self.present: PolicyT | None = None

    def follow(self, policy: Policy) -> None:
        """Makes this the current policy."""
        assert isinstance(policy, self.policy_class)
        self.present = policy

    def follows_start(self, start: Start | None) -> bool:
        """Whether rollouts are continued by the policy to start from."""
        return start is not None and (self.present is None or self.config.continuation == "start")

    def samples(self) -> bool:
        """Draws whether the present state is sampled."""
        return self.rng.random() * self.config.sample_every < 1.0

    def explores(self) -> bool:
        """Draws whether the action is random."""
        return self.rng.random() < self.config.exploration

    def advantages(self, returns: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Advantages relative to the cost of the best action."""
        return relative_advantages(returns, self.config)
