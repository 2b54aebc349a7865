"""Attaches environments to live servers, and launches servers on this machine if requested."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym

from serving_gym.envs.autoscaling.live.env import LiveAutoscalingEnv
from serving_gym.envs.autoscaling.live.fleet import ScaledFleet
from serving_gym.envs.deployment.live.env import LiveDeploymentEnv, check_divided
from serving_gym.envs.deployment.live.fleet import DividedFleet
from serving_gym.envs.deployment.live.platform import Platform
from serving_gym.envs.dp_tp.live.env import LiveDPTPEnv
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.sharing import SharedModel
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.live.backend import LiveBackend
from serving_gym.envs.live.expansion import expand_endpoints
from serving_gym.envs.live.launch_settings import LaunchSettings
from serving_gym.envs.live.launcher import LocalServer, ending_on_signals
from serving_gym.envs.live.settings import lower_limit
from serving_gym.envs.live.supervision import LocalServers
from serving_gym.envs.live.tiny_model import LONGEST
from serving_gym.envs.live.transitions import Slot
from serving_gym.envs.machines.cluster import Deployment
from serving_gym.envs.machines.shared_nodes import SharingSpec
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.registration import env_config_class
from serving_gym.envs.routing.live.env import LiveRoutingEnv
from serving_gym.envs.sharing.episode import SharingEpisode
from serving_gym.envs.sharing.live.env import LiveSharingEnv
from serving_gym.envs.sharing.live.fleet import SharedFleet
from serving_gym.envs.simulator.sharing.build import size_of
from serving_gym.runners.configuration.schema import LIVE_BACKENDS, BackendConfig, RunConfig
from serving_gym.runners.live.launching import (
    common_settings,
    fleet_launch_settings,
    launch_settings,
    slots_of,
)
from serving_gym.runners.live.settings_in_use import check_used
from serving_gym.runners.live.switching import switching_env

LiveEnv = LiveRoutingEnv | LiveDPTPEnv | LiveAutoscalingEnv | LiveDeploymentEnv | LiveSharingEnv
_PACKAGES = ("aiohttp", "prometheus_client")


@contextlib.contextmanager
def live_backend(
    config: BackendConfig, cluster: ClusterSpec, slos: tuple[SLO, ...], folder: Path
) -> Iterator[LiveBackend]:
    """The live backend of a command; launched servers are stopped at the end of the block.

    Each endpoint is one base engine of the cluster.

    Args:
        config: the `backend` group.
        cluster: the `cluster` group.
        slos: SLO of each request class.
        folder: folder for a launched server's model and log.

    Raises:
        ValueError: a package is missing, a server cannot be started, or does not answer as vLLM does.
    """
    check_installed()
    check_used(config, "")
    with ending_on_signals(), contextlib.ExitStack() as stack:
        launched = None
        if config.launch:
            launched = stack.enter_context(LocalServers([launch_settings(config, cluster)], folder))
        endpoints = expanded(config) if launched is None else launched.urls
        spec = replace(cluster, num_gpus=len(endpoints) * cluster.base_width, max_group=1)
        backend = LiveBackend(spec, slos, replace(config, endpoints=endpoints, launch=False))
        stack.enter_context(backend)
        if launched is not None:
            backend.attend_to(launched)
        yield backend


@contextlib.contextmanager
def configured_env(config: RunConfig, folder: Path) -> Iterator[gym.Env[Any, Any]]:
    """The scalar environment of a command, on its backend; launched servers are stopped at the end.

    Args:
        config: the command's configuration.
        folder: folder for launched servers' models and logs.

    Raises:
        ValueError: as of the environment, or of `live_backend`.
    """
    if config.backend.name not in LIVE_BACKENDS:
        yield config.environment.make()
        return
    with live_env(config, folder) as (env, _):
        yield env


@contextlib.contextmanager
def live_env(config: RunConfig, folder: Path) -> Iterator[tuple[LiveEnv, LocalServers | None]]:
    """The environment on live servers, and the servers of a fleet that was launched for it."""
    check_installed()
    check_used(config.backend, config.env["name"])
    if config.env["name"] == "dp_tp":
        with switching_env(config, folder) as node:
            yield node, None
        return
    if config.env["name"] in _LAUNCHING:
        with _LAUNCHING[config.env["name"]](config, folder) as env_of_slots:
            yield env_of_slots, None
        return
    arguments, backend = config.environment.arguments, config.backend
    with ending_on_signals(), contextlib.ExitStack() as stack:
        launched = None
        if backend.launch:
            settings = fleet_launch_settings(backend, arguments["cluster"])
            launched = stack.enter_context(LocalServers(settings, folder))
        endpoints = expanded(backend) if launched is None else launched.urls
        env = LiveRoutingEnv(replace(backend, endpoints=endpoints, launch=False), **arguments)
        stack.callback(env.close)
        if launched is not None:
            env.fleet.attend_to(launched)
        yield env, launched


@contextlib.contextmanager
def _scaled_env(config: RunConfig, folder: Path) -> Iterator[LiveAutoscalingEnv]:
    """The autoscaling environment on slots of this machine; all servers are stopped at the end.

    Raises:
        ValueError: endpoints of other servers are given, or there are not as many slots as places.
    """
    arguments, backend = _launching_arguments(config)
    cluster = arguments["cluster"]
    with ending_on_signals(), contextlib.ExitStack() as stack:
        settings = fleet_launch_settings(backend, cluster)
        limits = [each.max_num_seqs for each in settings]
        slots = _slots(settings, backend, folder)
        fleet = stack.enter_context(ScaledFleet(slots, limits, cluster.order, backend, backend.envelope))
        yield LiveAutoscalingEnv(fleet, backend.control_within_s, **arguments)


@contextlib.contextmanager
def _divided_env(config: RunConfig, folder: Path) -> Iterator[LiveDeploymentEnv]:
    """The deployment environment on GPUs or cores of this machine; all servers are stopped at the end.

    Raises:
        ValueError: endpoints of other servers are given, or there are not as many ranks as GPUs.
    """
    arguments, backend = _launching_arguments(config)
    cluster: DeploymentSpec = arguments["cluster"]
    check_divided(cluster)
    platform = Platform(_replica_settings(backend, cluster), slots_of(backend, [1] * cluster.num_gpus))
    most = 2 * cluster.num_gpus
    with ending_on_signals(), contextlib.ExitStack() as stack:
        fleet = stack.enter_context(
            DividedFleet(
                _slots([platform.base] * most, backend, folder, in_turn=False),
                platform,
                Deployment(cluster.cluster),
                cluster.max_num_seqs,
                cluster.order,
                backend,
                backend.envelope,
            )
        )
        yield LiveDeploymentEnv(fleet, backend.control_within_s, **arguments)


@contextlib.contextmanager
def _shared_env(config: RunConfig, folder: Path) -> Iterator[LiveSharingEnv]:
    """The sharing environment on GPUs or cores of this machine; all servers are stopped at the end.

    Raises:
        ValueError: endpoints of other servers are given, or there are not as many slots as nodes.
    """
    arguments, backend = _launching_arguments(config)
    cluster: SharingSpec = arguments["cluster"]
    nodes = slots_of(backend, [1] * cluster.num_nodes)

    def settings_of(model: SharedModel, node: int) -> LaunchSettings:
        return replace(
            common_settings(backend),
            slot=nodes[node],
            model=_folder_of(backend.serves, model.name),
            max_model_len=lower_limit(backend.max_model_len, model.max_tokens) or LONGEST,
            memory_utilization=cluster.memory_utilization,
            block_size=cluster.block_tokens,
            max_num_seqs=cluster.max_num_seqs,
        )

    def make_fleet(episode: SharingEpisode) -> SharedFleet:
        setting, manager = episode.setting, episode.config.manager
        widest = max(setting.models, key=lambda model: model.max_tokens)
        empty = [settings_of(widest, i // setting.slots_per_node) for i in range(setting.num_slots)]
        slots = _slots(empty, backend, folder)
        fleet = SharedFleet(slots, setting, settings_of, manager, "fcfs", backend, backend.envelope)
        stack.callback(fleet.close)
        return fleet

    with ending_on_signals(), contextlib.ExitStack() as stack:
        yield LiveSharingEnv(make_fleet, backend.control_within_s, **arguments)


def _folder_of(serves: str | None, model: str) -> str | None:
    """Folder with a model's config.json: `serves/ARCHITECTURE` if it exists, else `serves` for all."""
    if serves is None:
        return None
    own = Path(serves) / size_of(model)
    return str(own) if own.is_dir() else serves


