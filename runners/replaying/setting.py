"""The setting that a log was written in: environment, and the run that wrote it where its folder tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from serving_gym.envs.registration import Environment
from serving_gym.runners.configuration.schema import EnvironmentConfig
from serving_gym.runners.configuration.typed import build
from serving_gym.runners.replaying.log import Assignment

_GROUPS = ("env", "workload", "cluster", "objective", "split")


@dataclass(frozen=True)
class Run:
    """The run that wrote a log.

    Attributes:
        environment: Its environment; None: its folder does not tell.
        policy: The `policy` of its configuration; None: it does not tell.
        explore: Share of its decisions that were random.
        requests: Its requests; None: there is no `requests.parquet`.
        assignment: How it decided whose choice is followed, if it is a serving process.
    """

    environment: Environment | None = None
    policy: Mapping[str, Any] | None = None
    explore: float = 0.0
    requests: pd.DataFrame | None = None
    assignment: Assignment = field(default_factory=Assignment)


def run_of(log: Path) -> Run:
    """The run in whose folder a log lies.

    Raises:
        ValueError: Its configuration is not one of this version.
    """
    folder = log.parent
    table = folder / "requests.parquet"
    requests = pd.read_parquet(table) if table.is_file() else None
    file = folder / ".hydra" / "config.yaml"
    if not file.is_file():
        return Run(requests=requests)
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    values = values if isinstance(values, dict) else {}
    known = {"env", "workload", "cluster", "objective"} <= set(values)
    setting = {key: values[key] for key in _GROUPS if values.get(key) is not None}
    return Run(
        build(EnvironmentConfig, setting).environment if known else None,
        values.get("policy"),
        float(values.get("explore") or 0.0),
        requests,
        Assignment(str(values.get("mode") or ""), float(values.get("share") or 0.0)),
    )


def names_setting(words: Sequence[str]) -> bool:
    """Whether overrides say something about the environment."""
    keys = {word.lstrip("+~").partition("=")[0].partition(".")[0] for word in words}
    return bool(keys & {*_GROUPS, "experiment"})
