"""Writes trained agents to checkpoints, and loads policies from them.

A checkpoint is a folder: `config.yaml` (settings of the agent and of the environment it was trained in, resolved),
`spaces.json` (shapes of observation and action space), `card.md` (description, training and results),
and the weights, as plain tensors without code. A folder is written under a temporary name and then moved.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import yaml
from gymnasium import spaces

from serving_gym.agents.card import card_text
from serving_gym.agents.environments.spaces import FILE as SPACES
from serving_gym.agents.environments.spaces import ActionSpace, spaces_to_json
from serving_gym.agents.learners.learner import agent_entry
from serving_gym.baselines.policy import Policy
from serving_gym.calibration.lookup import load_attribute

CONFIG, CARD = "config.yaml", "card.md"
CHECKPOINT, LAST = "checkpoint", "last"  # folders of a run: the best policy, and the state to resume from
FORMAT = 1
ZOO = Path(__file__).resolve().parent / "zoo"
_ZOO_PREFIX = "zoo/"
_VERSIONS = ("serving-gym", "torch", "stable-baselines3", "sb3-contrib", "gymnasium", "numpy", "numba")

Loader = Callable[[Path, Mapping[str, Any], str], Policy]

# Loaders of agents that are not in `agents.learners.learner.AGENTS`, by name.
LOADERS: dict[str, Loader] = {}


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder to fill, which then replaces `folder`; until then the old one stays."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
        old = previous(folder)
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def previous(folder: Path) -> Path:
    """Path of the old version of a folder while `replacing` moves the new one in."""
    return folder.with_name(f".{folder.name}.old")


def standing(folder: Path) -> Path:
    """A folder, or its old version if a process was killed at that moment."""
    return folder if folder.exists() or not previous(folder).exists() else previous(folder)


def write_description(
    folder: Path,
    config: Mapping[str, Any],
    observation: spaces.Dict,
    action: ActionSpace,
    figures: Mapping[str, Any],
    results: Mapping[str, Any] | None = None,
    command: str = "",
) -> None:
    """Writes everything but the weights.

    Args:
        folder: Folder of the checkpoint.
        config: `agent`, `env`, `workload` and other settings.
        observation: Observation space.
        action: Action space.
        figures: Of the training, for the card, by name: steps, minutes, seed and the like.
        results: Of the policy, for the card, by name.
        command: The command that trained it; "": it is not known.
    """
    text = yaml.safe_dump({"format": FORMAT, **plain(config)}, sort_keys=False, allow_unicode=True)
    (folder / CONFIG).write_text(text, encoding="utf-8")
    (folder / SPACES).write_text(spaces_to_json(observation, action), encoding="utf-8")
    (folder / CARD).write_text(
        card_text(plain(config), figures, results or {}, versions(), command), encoding="utf-8"
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Settings of a checkpoint.

    Raises:
        ValueError: the folder is not a checkpoint, or has a later version.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"no checkpoint in {str(folder)!r}: {CONFIG} is missing")
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(config, dict) or not isinstance(config.get("agent"), dict):
        raise ValueError(f"{str(path)!r} does not describe an agent")
    if config.get("format") != FORMAT:
        raise ValueError(f"{str(path)!r} has format {config.get('format')!r}, this version reads {FORMAT}")
    return config


def load_policy(checkpoint: str | Path) -> Policy:
    """The policy in a checkpoint.

    Args:
        checkpoint: `zoo/NAME`, the folder of a checkpoint, or that of the run which wrote it; or the `.zip` that a
            model of Stable-Baselines3 or sb3-contrib has been saved to.

    Raises:
        ValueError: it does not exist, or cannot be read.
    """
    if is_saved_model(str(checkpoint)):
        from serving_gym.agents.policies.saved_model import load_saved_model  # imports torch

        return load_saved_model(Path(checkpoint))
    folder = find_checkpoint(checkpoint)
    config = read_config(folder)
    kind = str(config["agent"].get("name"))
    loader = LOADERS[kind] if kind in LOADERS else cast("Loader", load_attribute(agent_entry(kind).loader))
    try:
        return loader(folder, config, name_of(checkpoint))
    except RuntimeError as error:  # raised by torch if names or shapes of the weights differ
        raise ValueError(
            f"{str(checkpoint)!r} cannot be read: its weights are not those of the network that its settings describe"
        ) from error


def name_of(checkpoint: str | Path) -> str:
    """Name of a checkpoint in results: `zoo/NAME` wherever the zoo lies, else as it is given."""
    path = Path(checkpoint)
    return f"{_ZOO_PREFIX}{path.name}" if path.parent.resolve() == ZOO else str(checkpoint)


def trained_in(checkpoint: str | Path) -> str | None:
    """Name of the environment that a checkpoint was trained in; None: a saved model, which does not record it.

    Raises:
        ValueError: the checkpoint does not exist.
    """
    if is_saved_model(str(checkpoint)):
        return None
    return str(read_config(find_checkpoint(checkpoint))["env"]["name"])


def is_saved_model(name: str) -> bool:
    """Whether a name is a file written by `model.save()` of Stable-Baselines3."""
    return name.endswith(".zip") and Path(name).is_file()


def find_checkpoint(checkpoint: str | Path) -> Path:
    """Folder of a checkpoint.

    Raises:
        ValueError: it does not exist; for the zoo, lists its names.
    """
    name = str(checkpoint)
    if name.startswith(_ZOO_PREFIX) and not Path(name).is_dir():
        folder = ZOO / name.removeprefix(_ZOO_PREFIX)
        if not (folder / CONFIG).is_file():
            held = sorted(path.parent.name for path in ZOO.glob(f"*/{CONFIG}"))
            raise ValueError(f"no {name!r}: the zoo holds {', '.join(held) or 'nothing yet'}")
        return folder
    for folder in (Path(checkpoint), standing(Path(checkpoint) / CHECKPOINT)):
        if (folder / CONFIG).is_file():
            return folder
    raise ValueError(f"no checkpoint in {name!r}")


def plain(value: Any) -> Any:
    """Converts dataclasses, tuples, enums and the like to plain YAML and JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {plain(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, Enum):
        return value.name
    return value


def versions() -> dict[str, str]:
    """Versions of the packages that a result depends on."""
    found = {}
    for name in _VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
