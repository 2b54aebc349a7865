"""Environments by name, and under their Gymnasium ids."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import entry_points
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from serving_gym.calibration.lookup import check_choice, load_attribute

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
        roles: Roles of policies in a comparison: "static", "plain", "tuned" or "random"; of those whose name does not
            say it.
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
    roles: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)

    def load(self, target: str) -> Any:
        """What a `module:class` of this entry stands for."""
        return load_attribute(target, self.package)


ENVS = {
    "autoscaling": EnvEntry(
        "Serving/Autoscaling-v1",
        "envs.autoscaling.env:AutoscalingEnv",
        "envs.autoscaling.vector_env:AutoscalingVectorEnv",
        "envs.autoscaling.config:AutoscalingConfig",
        (
            "fixed_instances",
            "hpa_waiting",
            "hpa_kv",
            "kpa",
            "llm_d_saturation",
            "hpa_rate_tuned",
            "sageserve_reactive",
            "sageserve",
            "clairvoyant_scaling",
        ),
        "AutoscalingState",
        roles={"fixed_instances": "static"},
    ),
    "deployment": EnvEntry(
        "Serving/Deployment-v1",
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
        roles={"vllm_static": "static"},
    ),
    "dp_tp": EnvEntry(
        "Serving/DPTP-v1",
        "envs.dp_tp.env:DPTPEnv",
        "envs.dp_tp.vector_env:DPTPVectorEnv",
        "envs.dp_tp.config:DPTPConfig",
        (
            "random",
            "static_dp",
            "static_4x2",
            "static_2x4",
            "static_tp",
            "flying_serving",
            "flying_serving_two_widths_default_tuned",
            "load_threshold_two_layouts_default_tuned",
            "rate_threshold_two_layouts_default_tuned",
            "prompt_threshold_default_tuned",
            "prompt_threshold_wide_for_long_default_tuned",
        ),
        "ClusterState",
    ),
    "routing": EnvEntry(
        "Serving/Routing-v1",
        "envs.routing.env:RoutingEnv",
        "envs.routing.vector_env:RoutingVectorEnv",
        "envs.routing.config:RoutingConfig",
        (
            "random",
            "round_robin",
            "least_request",
            "power_of_two",
            "jsq",
            "llm_d",
            "llm_d_legacy_tuned",
            "predicted_latency_profile_most",
            "preserve",
            "llumnix",
            "sia",
            "linear_score_tuned",
        ),
        "RoutingState",
    ),
    "sharing": EnvEntry(
        "Serving/Sharing-v1",
        "envs.sharing.env:SharingEnv",
        "envs.sharing.vector_env:SharingVectorEnv",
        "envs.sharing.config:SharingConfig",
        ("random", "first_fit", "place_score", "keep_warm", "sllm", "sllm_cpu", "llm_mesh"),
        "SharingState",
    ),
}


# What Gymnasium calls: composes the configuration that `env=NAME` has on the command line, and makes the environment.
_MAKE = "serving_gym.runners.configuration.make:make_env"
_MAKE_VECTOR = "serving_gym.runners.configuration.make:make_vector_env"


def register_envs() -> None:
    """Makes every environment known to Gymnasium, those of installed packages (`serving_gym.environments`) too."""
    for name, entry in ENVS.items():
        _register_with_gymnasium(name, entry)
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
    _register_with_gymnasium(name, entry)


def _register_with_gymnasium(name: str, entry: EnvEntry) -> None:
    if entry.env_id not in gym.registry:
        gym.register(entry.env_id, entry_point=_MAKE, vector_entry_point=_MAKE_VECTOR, kwargs={"env": name})


@dataclass(frozen=True)
class Environment:
    """An environment with all its settings.

    Attributes:
        name: As in `ENVS`.
        settings: The environment's own dataclass, typed and complete.
    """

    name: str
    settings: Any

    @classmethod
    def of(cls, name: str, arguments: Mapping[str, Any]) -> Environment:
        """The environment of that name with typed settings.

        Raises:
            ValueError: The name or a setting is unknown or not allowed.
        """
        return cls(name, env_config_class(name)(**arguments))

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
            num_envs: Number of episodes.
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
    entry = _entry(name)
    config_class: type = entry.load(entry.config)
    return config_class


def env_choices(name: str) -> Mapping[str, str]:
    """What commands choose of other config groups with an environment that has no file in `configs/env`.

    Raises:
        ValueError: The name is unknown.
    """
    return _entry(name).choices


def usual_policies(name: str) -> tuple[str, ...]:
    """Policies that one compares with in an environment.

    Raises:
        ValueError: The name is unknown.
    """
    return _entry(name).policies


def env_metadata(name: str) -> dict[str, Any]:
    """`metadata` of the scalar environment's class."""
    entry = _entry(name)
    metadata: dict[str, Any] = entry.load(entry.entry_point).metadata
    return metadata


def policy_roles(name: str) -> Mapping[str, str]:
    """Roles of usual policies in a comparison: "static", "plain", "tuned" or "random".

    A policy without an entry has the role that its name and its own attributes imply.

    Raises:
        ValueError: the name is unknown.
    """
    return _entry(name).roles


def _entry(name: str) -> EnvEntry:
    check_choice("env", name, ENVS)
    return ENVS[name]


def make_env(name: str, **arguments: Any) -> gym.Env[Any, Any]:
    """A scalar environment from typed settings, without wrappers.

    Args:
        name: As in `ENVS`.
        arguments: Fields of its settings; `workload` and `cluster` have no defaults here, `gymnasium.make` knows them.

    Raises:
        ValueError: The name or a setting is unknown or not allowed.
    """
    entry = _entry(name)
    env: gym.Env[Any, Any] = entry.load(entry.entry_point)(**arguments)
    return env


def make_vector_env(name: str, num_envs: int, **arguments: Any) -> VectorEnv[Any, Any, Any]:
    """A vector environment that runs natively in this process, from typed settings.

    Raises:
        ValueError: The name or a setting is unknown or not allowed.
    """
    entry = _entry(name)
    env: VectorEnv[Any, Any, Any] = entry.load(entry.vector_entry_point)(num_envs=num_envs, **arguments)
    return env
