"""From the `backend` group and a cluster to what servers are launched with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetConfig, ReplicaSpec
from serving_gym.envs.live.launch_settings import LaunchSettings
from serving_gym.envs.live.settings import lower_limit
from serving_gym.envs.live.tiny_model import LONGEST
from serving_gym.envs.routing.live.fleet import places_of
from serving_gym.runners.configuration.schema import BackendConfig


def common_settings(config: BackendConfig) -> LaunchSettings:
    """What launch settings take from the `backend` group, whatever the environment."""
    return LaunchSettings(
        device=config.device,
        model=config.serves,
        sleep_mode=config.sleep_mode,
        log_iterations=config.log_iterations,
        python=config.python,
        hung_after_s=config.hung_after_s,
    )


def fleet_launch_settings(config: BackendConfig, fleet: FleetConfig) -> list[LaunchSettings]:
    """Launch settings of a server for each replica slot of a fleet.

    Raises:
        ValueError: the number of slots is not the number of replicas.
    """
    places = places_of(fleet)
    slots = slots_of(config, [group.replica.tp_size for group in places])
    return [
        _launch_settings(config, fleet, group.replica, slot)
        for group, slot in zip(places, slots, strict=True)
    ]


def slots_of(config: BackendConfig, widths: Sequence[int]) -> tuple[str, ...]:
    """A slot for each server: the ones in the configuration, or cores or GPUs in order.

    Args:
        config: the `backend` group.
        widths: ranks of each server, with a core or a GPU for each.

    Raises:
        ValueError: the number of slots is not the number of servers.
    """
    if config.slots:
        if len(config.slots) != len(widths):
            raise ValueError(
                f"backend.slots must name a slot for each of {len(widths)} servers, got {len(config.slots)}"
            )
        return config.slots
    ranks = iter(range(sum(widths)))
    if config.device != "cpu":
        return tuple(",".join(str(next(ranks)) for _ in range(width)) for width in widths)
    cores = os.cpu_count() or 1
    return tuple("|".join(str(next(ranks) % cores) for _ in range(width)) for width in widths)


def _launch_settings(
    config: BackendConfig, fleet: FleetConfig, replica: ReplicaSpec, slot: str
) -> LaunchSettings:
    settings = replace(
        common_settings(config),
        slot=slot,
        tp_size=replica.tp_size,
        max_model_len=lower_limit(config.max_model_len, fleet.limited(replica).max_model_len) or LONGEST,
        memory_utilization=replica.memory_utilization,
        block_size=replica.block_size,
        max_num_seqs=replica.max_num_seqs,
        max_num_batched_tokens=replica.max_num_batched_tokens,
        order=fleet.order,
        async_scheduling=fleet.async_scheduling,
    )
    _check_v1(fleet)
    return settings if replica.kv_blocks is None else replace(settings, kv_blocks=replica.kv_blocks)


def _check_v1(cluster: ClusterSpec | FleetConfig) -> None:
    """Raises ValueError if servers that are launched could not schedule as their cluster says."""
    if cluster.scheduler == "v0":
        raise ValueError("cluster.scheduler=v0 needs backend.launch=false: servers that are launched have V1")


def launch_settings(config: BackendConfig, cluster: ClusterSpec) -> LaunchSettings:
    """Launch settings of a server that is an engine of `cluster`."""
    _check_v1(cluster)
    settings = replace(
        common_settings(config),
        slot=slots_of(replace(config, slots=config.slots[:1]), [cluster.base_width])[0],
        tp_size=cluster.base_width,
        memory_utilization=cluster.memory_utilization,
        block_size=cluster.block_size,
        max_num_seqs=cluster.max_num_seqs,
        max_num_batched_tokens=cluster.max_num_batched_tokens,
        order=cluster.order,
        async_scheduling=cluster.async_scheduling,
    )
    longest = lower_limit(config.max_model_len, cluster.max_model_len)
    if longest is not None:
        settings = replace(settings, max_model_len=longest)
    blocks = cluster.kv_blocks_override
    return settings if blocks is None else replace(settings, kv_blocks=blocks)
