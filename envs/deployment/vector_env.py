"""The vector deployment environment."""

from __future__ import annotations

from serving_gym.envs.base.vector_env import SequentialVectorEnv
from serving_gym.envs.deployment.env import DeploymentEnv


class DeploymentVectorEnv(SequentialVectorEnv):
    """`Serving/Deployment-v1` many times; arguments and `info` as of `envs.base.vector_env.SimulatedVectorEnv`."""

    env_class = DeploymentEnv
