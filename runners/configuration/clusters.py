"""Types of `cluster=NAME`: a node, a fleet with its faults, machines to divide into replicas, or shared nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetConfig
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.machines.shared_nodes import SharingSpec
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.configuration.typed import build

# By the schema name in the defaults of the files of `configs/cluster`.
CLUSTERS: dict[str, type] = {
    "node": ClusterSpec,
    "fleet": FleetConfig,
    "deployment": DeploymentSpec,
    "sharing": SharingSpec,
}
Cluster = ClusterSpec | FleetConfig | DeploymentSpec | SharingSpec


def cluster_of(values: Mapping[str, Any] | Cluster, router: str | None = None) -> Cluster:
    """Builds the cluster of a file of `configs/cluster`.

    A cluster with groups is a fleet, one with machines is divided into replicas, one with nodes is shared.

    Args:
        values: Its fields, or the cluster itself.
        router: Built-in router that replaces the cluster's.
    """
    cluster: Cluster
    if not isinstance(values, Mapping):
        cluster = values
    elif "num_machines" in values:
        cluster = build(DeploymentSpec, values, "cluster.")
    elif "nodes" in values:
        cluster = build(SharingSpec, values, "cluster.")
    elif "groups" in values:
        cluster = build(FleetConfig, values, "cluster.")
    else:
        cluster = build(ClusterSpec, values, "cluster.")
    if router is None or isinstance(cluster, (DeploymentSpec, SharingSpec)):
        return cluster
    return replace(cluster, router=router)


def simulator_of(cluster: ClusterSpec | FleetConfig, slos: tuple[SLO, ...]) -> Simulator | FleetSimulator:
    """The simulator of a cluster."""
    if isinstance(cluster, FleetConfig):
        return FleetSimulator(cluster, slos)
    return Simulator(cluster, slos)


def check_unattended(cluster: ClusterSpec | FleetConfig, workload: Workload) -> None:
    """Checks that a cluster can serve without a policy.

    Raises:
        ValueError: requests are held for a policy, or come from a region that has no place for their model, or an
            endpoint has no replicas at the start.
    """
    if cluster.router == "hold":
        raise ValueError(
            "router=hold waits for a policy to send each request, and this command runs none; try router=jsq"
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
    if isinstance(cluster, FleetConfig):
        _check_served_at_home(cluster, workload)


def _check_served_at_home(fleet: FleetConfig, workload: Workload) -> None:
    """Raises ValueError if a region lacks replicas for a request: built-in routers stay within its region."""
    served = {(group.replica.model, group.region) for group in fleet.groups}
    for m, r in np.unique(np.stack([workload.model_id, workload.region_id], axis=1), axis=0):
        model, region = workload.models[m], workload.regions[r]
        at = {where for what, where in served if model in ("", what)}
        if at and region and region not in at:
            raise ValueError(
                f"workload {workload.name!r} has requests for {model or 'any model'} from {region}, where "
                "cluster.groups has no replicas for them; only a policy sends requests to other regions"
            )


def num_engines(simulator: Simulator | FleetSimulator) -> int:
    """Engines of a node, or replica slots of a fleet."""
    if isinstance(simulator, FleetSimulator):
        return len(simulator.fleet.places)
    return len(simulator.observe().layout)
