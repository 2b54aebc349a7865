"""Composes a command's configuration from Python, as `python -m runners.NAME` would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from serving_gym.runners.configuration.folders import CONFIG_DIR, search_path
from serving_gym.runners.configuration.policies import register_choices
from serving_gym.runners.configuration.schema import register_command, register_schemas
from serving_gym.runners.configuration.typed import build

Config = TypeVar("Config")


def composed(name: str, schema: type[Config], words: Sequence[str]) -> Config:
    """A command's configuration, typed.

    Args:
        name: Of the command.
        schema: Dataclass of its configuration.
        words: Overrides; `out` is not used.
    """
    config = compose_words(name, schema, words)
    config.out = "unused"  # its default contains the time
    values = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    return build(schema, values)


def compose_words(name: str, schema: type, words: Sequence[str]) -> DictConfig:
    """Composes a command's configuration with Hydra, on the search path of the running command, if any.

    Args:
        name: Of the command.
        schema: Dataclass of its configuration.
        words: Overrides.
    """
    register_schemas()
    register_command(name, schema)
    overrides = [*search_path(), *register_choices(words)]
    if GlobalHydra.instance().is_initialized():
        return compose(name, overrides=overrides)
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
        return compose(name, overrides=overrides)
