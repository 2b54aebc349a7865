"""Registers workloads and environments of installed packages as choices of the config groups."""

from __future__ import annotations

from typing import Any

from hydra.core.config_store import ConfigStore

from serving_gym.envs.registration import env_choices, env_names
from serving_gym.envs.workload.outside import outside_fields, workload_entry_points
from serving_gym.runners.configuration.folders import config_file


def register_packages() -> None:
    """Adds workloads and environments of entry points to Hydra's ConfigStore: `workload=NAME` and `env=NAME`.

    Raises:
        ValueError: a workload cannot be loaded.
    """
    store = ConfigStore.instance()
    for name in workload_entry_points():
        if config_file("workload", name) is None:
            store.store(group="workload", name=name, node=dict(outside_fields(name) or {"name": name}))
    for name in env_names():
        if config_file("env", name) is None:
            store.store(group="env", name=name, node=_env_node(name), package="_global_")


def _env_node(name: str) -> dict[str, Any]:
    """The config node of an environment, with its defaults for other groups."""
    choices = [{f"override /{group}": choice} for group, choice in env_choices(name).items()]
    return {"defaults": [f"/schema/env/{name}@env", *choices, "_self_"], "env": {"name": name}}
