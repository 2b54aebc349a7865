"""Attaching to live servers, started on the spot where that is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym

from envs.backend import SLO, ClusterSpec
from envs.live.backend import LiveBackend
from envs.live.launch_settings import LaunchSettings
from envs.live.launcher import LocalServer, ending_on_sigterm
from runners.environments import make_configured_env
from runners.schema import LIVE_BACKENDS, BackendConfig, RunConfig
from runners.switching import switching_env

_PACKAGES = ("aiohttp", "prometheus_client")


@contextlib.contextmanager
def live_backend(
    config: BackendConfig, cluster: ClusterSpec, slos: tuple[SLO, ...], folder: Path
) -> Iterator[LiveBackend]:
    """The live body that a command asks for; what was started is stopped at the end of the block.

    The endpoints are the cluster: it has one base engine for each.

    Args:
        config: the `backend` group.
        cluster: the `cluster` group.
        slos: latency promise of each request class.
        folder: where a launched server's model and log go.

    Raises:
        ValueError: a package is missing, a server cannot be started, or does not answer as vLLM does.
    """
    check_installed()
    with ending_on_sigterm(), served(config, cluster, folder) as endpoints:
        spec = replace(cluster, num_gpus=len(endpoints) * cluster.base_width, max_group=1)
        with LiveBackend(spec, slos, replace(config, endpoints=endpoints, launch=False)) as backend:
            yield backend


@contextlib.contextmanager
def configured_env(config: RunConfig, folder: Path) -> Iterator[gym.Env[Any, Any]]:
    """The scalar environment that a command asks for, in the body that it asks for; what was started is stopped.

    Args:
        config: the command's words.
        folder: where launched servers' models and logs go.

    Raises:
        ValueError: as of the environment, or of `live_backend`.
    """
    if config.backend.name not in LIVE_BACKENDS:
        yield make_configured_env(config)
        return
    check_installed()
    with switching_env(config, folder) as env:
        yield env


@contextlib.contextmanager
def served(config: BackendConfig, cluster: ClusterSpec, folder: Path) -> Iterator[tuple[str, ...]]:
    """Addresses of the servers; a launched one has the cluster's scheduler settings."""
    if not config.launch:
        yield config.endpoints
        return
    with LocalServer(launch_settings(config, cluster), folder) as server:
        yield (server.url,)


def launch_settings(config: BackendConfig, cluster: ClusterSpec) -> LaunchSettings:
    """How to launch a server that is an engine of `cluster`."""
    settings = LaunchSettings(
        python=config.python,
        block_size=cluster.block_size,
        max_num_seqs=cluster.max_num_seqs,
        max_num_batched_tokens=cluster.max_num_batched_tokens,
        order=cluster.order,
    )
    blocks = cluster.kv_blocks_override
    return settings if blocks is None else replace(settings, kv_blocks=blocks)


def check_installed() -> None:
    """Raises ValueError where the packages of the live body are missing."""
    from importlib.util import find_spec

    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ValueError(f"backend=vllm needs the package {missing[0]!r}: pip install 'serving-gym[live]'")
