"""Files of configs/policy by the policy that they configure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from serving_gym.runners.configuration.folders import CONFIG_DIR
from serving_gym.runners.documentation.markdown import table

_FOLDER = CONFIG_DIR / "policy"
_TUNED = "Tuned on "  # what `runners.tune` writes at the head of a file
_MOST_TASKS = 2  # of those that a policy was tuned on, named

_POINTER = re.compile(r"(?:Every constant is explained in|Explained in|See) baselines/\S+\.py\.")


@dataclass(frozen=True)
class PolicyFile:
    """A file of configs/policy.

    Attributes:
        name: As in `policy=NAME`.
        policy: The registered policy that it configures.
        purpose: The comment at its head.
    """

    name: str
    policy: str
    purpose: str

    @property
    def is_tuned(self) -> bool:
        """Whether a tuner wrote it."""
        return self.purpose.startswith(_TUNED)

    @property
    def tuned_on(self) -> str:
        """The workloads or tasks that it was tuned on, the first ones by name."""
        tasks = self.purpose.removeprefix(_TUNED).partition("; ")[0].partition(", validation")[0].split(", ")
        more = len(tasks) - _MOST_TASKS
        return ", ".join(tasks[:_MOST_TASKS]) + (f" and {more} more" if more > 0 else "")


@cache
def policy_files() -> tuple[PolicyFile, ...]:
    """All files, by name."""
    return tuple(
        PolicyFile(path.stem, configured_policy(path), head_of(path))
        for path in sorted(_FOLDER.glob("*.yaml"))
    )


def files_of(policy: str) -> list[PolicyFile]:
    """Files that configure a registered policy, those that a tuner wrote last."""
    return sorted((file for file in policy_files() if file.policy == policy), key=lambda file: file.is_tuned)


def configured_policy(path: Path) -> str:
    """The registered policy that a file configures: its `name`, or that of the file it begins with.

    Raises:
        ValueError: It has neither.
    """
    values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if "name" in values:
        return str(values["name"])
    bases = [entry for entry in values.get("defaults", ()) if isinstance(entry, str) and entry != "_self_"]
    if not bases:
        raise ValueError(f"{path} names no policy: it has no `name` and no file in `defaults`")
    return configured_policy(path.with_name(f"{bases[0]}.yaml"))


def head_of(path: Path) -> str:
    """The comments before the first value of a file, without commands and pointers to source files."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith(("# python -m", "# @package")):
            lines.append(line.removeprefix("#").strip())
    return _POINTER.sub("", " ".join(lines)).strip()


def files_table(files: Iterable[PolicyFile]) -> str:
    """A row a file."""
    return table(["`policy=`", "what it is"], ([f"`{file.name}`", file.purpose] for file in files))
