"""Counterfactual rollouts of deployment choice: what a few of the choices would have brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from agents.api.config import APIConfig
from agents.api.counterfactuals import Batch
from agents.deployment.features import encode_actions, encode_state
from agents.deployment.policy import ChoicePolicy
from agents.learner import Budget, Task
from baselines.policy import Policy
from envs.deployment.config import DeploymentConfig
from envs.deployment.core import DeploymentCore
from envs.deployment.env import make_spaces
from envs.deployment.state import Deploy
from envs.side_by_side import MAX_SEED

SPREAD = 0  # the first choice: to stay, requests spread over all replicas


class DeploymentCounterfactuals:
    """Plays one episode after another; at sampled states it is forked once for each of a few choices.

    A rollout keeps to its choice, deployment and assignment, the assignment following the forecast; from `commit` spans
    on it follows the present policy.

    Args:
        config: Settings of the agent.
        task: What is to be learned.
        rng: Of episodes, sampling and exploration.

    Raises:
        ValueError: a policy to start from is given; the first rollouts stay where they are.
    """

    def __init__(self, config: APIConfig, task: Task, rng: np.random.Generator) -> None:
        if config.start is not None:
            raise ValueError(
                "agent.start must be null for env deployment: the first rollouts keep the deployment"
            )
        self.config, self.rng = config, rng
        self.core = DeploymentCore(DeploymentConfig(**task.training_arguments))
        observation, self.action = make_spaces(self.core)
        assert isinstance(observation, spaces.Dict)
        self.observation = observation
        self.present: ChoicePolicy | None = None  # None: stay

    def follow(self, policy: Policy) -> None:
        """From now on this is the present policy."""
        assert isinstance(policy, ChoicePolicy)
        self.present = policy

    def play(self, budget: Budget, batch: Batch) -> None:
        """One decision of the present policy or of chance, its state sampled now and then."""
        core = self.core
        if core.done:
            core.reset(int(self.rng.integers(MAX_SEED)))
        observation = core.observe()
        action = self._choose(observation)
        possible = len(core.candidates)
        if possible > 1 and self.rng.random() * self.config.sample_every < 1.0:
            budget.count(self._sample(observation, action, batch))
        if self.rng.random() < self.config.exploration:
            action = int(self.rng.integers(possible))
        core.step(action)
        budget.count(1)

    def _choose(self, observation: Mapping[str, NDArray[np.float32]]) -> int:
        return SPREAD if self.present is None else self.present.choose(observation)

    def _sample(self, observation: Mapping[str, NDArray[np.float32]], action: int, batch: Batch) -> int:
        """Adds the present state, with the returns of some of its choices; returns the decisions that took."""
        rows = encode_actions(observation)
        stays = {number for number, choice in enumerate(self.core.candidates) if choice.stay}
        musts = sorted(stays | {action})
        others = self.rng.permutation(np.setdiff1d(np.arange(len(rows)), musts))
        tried = [*musts, *others[: max(0, self.config.candidates - len(musts))].tolist()]
        batch.states.append(encode_state(observation))
        batch.actions.append(rows[tried])
        batch.returns.append(np.array([self._rollout(choice) for choice in tried]))
        batch.chosen.append(tried.index(action))
        return len(tried) * self.config.horizon

    def _rollout(self, choice: int) -> float:
        """Return of a choice, kept to and then followed by the present policy, on the arrivals that really come."""
        core, apart = self.core.fork(), self.core.candidates[choice].apart
        commit = self.config.horizon if self.present is None else self.config.commit
        total = core.step(choice).reward
        for span in range(1, self.config.horizon):
            if core.done:
                break
            if span < commit:
                deployment = core.simulator.deployment
                total += core.step(Deploy(deployment, core.shares_of(deployment, apart))).reward
            else:
                total += core.step(self._choose(core.observe())).reward
        return total

    def advantages(self, returns: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Relative to what the best choice costs at a state, so that quiet hours count as much as busy ones."""
        return [
            np.maximum((value - value.max()) / (abs(value.max()) + self.config.least_cost), self.config.worst)
            for value in returns
        ]
