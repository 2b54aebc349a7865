"""Many autoscaling episodes side by side in one process."""

from __future__ import annotations

from typing import Any

from serving_gym.envs.autoscaling.config import AutoscalingConfig
from serving_gym.envs.autoscaling.env import make_spaces
from serving_gym.envs.autoscaling.episode import Episode
from serving_gym.envs.base.vector_env import SequentialVectorEnv, check_width


class AutoscalingVectorEnv(SequentialVectorEnv):
    """`Serving/Autoscaling-v0`, batched; equal to the scalar environment step by step.

    What became of each request is not kept.

    Args:
        num_envs: Episodes side by side.
        config: As the scalar environment's.
    """

    episodes: list[Episode]

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **config: Any) -> None:
        check_width(num_envs, render_mode)
        made = AutoscalingConfig(**{**config, "keep_records": False})
        self.episodes = [Episode(made) for _ in range(num_envs)]
        self._lay_out(num_envs, render_mode, make_spaces(self.episodes[0]))
