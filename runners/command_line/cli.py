"""Runs commands with Hydra; a failure prints one clear sentence."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from serving_gym.runners.command_line.errors import explain
from serving_gym.runners.command_line.help import HELP, help_text
from serving_gym.runners.command_line.secrets import refuse_passwords, remove_passwords
from serving_gym.runners.configuration.folders import CONFIG_DIR, folders_of, with_search_path
from serving_gym.runners.configuration.policies import register_choices
from serving_gym.runners.configuration.schema import register_command, register_schemas
from serving_gym.runners.configuration.typed import build
from serving_gym.runners.reporting.provenance import write_provenance

Config = TypeVar("Config")

DEBUG_VARIABLE = "SERVING_GYM_DEBUG"
USER_ERROR = 2
_INTERRUPTED = 130
_USER_ERRORS = (ValueError, HydraException, OmegaConfBaseException, OSError, yaml.YAMLError)


def command(
    name: str, schema: type[Config]
) -> Callable[[Callable[[Config, Path], None]], Callable[[Sequence[str] | None], int]]:
    """Turns `function(config, run_directory)` into a command that takes arguments and returns an exit status.

    Args:
        name: name of the command and of its YAML file in `configs`.
        schema: dataclass of its configuration.
    """

    def decorate(function: Callable[[Config, Path], None]) -> Callable[[Sequence[str] | None], int]:
        def task(config: DictConfig) -> None:
            values = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
            out = Path(HydraConfig.get().runtime.output_dir)
            built = build(schema, values)
            write_provenance(out, name, HydraConfig.get().overrides.task)
            function(built, out)

        @functools.wraps(function)
        def main(words: Sequence[str] | None = None) -> int:
            given = list(sys.argv[1:] if words is None else words)
            if any(word in HELP for word in given):
                print(help_text(name, function))
                return 0
            register_schemas()
            register_command(name, schema)
            return _run(name, task, given)

        return main

    return decorate


def let_warnings_through() -> None:
    """Lets this project's loggers speak, all of which Hydra has silenced."""
    own = logging.getLogger("serving_gym")
    own.setLevel(logging.WARNING)
    for name in [own.name, *logging.root.manager.loggerDict]:
        if name == own.name or name.startswith(f"{own.name}."):
            logging.getLogger(name).disabled = False


def _run(name: str, task: Callable[[DictConfig], None], words: list[str]) -> int:
    use_one_thread()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors are raised, not printed by Hydra
    own_words, sys.argv = sys.argv, [f"runners.{name}"]
    failures: list[Exception] = []

    def guarded(config: DictConfig) -> None:
        let_warnings_through()
        try:
            remove_passwords(Path(HydraConfig.get().runtime.output_dir))
            task(config)
        except _USER_ERRORS as error:  # a sweep continues with its other jobs
            failures.append(error)

    try:
        refuse_passwords(words)
        with folders_of(words):
            sys.argv += register_choices(with_search_path([_open(word) for word in words]))
            hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name=name)(guarded)()
    except _USER_ERRORS as error:
        failures.append(error)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return _INTERRUPTED
    finally:
        sys.argv = own_words
    for failure in failures:
        if os.environ.get(DEBUG_VARIABLE) == "1":
            raise failure
        print(f"error: {explain(failure, name, words)}", file=sys.stderr)
    return USER_ERROR if failures else 0


def _open(word: str) -> str:
    """A word whose keys the command itself checks, as Hydra lets it pass: what a paper leaves open."""
    return f"++{word}" if word.startswith("choices.") else word


def use_one_thread() -> None:
    """Limits PyTorch to one thread: the networks are small, and contended threads are ten times slower."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
