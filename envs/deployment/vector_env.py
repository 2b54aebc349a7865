"""Many deployment episodes side by side in one process."""

from __future__ import annotations

from typing import Any

from serving_gym.envs.base.vector_env import SequentialVectorEnv, check_width
from serving_gym.envs.deployment.config import DeploymentConfig
from serving_gym.envs.deployment.env import make_spaces
from serving_gym.envs.deployment.episode import DeploymentCore


class DeploymentVectorEnv(SequentialVectorEnv):
    """`Serving/Deployment-v0`, batched; equal to the scalar environment step by step.

    Args:
        num_envs: Episodes side by side.
        config: As the scalar environment's.
    """

    episodes: list[DeploymentCore]

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **config: Any) -> None:
        check_width(num_envs, render_mode)
        self.episodes = [DeploymentCore(DeploymentConfig(**config)) for _ in range(num_envs)]
        self._lay_out(num_envs, render_mode, make_spaces(self.episodes[0]))
