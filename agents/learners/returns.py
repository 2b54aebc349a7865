"""Returns of whole episodes, for learners that use only returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from serving_gym.agents.learners.learner import Task
from serving_gym.baselines.policy import BatchPolicy, Policy, period_of
from serving_gym.envs.registration import make_env, make_vector_env

_LEAST_SIZE = 1e-6  # return


def shares(
    returns: NDArray[np.float64], usual: NDArray[np.float64], clip: float | None = None
) -> NDArray[np.float64]:
    """Returns divided by a reference return of the same episodes, so that long and short episodes weigh the same.

    Args:
        returns: (..., episodes).
        usual: (episodes,), of a reference.
        clip: By what share a return may differ from the usual one; more does not count. None: any.
    """
    differences = (returns - usual) / np.maximum(np.abs(usual), _LEAST_SIZE)
    limit = math.inf if clip is None else clip
    counted: NDArray[np.float64] = np.sign(usual) + np.clip(differences, -limit, limit)
    return counted


class Stage:
    """Runs the candidates of one round on the same training episodes.

    Args:
        task: The training task.
        episodes: Episodes that each candidate plays.
        count: Hears of decisions taken.
    """

    def __init__(self, task: Task, episodes: int, count: Callable[[int], None]) -> None:
        self.task, self.episodes, self.count = task, episodes, count
        self.scalar: Any = make_env(task.env, **task.training_arguments)
        self._batch: Any = None

    def returns(self, policy: Policy, seeds: Sequence[int]) -> NDArray[np.float64]:
        """Returns of the episodes of seeds, (episodes,); in a vector environment if the policy supports it."""
        if not isinstance(policy, BatchPolicy):
            return np.array([self._alone(policy, seed) for seed in seeds])
        if self._batch is None:
            self._batch = make_vector_env(
                self.task.env,
                self.episodes,
                autoreset_mode=AutoresetMode.DISABLED,
                **self.task.training_arguments,
            )
        policy.reset(self.scalar.policy_spec, seeds[0])
        observation, info = self._batch.reset(seed=list(seeds))
        returns, over = np.zeros(len(seeds)), np.zeros(len(seeds), bool)
        while not over.all():
            actions = policy.act_batch(observation, info["action_mask"])
            observation, rewards, terminated, truncated, info = self._batch.step(actions)
            self.count(int((~over).sum()))
            returns += np.where(over, 0.0, rewards)
            over |= terminated | truncated
        return returns

    def _alone(self, policy: Policy, seed: int) -> float:
        """Return of one episode."""
        self.scalar.unwrapped.ask_every(period_of(policy))
        observation, _ = self.scalar.reset(seed=seed)
        policy.reset(self.scalar.policy_spec, seed)
        total, done = 0.0, False
        while not done:
            action = policy.act(observation, self.scalar.state)
            observation, reward, terminated, truncated, _ = self.scalar.step(action)
            self.count(1)
            total, done = total + reward, terminated or truncated
        return total
