"""Turns user errors into one clear sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, ValidationError

from serving_gym.calibration import lookup
from serving_gym.runners.configuration.folders import CONFIG_DIR, config_groups, search_path

# Kinds of cluster that commands for nodes refuse, with the commands that take them.
_OTHER_CLUSTERS = {
    "fleet": ("a fleet", "runners.simulate"),
    "deployment": ("machines that a policy cuts into replicas", "runners.evaluate env=deployment"),
    "sharing": ("nodes on which a policy places instances", "runners.evaluate env=sharing"),
}


def explain(error: Exception, command: str, words: Sequence[str]) -> str:
    """The message of an error.

    Args:
        error: the exception.
        command: name of the command.
        words: the user's overrides.
    """
    if isinstance(error, MissingConfigException):
        return _unknown_choice(error, command, words)
    if isinstance(error, yaml.YAMLError):
        return _broken_yaml(error)
    cause = error.__cause__ if isinstance(error, ConfigCompositionException) and error.__cause__ else error
    if isinstance(cause, (ConfigAttributeError, ConfigKeyError)):
        return _unknown_key(cause, error, command, words)
    if isinstance(cause, MissingMandatoryValue):
        return f"{cause.full_key} must be given: add {cause.full_key}=..."
    if isinstance(error, OverrideParseException):
        return f"cannot read the word {error.override!r}: words are key=value, lists are written [a,b]"
    for kind, (what, others) in _OTHER_CLUSTERS.items():
        if f"'schema/cluster/{kind}'" in str(error):
            return f"{command} cannot serve {what}: choose a cluster that is a node, or {others}"
    if isinstance(cause, ValidationError):
        return _wrong_type(cause)
    if isinstance(error, OSError):
        return _file_error(error)
    if isinstance(error, HydraException):
        return _first_line(error)
    return " ".join(str(error).split())


def nearest(name: str, allowed: Iterable[str]) -> str:
    """End of a message about an unknown name: the nearest match and all allowed names in alphabetical order."""
    return lookup.nearest(name, sorted(allowed))


def _wrong_type(cause: ValidationError) -> str:
    """`seeds=abc`, or `policies=static_dp`."""
    reason = _first_line(cause)
    if "is not a ListConfig" in reason:
        return f"{cause.full_key} must be a list, written {cause.full_key}=[a,b]"
    return f"{cause.full_key}: {reason}"


def _broken_yaml(error: yaml.YAMLError) -> str:
    """A broken YAML file: file, line and problem."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or _first_line(error)
    if mark is None:
        return f"cannot read a YAML file: {problem}"
    return f"cannot read {mark.name!r}, line {mark.line + 1}, column {mark.column + 1}: {problem}"


def _unknown_choice(error: MissingConfigException, command: str, words: Sequence[str]) -> str:
    """`env=dp_pt`: a group without such a file."""
    wanted = error.missing_cfg_file or ""
    wanted = wanted if isinstance(wanted, str) else ", ".join(wanted)
    group, _, choice = wanted.partition("/")
    if group == "policy":
        return _unknown_policy(choice, command, words)
    if not error.options:
        return _first_line(error)
    return f"unknown {group} {choice!r}{nearest(choice, error.options)}"


def _unknown_policy(name: str, command: str, words: Sequence[str]) -> str:
    """`policy=static_pt`: the nearest policies of the chosen environment."""
    from serving_gym.runners.configuration.policies import unknown_policy

    chosen = next((word.partition("=")[2] for word in words if word.startswith("env=")), None)
    return unknown_policy(name, chosen or str(OmegaConf.select(_defaults(command, ()), "env.name")))


def _unknown_key(cause: Exception, error: Exception, command: str, words: Sequence[str]) -> str:
    """`env.decision_intervl_s=2`: an unknown key."""
    wanted = str(getattr(cause, "full_key", None) or getattr(cause, "key", "") or "")
    word = next((w for w in words if w.lstrip("+~").partition("=")[0].endswith(wanted)), "") if wanted else ""
    typed = word.lstrip("+~").partition("=")[0] or wanted
    if not typed:
        return _first_line(error)
    parent, _, last = typed.rpartition(".")
    config = _defaults(command, words)
    siblings = OmegaConf.select(config, parent) if parent else config
    if isinstance(siblings, DictConfig):
        return f"unknown key {typed!r}{nearest(last, (str(key) for key in siblings))}"
    every = list(_leaves(config))
    return f"unknown key {typed!r}{nearest(typed, (key for key in every if '.' not in key))}"


def _defaults(command: str, words: Sequence[str]) -> DictConfig:
    """The command's configuration with only the user's choices of groups."""
    groups = config_groups()
    choices = [word for word in words if word.partition("=")[0] in groups]
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
        try:
            return compose(command, overrides=[*search_path(), *choices])
        except HydraException:
            return compose(command)


def _leaves(config: Any, prefix: str = "") -> Iterable[str]:
    for key in config:
        name = f"{prefix}{key}"
        yield name
        if not OmegaConf.is_missing(config, key) and isinstance(config._get_node(key), DictConfig):
            yield from _leaves(config[key], f"{name}.")


def _file_error(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"cannot use {str(error.filename)!r}: {reason}" if error.filename else reason


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]
