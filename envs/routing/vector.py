"""Many routing episodes side by side in one process, stepped by one call of the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.placing import PlacingVectorEnv, Stepped
from envs.routing.config import RoutingConfig
from envs.routing.deciders import Deciders
from envs.routing.env import make_spaces
from envs.routing.episode import Episode
from envs.side_by_side import check_width


class RoutingVectorEnv(PlacingVectorEnv):
    """`Serving/Routing-v0`, batched; equal to the scalar environment step by step.

    Args:
        num_envs: Episodes side by side.
        config: As the scalar environment's.
    """

    _deciders: Deciders

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **config: Any) -> None:
        check_width(num_envs, render_mode)
        self.config = RoutingConfig(**config)
        episodes = [Episode(self.config) for _ in range(num_envs)]
        super().__init__(Deciders(episodes), make_spaces(episodes[0]))

    def _step(self, actions: NDArray[np.int64]) -> Stepped:
        observations, outcomes = self._deciders.step(actions)
        rewards = outcomes.rewards(self.config.objective)
        return Stepped(observations, rewards, outcomes.terminated, outcomes.truncated, outcomes.dt_s)
