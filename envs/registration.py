"""Environments by name, and under their Gymnasium ids."""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv


@dataclass(frozen=True)
class EnvEntry:
    """One environment."""

    env_id: str
    entry_point: str
    vector_entry_point: str
    config: str  # the dataclass of its arguments
    policies: tuple[str, ...]  # what one compares with, by name


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
        (
            "static_dp",
            "static_4x2",
            "static_2x4",
            "static_tp",
            "flying_serving",
            "flying_serving_default_tuned",
            "load_threshold_default_tuned",
            "rate_threshold_default_tuned",
            "prompt_threshold_default_tuned",
        ),
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


def register_envs() -> None:
    """Makes every environment known to Gymnasium."""
    for entry in ENVS.values():
        if entry.env_id not in gym.registry:
            gym.register(
                entry.env_id, entry_point=entry.entry_point, vector_entry_point=entry.vector_entry_point
            )


def env_names() -> tuple[str, ...]:
    """Names that `make_env` knows."""
    return tuple(ENVS)


def env_config_class(name: str) -> type:
    """The dataclass whose fields are the arguments of an environment.

    Raises:
        ValueError: the name is unknown.
    """
    module, _, attribute = _entry(name).config.partition(":")
    config_class: type = getattr(importlib.import_module(module), attribute)
    return config_class


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
