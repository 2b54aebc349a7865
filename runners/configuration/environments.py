"""From the words of a command to an environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from serving_gym.envs.registration import env_config_class, make_env
from serving_gym.runners.configuration.clusters import cluster_of
from serving_gym.runners.configuration.schema import RunConfig
from serving_gym.runners.configuration.typed import build


def env_arguments(config: RunConfig) -> dict[str, Any]:
    """Keyword arguments of `make_env` and `make_vector_env`, typed.

    Raises:
        ValueError: a value that the environment does not take.
    """
    values = {key: value for key, value in config.env.items() if key != "name"}
    built: Any = build(env_config_class(config.env["name"]), values, "env.")
    shared = {
        "workload": config.workload,
        "cluster": cluster_of(config.cluster),
        "objective": config.objective,
        "split": config.split,
    }
    return {**{key: getattr(built, key) for key in values}, **shared}


def make_configured_env(config: RunConfig) -> gym.Env[Any, Any]:
    """The scalar environment that a command asks for."""
    return make_env(config.env["name"], **env_arguments(config))
