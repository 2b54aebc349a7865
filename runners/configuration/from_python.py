"""A command's configuration from the words that `gymnasium.make` takes, plain or typed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from serving_gym.envs.registration import env_config_class
from serving_gym.runners.command_line.errors import explain
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.make import as_words, is_plain
from serving_gym.runners.configuration.schema import SHARED_ENV_FIELDS

Config = TypeVar("Config")


def from_python(command: str, schema: type[Config], env: str, words: Mapping[str, Any]) -> Config:
    """A command's configuration.

    Args:
        command: Its name.
        schema: Dataclass of its configuration, with the environment's parts.
        env: Name of the environment.
        words: Words of the command, and of the environment's settings with or without `env.`; typed objects as
            workload, cluster, objective or a setting.

    Raises:
        ValueError: A word or a value is unknown or not allowed; names the nearest match.
    """
    own = {entry.name for entry in dataclasses.fields(env_config_class(env))}
    own -= {entry.name for entry in dataclasses.fields(schema)}  # type: ignore[arg-type]
    full = {f"env.{key}" if key.partition(".")[0] in own else key: value for key, value in words.items()}
    plain = {key: value for key, value in full.items() if is_plain(value)}
    typed = {key: value for key, value in full.items() if key not in plain}
    for key, value in typed.items():
        inside = next((each for each in plain if each.startswith(f"{key}.")), None)
        if inside is not None:
            raise ValueError(
                f"{inside} cannot be set beside {key}, a {type(value).__name__}: set it in the object"
            )
        if key.removeprefix("env.") not in own and key not in SHARED_ENV_FIELDS:
            raise ValueError(f"{key} must be a plain value here, got {type(value).__name__}")
    said = [f"env={env}", *as_words(plain)]
    try:
        config: Any = composed(command, schema, said)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(explain(error, command, said)) from None
    settings = {
        key.removeprefix("env."): value for key, value in typed.items() if key not in SHARED_ENV_FIELDS
    }
    groups = {key: value for key, value in typed.items() if key in SHARED_ENV_FIELDS}
    result: Config = dataclasses.replace(config, env={**config.env, **settings}, **groups)
    return result
