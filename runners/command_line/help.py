"""Text of `--help`: purpose and examples of a command, and its most important keys."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from serving_gym.runners.configuration.folders import CONFIG_DIR, config_names

HELP = ("-h", "--help")
_MOST_WIDTH = 90  # of the choices of a group
_KEY = re.compile(r"^(\w+):\s*([^#]*?)\s*(?:#\s*(.*))?$")


def help_text(name: str, function: Callable[..., Any]) -> str:
    """The help of a command.

    Args:
        name: Name of the command and of its YAML file.
        function: The command, whose module docstring describes it.
    """
    purpose = (sys.modules[function.__module__].__doc__ or "").strip()
    keys = first_words(name)
    width = max((len(key) for key, _ in keys), default=0)
    return "\n".join(
        [
            purpose,
            "",
            "Words that people change first, with their defaults:",
            "",
            *(f"  {key:<{width}}  {comment}".rstrip() for key, comment in keys),
            "",
            f"All keys and their values: python -m runners.{name} --cfg job",
            "Files of your own for any group: --config-dir DIR, as DIR/workload/mine.yaml for workload=mine.",
            "Several runs, one for each value: -m seed=0,1,2. Hydra's own options: --hydra-help",
        ]
    )


def first_words(name: str) -> list[tuple[str, str]]:
    """Words that people change first, `key=default`, with what they mean or the choices there are.

    Args:
        name: Name of the command and of its YAML file.
    """
    return [*_groups(name), *_own_keys(name)]


def _groups(name: str) -> Iterator[tuple[str, str]]:
    """Config groups of a command, with their choices."""
    values = yaml.safe_load((CONFIG_DIR / f"{name}.yaml").read_text(encoding="utf-8"))
    chosen = {
        key: choice
        for entry in values["defaults"]
        if isinstance(entry, dict)
        for key, choice in entry.items()
    }
    for key, choice in chosen.items():
        names = config_names(key) if re.fullmatch(r"\w+", key) else []
        if names:
            yield f"{key}={'null' if choice is None else choice}", _shortened(names)


def _shortened(names: list[str]) -> str:
    text = " | ".join(names)
    if len(text) <= _MOST_WIDTH:
        return text
    shown = text[:_MOST_WIDTH].rpartition(" | ")[0]
    return f"{shown} | ... ({len(names)})"


def _own_keys(name: str) -> Iterator[tuple[str, str]]:
    """Keys in a command's own file, with their comments."""
    text = (CONFIG_DIR / f"{name}.yaml").read_text(encoding="utf-8")
    for line in text.partition("_self_")[2].splitlines():
        match = _KEY.match(line)
        if match is None or match[1] == "hydra":
            continue
        key, value, comment = match.groups()
        yield (f"{key}={value}" if value else f"{key}.KEY=..."), comment or ""
