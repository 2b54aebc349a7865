"""Many deployment episodes side by side in one process."""

from __future__ import annotations

from typing import Any

from envs.deployment.config import DeploymentConfig
from envs.deployment.core import DeploymentCore
from envs.deployment.env import make_spaces
from envs.side_by_side import OneByOne, check_width


class DeploymentVectorEnv(OneByOne):
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
