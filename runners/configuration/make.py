"""The front door in Python: `gymnasium.make` gives the environment that `env=NAME` gives on the command line.

    gymnasium.make("Serving/Routing-v1")
    gymnasium.make("Serving/Routing-v1", workload="azure_conv_fitted", **{"workload.rate_scale": 4})
    gymnasium.make("Serving/DPTP-v1", experiment="nemotron_8b", decision_interval_s=2.0)

A name of a group (`workload`, `cluster`, `objective`, `experiment`) chooses a file of `configs`; a dotted word sets a
value in it; any other word is a setting of the environment. Typed objects are taken as they are.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from serving_gym.envs.base.vector_reward import VectorReward
from serving_gym.envs.registration import Environment, env_config_class
from serving_gym.runners.command_line.errors import explain, nearest
from serving_gym.runners.configuration.compose import compose_words
from serving_gym.runners.configuration.folders import search_path
from serving_gym.runners.configuration.schema import SHARED_ENV_FIELDS, EnvironmentConfig
from serving_gym.runners.configuration.typed import build

COMMAND = "environment"
GROUPS = ("workload", "cluster", "objective", "experiment")
VECTOR_OPTIONS = (
    "render_mode",
    "autoreset_mode",
    "max_episode_steps",
)  # of a vector environment, not of its episodes


def make_env(
    env: str,
    render_mode: str | None = None,
    vector_reward: bool | Mapping[str, Sequence[str]] = False,
    **words: Any,
) -> gym.Env[Any, Any]:
    """A scalar environment; Gymnasium's entry point of every id.

    Args:
        env: Name of the environment.
        render_mode: None, "human", "ansi" or "rgb_array".
        vector_reward: Whether rewards are vectors (`envs.base.vector_reward.VectorReward`), one entry a reward term; or
            its objectives. Then `gymnasium.make` needs `disable_env_checker=True`, as `mo_gymnasium.make` has it.
        words: What differs from the default, by name or by dotted word.

    Raises:
        ValueError: A word or a value is unknown or not allowed; names the nearest match.
    """
    made = environment_of(env, words).make(render_mode=render_mode)
    if vector_reward is False:
        return made
    return VectorReward(made, None if vector_reward is True else vector_reward)


def make_vector_env(env: str, num_envs: int = 1, **words: Any) -> VectorEnv[Any, Any, Any]:
    """A vector environment; Gymnasium's vector entry point of every id.

    Args:
        env: Name of the environment.
        num_envs: Episodes side by side.
        words: As `make_env` takes them, and those of `VECTOR_OPTIONS`.

    Raises:
        ValueError: A word or a value is unknown or not allowed; names the nearest match.
    """
    options = {key: words.pop(key) for key in VECTOR_OPTIONS if key in words}
    return environment_of(env, words).make_vector(num_envs, **options)


def environment_of(env: str, words: Mapping[str, Any]) -> Environment:
    """The environment that words describe, with all its settings.

    Args:
        env: Its name.
        words: Names of groups' files, dotted words, and settings of the environment, plain or typed.

    Raises:
        ValueError: A word or a value is unknown or not allowed; names the nearest match.
    """
    _check_keys(env, words)
    choices = {key: value for key, value in words.items() if key in GROUPS and isinstance(value, str)}
    named = [f"env={env}", *(f"{group}={choice}" for group, choice in choices.items())]
    typed: dict[str, Any] = {}
    try:
        config = OmegaConf.create(_composed(tuple(named), tuple(search_path())))
        # A whole group or setting before what is said of its keys.
        for key, value in sorted(words.items(), key=lambda item: item[0].count(".")):
            if key not in choices:
                _put(config, typed, key, value)
        values = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(explain(error, COMMAND, named)) from None
    groups = {key: value for key, value in typed.items() if key in SHARED_ENV_FIELDS}
    own = {key: value for key, value in typed.items() if key not in SHARED_ENV_FIELDS}
    values["env"] |= own
    return build(EnvironmentConfig, {**values, **groups}).environment


@lru_cache(maxsize=64)
def _composed(words: tuple[str, ...], _folders: tuple[str, ...]) -> DictConfig:
    return compose_words(COMMAND, EnvironmentConfig, words)


def _check_keys(env: str, words: Mapping[str, Any]) -> None:
    """Refuses what is neither a group nor a setting of the environment, nor lies in one."""
    settings = [entry.name for entry in dataclasses.fields(env_config_class(env))]
    known = dict.fromkeys([*settings, *GROUPS])
    for key in words:
        if key.removeprefix("env.").partition(".")[0] not in known:
            raise ValueError(f"unknown key {key!r}{nearest(key, known)}")


def _put(config: DictConfig, typed: dict[str, Any], key: str, value: Any) -> None:
    """Sets one word in a composed configuration, or among what is typed already."""
    first, _, inside = key.removeprefix("env.").partition(".")
    if inside and first in typed:
        typed[first] = _changed(typed[first], first, inside, value)
    elif not is_plain(value):
        if inside:
            raise ValueError(f"{key} must be a plain value, got {type(value).__name__}")
        typed[first] = value
    else:
        full = key if first in SHARED_ENV_FIELDS else f"env.{key.removeprefix('env.')}"
        _set(config, full, key, _as_plain(value))


def _changed(found: Any, name: str, inside: str, value: Any) -> Any:
    """A typed object with one field changed."""
    known = [entry.name for entry in dataclasses.fields(found)] if dataclasses.is_dataclass(found) else []
    if inside not in known:
        raise ValueError(f"unknown key {f'{name}.{inside}'!r}{nearest(inside, known)}")
    return dataclasses.replace(found, **{inside: value})


def _set(config: DictConfig, full: str, key: str, value: Any) -> None:
    parent, _, last = full.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    is_open = isinstance(node, DictConfig) and node._metadata.object_type in (
        dict,
        None,
    )  # as workload.params
    if isinstance(node, DictConfig) and last not in node and not is_open:
        raise ValueError(f"unknown key {key!r}{nearest(last, map(str, node))}")
    OmegaConf.update(config, full, value, merge=True, force_add=is_open)


def as_words(values: Mapping[str, Any]) -> list[str]:
    """Values as one would type them on the command line.

    Raises:
        ValueError: A value is an object that no word can say.
    """
    for key, value in values.items():
        if not is_plain(value):
            raise ValueError(f"{key} must be a plain value here, got {type(value).__name__}")
    return [f"{key}={_as_word(_as_plain(value))}" for key, value in values.items()]


def _as_word(value: Any) -> str:
    """A value in Hydra's grammar of overrides."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return (
            value
            if re.fullmatch(r"[\w.\-/]+", value)
            else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(_as_word, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_as_word(each)}" for key, each in value.items()) + "}"
    return repr(value)


def is_plain(value: Any) -> bool:
    """Whether a value is what YAML can say."""
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return True
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(each) for key, each in value.items())
    return isinstance(value, (list, tuple)) and all(map(is_plain, value))


def _as_plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _as_plain(each) for key, each in value.items()}
    return [_as_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
