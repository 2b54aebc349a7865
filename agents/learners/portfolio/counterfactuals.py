"""Counterfactual rollouts of following each of several policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.adapter import Adapter
from serving_gym.agents.environments.spaces import ActionSpace
from serving_gym.agents.learners.api.counterfactuals import Batch, relative_advantages
from serving_gym.agents.learners.learner import Budget, Task
from serving_gym.agents.learners.portfolio.config import PortfolioConfig
from serving_gym.agents.learners.portfolio.policies import make_policies
from serving_gym.agents.learners.portfolio.policy import PortfolioPolicy
from serving_gym.agents.learners.portfolio.portfolio_state import PortfolioState
from serving_gym.baselines.policy import Policy
from serving_gym.envs.base.vector_env import MAX_SEED
from serving_gym.envs.registration import make_env


class PortfolioCounterfactuals:
    """Plays one episode after another; at sampled choices it is forked once for each policy, which is followed on.

    The first choices of an episode, which bind longest and know least, are sampled more often than others: the i-th
    with a probability of 1 / min(i, `sample_every`). Episodes are of one part of the workload after another where the
    settings say so.

    Args:
        config: Settings of the agent.
        task: The training task.
        adapter: Of the environment.
        rng: Draws episodes, sampled states and exploration.

    Raises:
        ValueError: a policy does not fit the environment.
    """

    def __init__(
        self, config: PortfolioConfig, task: Task, adapter: Adapter, rng: np.random.Generator
    ) -> None:
        self.config, self.rng = config, rng
        self._envs = [
            cast(Any, make_env(task.env, **place)) for place in config.places(task.training_arguments)
        ]
        self.env, self.part = self._envs[0], -1
        self.observation: spaces.Dict = self.env.observation_space
        self.action: ActionSpace = self.env.action_space
        self.portfolio = PortfolioState(make_policies(config), adapter, config.memory)
        self.portfolio.reset(self.env.policy_spec, task.seed)
        self.present: PortfolioPolicy | None = None  # None: the first policy is followed
        self.over = True
        self.choices = 0  # of the episode so far

    def follow(self, policy: Policy) -> None:
        """Sets the choosing policy."""
        assert isinstance(policy, PortfolioPolicy)
        self.present = policy

    def play(self, budget: Budget, batch: Batch) -> None:
        """A choice, and the decisions up to the next one; the choice is sampled now and then."""
        if self.over:
            self._begin()
        portfolio = self.portfolio
        chosen = 0 if self.present is None else self.present.choose(portfolio)
        self.choices += 1
        if self.rng.random() * min(self.choices, self.config.sample_every) < 1.0:
            returns = [self._rollout(number, budget) for number in range(len(portfolio.policies))]
            batch.add(portfolio.state(), portfolio.rows(), np.array(returns), chosen, str(self.part))
        explores = self.rng.random() < self.config.exploration
        portfolio.followed = int(self.rng.integers(len(portfolio.policies))) if explores else chosen
        for _ in range(self.config.every):
            observation, _, terminated, truncated, _ = self.env.step(portfolio.actions[portfolio.followed])
            budget.count(1)
            self.over = terminated or truncated
            if self.over:
                return
            portfolio.observe(observation, self.env.state)

    def _begin(self) -> None:
        self.part = (self.part + 1) % len(self._envs)
        self.env = self._envs[self.part]
        observation, _ = self.env.reset(seed=int(self.rng.integers(MAX_SEED)))
        self.portfolio.reset(self.env.policy_spec, int(self.rng.integers(MAX_SEED)))
        self.portfolio.observe(observation, self.env.state)
        self.over, self.choices = False, 0

    def _rollout(self, number: int, budget: Budget) -> float:
        """Return of following a policy, on the arrivals of the episode."""
        if self.config.commit is not None and self.present is not None:
            return self._committed(number, self.config.commit, self.present, budget)
        env, policy = self.env.fork(), self.portfolio.policies[number].fork()
        action, total, steps = self.portfolio.actions[number], 0.0, 0
        while True:
            observation, reward, over = env.advance(action)
            total, steps = total + reward, steps + 1
            if over or steps == self.config.horizon:
                budget.count(steps)
                return total
            action = policy.act(observation, env.state)

    def _committed(self, number: int, commit: int, present: PortfolioPolicy, budget: Budget) -> float:
        """Return of following a policy for some choices, and then the one that the portfolio chooses."""
        env, portfolio = self.env.fork(), self.portfolio.fork()
        portfolio.followed, total, steps = number, 0.0, 0
        while True:
            observation, reward, over = env.advance(portfolio.actions[portfolio.followed])
            total, steps = total + reward, steps + 1
            if over or steps == self.config.horizon:
                budget.count(steps)
                return total
            portfolio.observe(observation, env.state)
            chosen, between = divmod(steps, self.config.every)
            if not between and chosen >= commit:
                portfolio.followed = present.choose(portfolio)

    def advantages(self, returns: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Advantages relative to the cost of the best action."""
        return relative_advantages(returns, self.config)
