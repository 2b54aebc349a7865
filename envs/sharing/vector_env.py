"""Many sharing episodes side by side in one process, stepped by one call of the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.placement import PlacementVectorEnv, Stepped
from serving_gym.envs.base.vector_env import check_width
from serving_gym.envs.sharing.batch import SharingDeciders
from serving_gym.envs.sharing.config import SharingConfig
from serving_gym.envs.sharing.env import make_spaces
from serving_gym.envs.sharing.episode import SharingEpisode


class SharingVectorEnv(PlacementVectorEnv):
    """`Serving/Sharing-v0`, batched; equal to the scalar environment step by step.

    Args:
        num_envs: Episodes side by side.
        config: As the scalar environment's.
    """

    _batch: SharingDeciders

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **config: Any) -> None:
        check_width(num_envs, render_mode)
        self.config = SharingConfig(**config)
        episodes = [SharingEpisode(self.config) for _ in range(num_envs)]
        super().__init__(SharingDeciders(episodes), make_spaces(episodes[0]))

    def _step(self, actions: NDArray[np.int64]) -> Stepped:
        observations, outcomes = self._batch.step(actions)  # None: the episode is over and stands still
        return Stepped(
            observations,
            np.array([0.0 if outcome is None else outcome.reward for outcome in outcomes]),
            np.array([outcome is None or outcome.terminated for outcome in outcomes]),
            np.array([outcome is not None and outcome.truncated for outcome in outcomes]),
            np.array([0.0 if outcome is None else outcome.dt_s for outcome in outcomes]),
        )
