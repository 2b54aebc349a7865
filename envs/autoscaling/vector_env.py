"""The vector autoscaling environment."""

from __future__ import annotations

from typing import Any

from serving_gym.envs.autoscaling.config import AutoscalingConfig
from serving_gym.envs.autoscaling.env import AutoscalingEnv
from serving_gym.envs.autoscaling.episode import AutoscalingEpisode
from serving_gym.envs.base.vector_env import SequentialVectorEnv


class AutoscalingVectorEnv(SequentialVectorEnv):
    """`Serving/Autoscaling-v1` many times; arguments and `info` as of `envs.base.vector_env.SimulatedVectorEnv`.

    It keeps no records of single requests.
    """

    env_class = AutoscalingEnv
    episodes: list[AutoscalingEpisode]

    def _make_config(self, config: dict[str, Any]) -> AutoscalingConfig:
        return AutoscalingConfig(**{**config, "keep_records": False})
