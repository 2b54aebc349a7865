"""Scalar environments stepped in turn, for learners that need their states.

These are the state from which a baseline decides, and how many of its promises an episode has broken.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.agents.environments.spaces import plain_action
from serving_gym.envs.base.vector_env import BaseVectorEnv, BatchObservation, BatchOutcome, Step
from serving_gym.envs.interface.reward import Outcome
from serving_gym.envs.registration import make_env

_PROMISES = ("ttft_attainment/", "tpot_attainment/")


class SerialVectorEnv(BaseVectorEnv):
    """N scalar environments that are stepped in turn.

    `infos` has besides: `cost`, the promises (of a first token, of a pace) broken in the step, and, where an episode
    has ended, `missed_share`, the share of the promises made to its requests that were broken (elsewhere NaN).

    Args:
        env: Name of the environment.
        num_envs: Number of episodes.
        arguments: Of the environment.
    """

    def __init__(self, env: str, num_envs: int, arguments: dict[str, Any]) -> None:
        self.envs: list[Any] = [make_env(env, **arguments) for _ in range(num_envs)]
        super().__init__(num_envs, (self.envs[0].observation_space, self.envs[0].action_space))
        self._broken = np.zeros(num_envs)

    @property
    def states(self) -> list[Any]:
        """State of each episode."""
        return [env.state for env in self.envs]

    def _begin(self, rows: list[int], seeds: list[int]) -> tuple[BatchObservation, NDArray[np.bool_]]:
        options = None if self._split is None else {"split": self._split}
        begun = [self.envs[i].reset(seed=seed, options=options) for i, seed in zip(rows, seeds, strict=True)]
        self._broken[rows] = 0.0
        return _stacked([own for own, _ in begun]), np.stack([info["action_mask"] for _, info in begun])

    def _advance(self, actions: NDArray[np.int64], going: NDArray[np.bool_]) -> BatchOutcome:
        assert self._last is not None
        n = self.num_envs
        self._cost, self._missed_share = np.zeros(n), np.full(n, np.nan)
        outcome = BatchOutcome.blank(
            self._empty_observation(n), self._last.masks.copy(), self._last.num_refused.copy()
        )
        for i in np.flatnonzero(going).tolist():
            env = self.envs[i]
            observation, reward, terminated, truncated, info = env.step(plain_action(actions[i]))
            terms = info["reward_terms"]
            outcome.put(i, Outcome(reward, terms, info["dt"], terminated, truncated, info["refused"]))
            outcome.num_refused[i], outcome.masks[i] = info["num_refused"], info["action_mask"]
            for name, part in observation.items():
                outcome.observation[name][i] = part
            self._cost[i] = -sum(value for name, value in terms.items() if name.startswith(_PROMISES))
            self._broken[i] += self._cost[i]
            if terminated or truncated:
                self._missed_share[i] = self._broken[i] / max(1, len(_PROMISES) * len(env.records()))
        return outcome

    def step(self, actions: NDArray[np.int64]) -> Step:
        """Takes one decision in every episode."""
        *step, infos = super().step(actions)
        return *step, infos | {"cost": self._cost, "missed_share": self._missed_share}  # type: ignore[return-value]


def _stacked(observations: list[dict[str, NDArray[np.float32]]]) -> BatchObservation:
    return {name: np.stack([own[name] for own in observations]) for name in observations[0]}
