"""Scalar environments one after another, where a learner needs what the batched ones do not tell.

These are the state from which a baseline decides, and how many of its promises an episode has broken.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.agents.environments.spaces import entries, plain_action
from serving_gym.envs.base.vector_env import BaseVectorEnv, BatchObservation
from serving_gym.envs.registration import make_env

_PROMISES = ("ttft_attainment/", "tpot_attainment/")


class SerialVectorEnv(BaseVectorEnv):
    """N scalar environments, with same-step autoreset as the batched ones have it.

    `infos` has besides `dt` and `action_mask`: `cost`, the promises (of a first token, of a pace) broken since the last
    decision, and, where an episode has ended, `missed_share`, the share of the promises made to its requests that were
    broken (elsewhere NaN).

    Args:
        env: Name of the environment.
        num_envs: Episodes side by side.
        arguments: Of the environment.
    """

    def __init__(self, env: str, num_envs: int, arguments: dict[str, Any]) -> None:
        self.envs: list[Any] = [make_env(env, **arguments) for _ in range(num_envs)]
        self._lay_out(num_envs, None, (self.envs[0].observation_space, self.envs[0].action_space))
        self._broken = np.zeros(num_envs)
        actions: Any = self.single_action_space
        self._masks: NDArray[np.bool_] = np.ones((num_envs, sum(entries(actions))), np.bool_)

    @property
    def states(self) -> list[Any]:
        """What each is in."""
        return [env.state for env in self.envs]

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[BatchObservation, dict[str, Any]]:
        """Begins an episode in every place. An integer seed gives place i the episode of seed + i."""
        seen = [self._begin(i, own) for i, own in enumerate(self._seeds(seed, options))]
        return _stacked(seen), {"action_mask": self._masks.copy()}

    def _begin(self, i: int, seed: int) -> dict[str, NDArray[np.float32]]:
        options = None if self._split is None else {"split": self._split}
        observation, info = self.envs[i].reset(seed=seed, options=options)
        self._masks[i], self._broken[i] = info["action_mask"], 0.0
        return observation

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[BatchObservation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one decision in every environment."""
        rewards, cost, dt = np.zeros(self.num_envs), np.zeros(self.num_envs), np.zeros(self.num_envs)
        ended = np.zeros((2, self.num_envs), bool)
        missed_share = np.full(self.num_envs, np.nan)
        seen = []
        for i, env in enumerate(self.envs):
            observation, rewards[i], ended[0, i], ended[1, i], info = env.step(plain_action(actions[i]))
            seen.append(observation)
            terms = info["reward_terms"]
            cost[i] = -sum(value for name, value in terms.items() if name.startswith(_PROMISES))
            dt[i], self._masks[i] = info["dt"], info["action_mask"]
            self._broken[i] += cost[i]
            if ended[:, i].any():
                missed_share[i] = self._broken[i] / max(1, len(_PROMISES) * len(env.records()))
        batch, infos = _stacked(seen), {"dt": dt, "cost": cost, "missed_share": missed_share}
        over = np.flatnonzero(ended.any(axis=0)).tolist()
        self._keep_last(over, batch, self._masks[over], infos)
        for i in over:
            for name, part in self._begin(i, self._draw(i)).items():
                batch[name][i] = part
        infos["action_mask"] = self._masks.copy()
        return batch, rewards, ended[0], ended[1], infos

    def action_masks(self) -> NDArray[np.bool_]:
        """(num_envs, entries), which are possible now."""
        return self._masks


def _stacked(seen: list[dict[str, NDArray[np.float32]]]) -> BatchObservation:
    return {name: np.stack([observation[name] for observation in seen]) for name in seen[0]}
