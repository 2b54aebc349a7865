"""What `cluster=NAME` may be: a node, or a fleet of replica groups with what will go wrong in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envs.backend import SLO, ClusterSpec
from envs.fleet import FleetConfig
from envs.simulator.fleet.simulator import FleetSimulator
from envs.simulator.simulator import Simulator
from runners.typed import build

# By the name that the files of `configs/cluster` give in their defaults.
CLUSTERS: dict[str, type] = {"node": ClusterSpec, "fleet": FleetConfig}


def cluster_of(
    values: Mapping[str, Any] | ClusterSpec | FleetConfig, router: str | None = None
) -> ClusterSpec | FleetConfig:
    """The cluster that a file of `configs/cluster` describes; one with groups is a fleet.

    Args:
        values: Its fields, or the cluster itself.
        router: Built-in router instead of its own.
    """
    cluster: ClusterSpec | FleetConfig
    if not isinstance(values, Mapping):
        cluster = values
    elif "groups" in values:
        cluster = build(FleetConfig, values, "cluster.")
    else:
        cluster = build(ClusterSpec, values, "cluster.")
    return cluster if router is None else replace(cluster, router=router)


def simulator_of(cluster: ClusterSpec | FleetConfig, slos: tuple[SLO, ...]) -> Simulator | FleetSimulator:
    """The simulator of a cluster."""
    if isinstance(cluster, FleetConfig):
        return FleetSimulator(cluster, slos)
    return Simulator(cluster, slos)


def check_unattended(cluster: ClusterSpec | FleetConfig) -> None:
    """Refuses a cluster in which requests would wait for a decision that nobody takes.

    Raises:
        ValueError: requests are held for a policy, or an endpoint has no replicas at the start.
    """
    if cluster.router == "hold":
        raise ValueError(
            "router=hold waits for a policy to send each request, and none decides here; try router=jsq"
        )
    groups = cluster.groups if isinstance(cluster, FleetConfig) else ()
    for model, region in dict.fromkeys((group.replica.model, group.region) for group in groups):
        members = [group for group in groups if (group.replica.model, group.region) == (model, region)]
        wanted = {group.replica.role for group in members}
        roles = {group.replica.role for group in members if group.count}
        if "mixed" not in roles and len(roles) < max(len(wanted), 1):
            raise ValueError(
                f"cluster.groups: {model} in {region} lacks replicas at the start, and none starts later; raise count"
            )


def num_engines(simulator: Simulator | FleetSimulator) -> int:
    """Engines of a node, or places of a fleet."""
    if isinstance(simulator, FleetSimulator):
        return len(simulator.fleet.places)
    return len(simulator.observe().layout)
