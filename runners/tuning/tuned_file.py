"""Files of tuned policies."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig

from serving_gym.runners.configuration.folders import config_folders, search_path
from serving_gym.runners.reporting.output import write_text

TUNED = "_tuned"  # end of the names of tuned policies


def command_line(command: str) -> str:
    """The command as it was typed, without its run directory."""
    words = [str(word) for word in HydraConfig.get().overrides.task]
    kept = [word for word in words if not word.startswith("out=")]
    return shlex.join(["python", "-m", f"runners.{command}", *search_path(), *kept])


def typed_command(command: str) -> str:
    """`command_line`; "" where no command is running, as in a test or a notebook."""
    return command_line(command) if HydraConfig.initialized() else ""


def tuned_text(head: Sequence[str], name: str, params: Mapping[str, Any]) -> str:
    """Content of a file of `configs/policy`: comments, and the policy with its constants."""
    comments = "".join(f"# {line}\n" for line in head)
    return comments + yaml.safe_dump({"name": name, "params": dict(params)}, sort_keys=False)


def save_tuned(label: str, text: str, suffix: str = "tuned") -> Path:
    """Writes `policy/LABEL_SUFFIX.yaml` into the folder of configuration files.

    Args:
        label: Name of the policy that was tuned.
        text: Content.
        suffix: End of the file's name.

    Returns:
        The file.
    """
    name = re.sub(r"\W+", "_", label).strip("_")
    path = config_folders()[-1] / "policy" / f"{name}_{suffix}.yaml"
    write_text(path, text)
    return path
