"""Environments by name, and under their Gymnasium ids."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from serving_gym.calibration.lookup import load_attribute, nearest


@dataclass(frozen=True)
class EnvEntry:
    """One environment.

    Attributes:
        env_id: Its Gymnasium id.
        entry_point: The scalar environment, `module:Class` below `serving_gym`.
        vector_entry_point: The vector environment.
        config: The dataclass of its settings.
        policies: Names of the policies that one compares with.
    """

    env_id: str
    entry_point: str
    vector_entry_point: str
    config: str
    policies: tuple[str, ...]


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
    ),
    "dp_tp": EnvEntry(
        "Serving/DPTP-v0",
        "envs.dp_tp.env:DPTPEnv",
        "envs.dp_tp.vector_env:DPTPVectorEnv",
        "envs.dp_tp.episode:DPTPConfig",
        ("static_dp", "static_tp", "static_2x4", "flying_serving", "load_threshold"),
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
    ),
    "sharing": EnvEntry(
        "Serving/Sharing-v0",
        "envs.sharing.env:SharingEnv",
        "envs.sharing.vector_env:SharingVectorEnv",
        "envs.sharing.config:SharingConfig",
        ("random", "first_fit", "place_score", "keep_warm", "sllm", "sllm_cpu", "llm_mesh"),
    ),
}


# What Gymnasium calls: composes the configuration that `env=NAME` has on the command line, and makes the environment.
_MAKE = "serving_gym.runners.configuration.make:make_env"
_MAKE_VECTOR = "serving_gym.runners.configuration.make:make_vector_env"


def register_envs() -> None:
    """Makes every environment known to Gymnasium."""
    for name, entry in ENVS.items():
        if entry.env_id not in gym.registry:
            gym.register(
                entry.env_id, entry_point=_MAKE, vector_entry_point=_MAKE_VECTOR, kwargs={"env": name}
            )


@dataclass(frozen=True)
class Environment:
    """An environment with all its settings.

    Attributes:
        name: As in `ENVS`.
        settings: The environment's own dataclass, typed and complete.
    """

    name: str
    settings: Any

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the environment's classes: the fields of its settings."""
        return {entry.name: getattr(self.settings, entry.name) for entry in fields(self.settings)}

    def changed(self, **settings: Any) -> Environment:
        """The same environment with some settings changed."""
        return replace(self, settings=replace(self.settings, **settings))

    def make(self, **options: Any) -> gym.Env[Any, Any]:
        """The scalar environment, without wrappers.

        Args:
            options: What is no setting: `render_mode`.
        """
        return make_env(self.name, **self.arguments, **options)

    def make_vector(self, num_envs: int, **options: Any) -> VectorEnv[Any, Any, Any]:
        """The vector environment.

        Args:
            num_envs: Episodes side by side.
            options: What is no setting: `render_mode`, `autoreset_mode`.
        """
        return make_vector_env(self.name, num_envs, **self.arguments, **options)


def env_id(name: str) -> str:
    """Gymnasium id of an environment, by its name or by the id itself.

    Raises:
        ValueError: There is no such environment; names the nearest.
    """
    return name if name in [entry.env_id for entry in ENVS.values()] else _entry(name).env_id


def env_names() -> tuple[str, ...]:
    """Names that `make_env` knows."""
    return tuple(ENVS)


def env_config_class(name: str) -> type:
    """The dataclass whose fields are the settings of an environment.

    Raises:
        ValueError: The name is unknown.
    """
    config_class: type = load_attribute(_entry(name).config)
    return config_class


def usual_policies(name: str) -> tuple[str, ...]:
    """Policies that one compares with in an environment.

    Raises:
        ValueError: The name is unknown.
    """
    return _entry(name).policies


def env_metadata(name: str) -> dict[str, Any]:
    """`metadata` of the scalar environment's class."""
    metadata: dict[str, Any] = load_attribute(_entry(name).entry_point).metadata
    return metadata


def _entry(name: str) -> EnvEntry:
    if name not in ENVS:
        raise ValueError(f"unknown env {name!r}: {nearest(name, ENVS)}")
    return ENVS[name]


def make_env(name: str, **arguments: Any) -> gym.Env[Any, Any]:
    """A scalar environment from typed settings, without wrappers.

    Args:
        name: As in `ENVS`.
        arguments: Fields of its settings; `workload` and `cluster` have no defaults here, `gymnasium.make` knows them.

    Raises:
        ValueError: The name or a setting is unknown or not allowed.
    """
    env: gym.Env[Any, Any] = load_attribute(_entry(name).entry_point)(**arguments)
    return env


def make_vector_env(name: str, num_envs: int, **arguments: Any) -> VectorEnv[Any, Any, Any]:
    """A vector environment that runs natively in this process, from typed settings.

    Raises:
        ValueError: The name or a setting is unknown or not allowed.
    """
    env: VectorEnv[Any, Any, Any] = load_attribute(_entry(name).vector_entry_point)(
        num_envs=num_envs, **arguments
    )
    return env
