"""The DP/TP environment on a live server that switches, launched on this machine if requested."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from serving_gym.envs.dp_tp.live.env import LiveDPTPEnv
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.live.launcher import ending_on_signals
from serving_gym.envs.live.settings import lower_limit
from serving_gym.envs.live.switching.install import install
from serving_gym.envs.live.switching.launch import SwitchingLaunchSettings, switching_server
from serving_gym.envs.live.switching.plugin.routing import ROUTERS
from serving_gym.runners.configuration.schema import BackendConfig, RunConfig


@contextlib.contextmanager
def switching_env(config: RunConfig, folder: Path) -> Iterator[LiveDPTPEnv]:
    """The environment on the server of a command, or on one launched for it, which is stopped at the end.

    Args:
        config: the command's configuration.
        folder: folder for a launched server's model and log.

    Raises:
        ValueError: a server cannot be started, does not answer, or is not the cluster.
    """
    arguments = config.environment.arguments
    with ending_on_signals(), contextlib.ExitStack() as stack:
        backend = config.backend
        if backend.launch:
            settings = switching_launch_settings(backend, arguments["cluster"], folder)
            server = stack.enter_context(switching_server(settings, folder / "server"))
            backend = replace(backend, endpoints=(server.url,), launch=False)
        env = LiveDPTPEnv(backend, **arguments)
        stack.callback(env.close)
        yield env


def switching_launch_settings(
    config: BackendConfig, cluster: ClusterSpec, folder: Path
) -> SwitchingLaunchSettings:
    """Launch settings of the server whose ranks are the base engines of `cluster`.

    Raises:
        ValueError: the plugin does not have the cluster's router.
    """
    if cluster.router not in ROUTERS:
        raise ValueError(
            f"cluster.router must be one of {', '.join(ROUTERS)} on a server that switches, got {cluster.router!r}"
        )
    settings = SwitchingLaunchSettings(
        python=config.python,
        block_size=cluster.block_size,
        max_num_seqs=cluster.max_num_seqs,
        max_num_batched_tokens=cluster.max_num_batched_tokens,
        order=cluster.order,
        ranks=cluster.num_base,
        router=cluster.router,
        site=str(install(folder / "site")),
    )
    longest = lower_limit(config.max_model_len, cluster.max_model_len)
    if longest is not None:
        settings = replace(settings, max_model_len=longest)
    blocks = cluster.kv_blocks_override
    return settings if blocks is None else replace(settings, kv_blocks=blocks)
