"""Environments by name, and under their Gymnasium ids."""

from __future__ import annotations

import difflib
import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

GROUP = "serving_gym.environments"  # entry points of packages: functions that call `register`


@dataclass(frozen=True)
class EnvEntry:
    """One environment.

    Attributes:
        env_id: Its Gymnasium id.
        entry_point: `module:class` of the scalar environment.
        vector_entry_point: `module:class` of the vector environment.
        config: `module:class` of the dataclass of its arguments; `workload`, `cluster`, `objective` and `split` are
            among them.
        policies: What one compares with, by name.
        state: Name of the class of its state, by which policies are known to fit.
        package: What modules are counted from; empty for an environment from outside this package.
        choices: Config groups and what commands choose of them with this environment, as `{"workload": "azure_conv"}`;
            of one that has no file in `configs/env`.
    """

    env_id: str
    entry_point: str
    vector_entry_point: str
    config: str
    policies: tuple[str, ...]
    state: str = ""
    package: str = "serving_gym"
    choices: Mapping[str, str] = field(default_factory=dict)

    def absolute(self, target: str) -> str:
        """A `module:attribute` of this entry as it can be imported."""
        return f"{self.package}.{target}" if self.package else target


ENVS = {
    "autoscaling": EnvEntry(
        "Serving/Autoscaling-v0",
        "envs.autoscaling.env:AutoscalingEnv",
        "envs.autoscaling.vector_env:AutoscalingVectorEnv",
        "envs.autoscaling.config:AutoscalingConfig",
        (
            "fixed_instances",
            "hpa_waiting",
            "hpa_kv",
            "kpa",
            "llm_d_saturation",
            "sageserve_reactive",
            "sageserve",
            "clairvoyant_scaling",
        ),
        "AutoscalingState",
    ),
    "deployment": EnvEntry(
        "Serving/Deployment-v0",
        "envs.deployment.env:DeploymentEnv",
        "envs.deployment.vector_env:DeploymentVectorEnv",
        "envs.deployment.config:DeploymentConfig",
        (
            "vllm_static",
            "vllm_reload",
            "vllm_reload_ad_hoc",
            "llumnix_deployment",
            "dynamo",
            "dynamo_tuned",
            "dynamo_two_widths_tuned",
            "oserve",
            "oserve_tuned",
            "clairvoyant_deployment",
        ),
        "DeploymentState",
    ),
    "dp_tp": EnvEntry(
        "Serving/DPTP-v0",
        "envs.dp_tp.env:DPTPEnv",
        "envs.dp_tp.vector_env:DPTPVectorEnv",
        "envs.dp_tp.episode:DPTPConfig",
        ("static_dp", "static_tp", "static_2x4", "flying_serving", "load_threshold"),
        "ClusterState",
    ),
    "routing": EnvEntry(
        "Serving/Routing-v0",
        "envs.routing.env:RoutingEnv",
        "envs.routing.vector_env:RoutingVectorEnv",
        "envs.routing.config:RoutingConfig",
        (
            "round_robin",
            "least_request",
            "power_of_two",
            "jsq",
            "llm_d_tuned",
            "predicted_latency_most",
            "preserve",
            "llumnix",
            "sia",
            "linear_score_tuned",
        ),
        "RoutingState",
    ),
    "sharing": EnvEntry(
        "Serving/Sharing-v0",
        "envs.sharing.env:SharingEnv",
        "envs.sharing.vector_env:SharingVectorEnv",
        "envs.sharing.config:SharingConfig",
        ("random", "first_fit", "place_score", "keep_warm", "sllm", "sllm_cpu", "llm_mesh"),
        "SharingState",
    ),
}


def register_envs() -> None:
    """Makes every environment known to Gymnasium, those of installed packages (`serving_gym.environments`) too."""
    for entry in ENVS.values():
        _register_with_gymnasium(entry)
    for point in entry_points(group=GROUP):
        try:
            point.load()()
        except Exception as error:  # noqa: BLE001 -- a broken package must not take the environments of others along
            warnings.warn(f"entry point {point.name!r} of {GROUP} failed: {error}", stacklevel=2)


def register(name: str, entry: EnvEntry) -> None:
    """Adds an environment from outside, for commands (`env=NAME`) and for Gymnasium.

    Args:
        name: What commands call it.
        entry: What it is, with `package=""`.

    Raises:
        ValueError: There is another one of this name.
    """
    if ENVS.get(name, entry) != entry:
        raise ValueError(f"there is an environment {name!r} already")
    ENVS[name] = entry
    _register_with_gymnasium(entry)


def _register_with_gymnasium(entry: EnvEntry) -> None:
    if entry.env_id not in gym.registry:
        gym.register(
            entry.env_id,
            entry_point=entry.absolute(entry.entry_point),
            vector_entry_point=entry.absolute(entry.vector_entry_point),
        )


def env_names() -> tuple[str, ...]:
    """Names that `make_env` knows."""
    return tuple(ENVS)


def env_config_class(name: str) -> type:
    """The dataclass whose fields are the arguments of an environment.

    Raises:
        ValueError: the name is unknown.
    """
    entry = _entry(name)
    module, _, attribute = entry.absolute(entry.config).partition(":")
    config_class: type = getattr(importlib.import_module(module), attribute)
    return config_class


def env_choices(name: str) -> Mapping[str, str]:
    """What commands choose of other config groups with an environment that has no file in `configs/env`.

    Raises:
        ValueError: the name is unknown.
    """
    return _entry(name).choices


def usual_policies(name: str) -> tuple[str, ...]:
    """Policies that one compares with in an environment.

    Raises:
        ValueError: the name is unknown.
    """
    return _entry(name).policies


def _entry(name: str) -> EnvEntry:
    if name not in ENVS:
        near = difflib.get_close_matches(name, ENVS, n=1, cutoff=0.0)
        raise ValueError(f"unknown env {name!r}; did you mean {near[0]!r}? known: {', '.join(ENVS)}")
    return ENVS[name]


def make_env(name: str, **config: Any) -> gym.Env[Any, Any]:
    """A scalar environment, without Gymnasium's checking wrappers.

    Raises:
        ValueError: the name or something in the config is unknown.
    """
    return gym.make(_entry(name).env_id, disable_env_checker=True, **config).unwrapped


def make_vector_env(name: str, num_envs: int, **config: Any) -> VectorEnv[Any, Any, Any]:
    """A batched environment that runs natively in this process.

    Raises:
        ValueError: the name or something in the config is unknown.
    """
    return gym.make_vec(
        _entry(name).env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **config
    )
