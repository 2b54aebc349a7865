"""The DP/TP environment on a live server that switches, launched on this machine if requested."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from serving_gym.envs.dp_tp.live.env import LiveDPTPEnv
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.live.launcher import ending_on_signals
from serving_gym.envs.live.settings import lower_limit
from serving_gym.envs.live.supervision import LocalServers
from serving_gym.envs.live.switching.install import install
from serving_gym.envs.live.switching.launch import SwitchingLaunchSettings
from serving_gym.envs.live.switching.plugin.routing import ROUTERS
from serving_gym.envs.live.tiny_model import LONGEST
from serving_gym.runners.configuration.schema import BackendConfig, RunConfig
from serving_gym.runners.live.launching import common_settings, slots_of


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
        backend, launched = config.backend, None
        if backend.launch:
            settings = switching_launch_settings(backend, arguments["cluster"], folder)
            launched = stack.enter_context(LocalServers([settings], folder / "server"))
            backend = replace(backend, endpoints=launched.urls, launch=False)
        env = LiveDPTPEnv(backend, control_within_s=backend.control_within_s, **arguments)
        stack.callback(env.close)
        if launched is not None:
            env.core.backend.attend_to(launched)
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
    slots = slots_of(config, [1] * cluster.num_base)
    common = common_settings(config)
    settings = SwitchingLaunchSettings(
        **{entry.name: getattr(common, entry.name) for entry in fields(common)},
    )
    settings = replace(
        settings,
        slot=("|" if config.device == "cpu" else ",").join(slots),
        max_model_len=lower_limit(config.max_model_len, cluster.max_model_len) or LONGEST,
        memory_utilization=cluster.memory_utilization,
        block_size=cluster.block_size,
        max_num_seqs=cluster.max_num_seqs,
        max_num_batched_tokens=cluster.max_num_batched_tokens,
        order=cluster.order,
        ranks=cluster.num_base,
        router=cluster.router,
        site=str(install(folder / "site")),
    )
    blocks = cluster.kv_blocks_override
    return settings if blocks is None else replace(settings, kv_blocks=blocks)