def _replica_settings(config: BackendConfig, cluster: DeploymentSpec) -> LaunchSettings:
    """Launch settings of a replica on one GPU."""
    settings = replace(
        common_settings(config),
        max_model_len=lower_limit(config.max_model_len, cluster.max_model_len) or LONGEST,
        memory_utilization=cluster.memory_utilization,
        block_size=cluster.block_size,
        max_num_seqs=cluster.max_num_seqs,
        max_num_batched_tokens=cluster.max_num_batched_tokens,
        order=cluster.order,
    )
    return settings if cluster.kv_blocks is None else replace(settings, kv_blocks=cluster.kv_blocks)


def _launching_arguments(config: RunConfig) -> tuple[dict[str, Any], BackendConfig]:
    """Arguments of an environment that starts and stops servers itself, and its backend.

    Raises:
        ValueError: endpoints of other servers are given, `speed` is not 1, or as of the environment.
    """
    name, backend = config.env["name"], config.backend
    if not backend.launch:
        raise ValueError(f"env={name} starts and stops servers itself: backend.launch must be true")
    if backend.speed != 1:
        raise ValueError(f"backend.speed must be 1 with env={name}, got {backend.speed}")
    arguments = config.environment.arguments
    env_config_class(name)(**arguments)  # checks the settings before any server starts
    return arguments, backend


def _slots(
    settings: Sequence[LaunchSettings], backend: BackendConfig, folder: Path, in_turn: bool = True
) -> list[Slot]:
    """Server slots, all stopped.

    Args:
        settings: Launch settings of each.
        backend: The `backend` group.
        folder: Folder for models and logs, with a subfolder for each slot.
        in_turn: Whether servers on the same GPUs or cores start one after another.
    """
    gates: dict[Any, threading.Lock] = defaultdict(threading.Lock)
    return [
        Slot(
            LocalServer(each, folder / str(n)),
            lambda: 0,
            backend.deadlines,
            gate=gates[each.slot if in_turn else n],
        )
        for n, each in enumerate(settings)
    ]


_LAUNCHING: dict[str, Callable[[RunConfig, Path], contextlib.AbstractContextManager[LiveEnv]]] = {
    "autoscaling": _scaled_env,
    "deployment": _divided_env,
    "sharing": _shared_env,
}


def expanded(config: BackendConfig) -> tuple[str, ...]:
    """The endpoints, one for each server (`expand_endpoints`)."""
    return expand_endpoints(config.endpoints, config.allow_remote)


def check_installed() -> None:
    """Raises ValueError if packages of the live backend are missing."""
    from importlib.util import find_spec

    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ValueError(f"backend=vllm needs the package {missing[0]!r}: pip install 'serving-gym[live]'")
