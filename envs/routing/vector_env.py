"""Many routing episodes side by side in one process, stepped by one call of the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.placement import PlacementVectorEnv, Stepped
from serving_gym.envs.base.vector_env import check_width
from serving_gym.envs.routing.batch import EpisodeBatch
from serving_gym.envs.routing.config import RoutingConfig
from serving_gym.envs.routing.env import make_spaces
from serving_gym.envs.routing.episode import Episode


class RoutingVectorEnv(PlacementVectorEnv):
    """`Serving/Routing-v0`, batched; equal to the scalar environment step by step.

    Args:
        num_envs: Episodes side by side.
        config: As the scalar environment's.
    """

    _batch: EpisodeBatch

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **config: Any) -> None:
        check_width(num_envs, render_mode)
        self.config = RoutingConfig(**config)
        episodes = [Episode(self.config) for _ in range(num_envs)]
        super().__init__(EpisodeBatch(episodes), make_spaces(episodes[0]))

    def _step(self, actions: NDArray[np.int64]) -> Stepped:
        observations, outcomes = self._batch.step(actions)
        rewards = outcomes.rewards(self.config.objective)
        return Stepped(observations, rewards, outcomes.terminated, outcomes.truncated, outcomes.dt_s)
