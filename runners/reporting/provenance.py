"""What a command was and ran on, for `provenance.json` in its directory."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from serving_gym.runners.reporting.output import write_json

PROVENANCE_FILE = "provenance.json"
_PACKAGES = ("serving-gym", "numpy", "numba", "gymnasium", "torch", "stable-baselines3", "lightgbm")
_PASSWORD = re.compile(r"//[^/@\s]*@")


def write_provenance(out: Path, command: str, words: Sequence[str]) -> None:
    """Writes `provenance.json`: command, versions, machine and time of its start.

    Args:
        out: Run directory.
        command: Name of the command.
        words: Its words; passwords in addresses are left out.
    """
    write_json(
        out / PROVENANCE_FILE,
        {
            "command": command,
            "words": [_PASSWORD.sub("//***@", word) for word in words],
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "versions": {"python": platform.python_version()}
            | {name: found for name in _PACKAGES if (found := _version(name))},
            "machine": {"system": platform.platform(terse=True), "processors": os.cpu_count()},
        },
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
