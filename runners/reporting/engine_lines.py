"""The first lines of a run on its engines: which profile gives their times, and how far it is expected to be off."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from serving_gym.calibration.describe import describe
from serving_gym.calibration.engines import Frontend
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetSpec, ReplicaSpec
from serving_gym.envs.machines.cluster import replica_spec
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.simulator import cluster as nodes
from serving_gym.envs.simulator.fleet.build import front_end_of, kv_tokens, profile_of
from serving_gym.runners.configuration.clusters import Cluster, cluster_of


def say_engines(cluster: Mapping[str, Any] | Cluster) -> None:
    """Prints a line for each kind of engine of a simulated cluster on stderr.

    Raises:
        ValueError: the cluster names something unknown, or a model does not fit its GPUs.
    """
    for line in dict.fromkeys(engine_lines(cluster_of(cluster))):
        print(line, file=sys.stderr, flush=True)


def engine_lines(cluster: Cluster) -> Iterator[str]:
    """A line for each kind of engine of a cluster."""
    if isinstance(cluster, ClusterSpec):
        profile, width = nodes.profile_of(cluster), cluster.base_width
        front_end = profile.frontends.get(width, Frontend())
        yield describe(profile, width) + _front_end(front_end, cluster.front_end)
    elif isinstance(cluster, FleetSpec):
        for group in cluster.groups:
            yield _replica_line(cluster.limited(group.replica), cluster.front_end)
    elif isinstance(cluster, DeploymentSpec):
        kinds = (replica_spec(kind, cluster.replica) for kind in cluster.kinds)
        narrowest = next((replica for replica in kinds if kv_tokens(replica) > 0), None)
        if narrowest is not None:
            yield _replica_line(narrowest, cluster.front_end)
    else:
        for node in cluster.nodes:
            times = "a roofline estimate" if node.is_cpu else cluster.engine or "the committed profile"
            yield f"engines on {node.count} x {node.hardware}: times by {times}, front_end={cluster.front_end}"


def _replica_line(replica: ReplicaSpec, front_end: str) -> str:
    return describe(profile_of(replica), replica.tp_size) + _front_end(front_end_of(replica), front_end)


def _front_end(front_end: Frontend, asked: str) -> str:
    """How much later than its engine a client sees a token."""
    if asked == "none":
        return "; front_end=none: clients see tokens as they are computed"
    if front_end == Frontend():
        return "; no front end is known: clients see tokens as they are computed"
    parts = [f"{1e3 * front_end.fixed_s:.1f} ms"]
    if front_end.token_s:
        parts.append(f"{1e6 * front_end.token_s:.1f} us a prompt token")
    if front_end.request_s:
        parts.append(f"{1e3 * front_end.request_s:.2f} ms a request that decodes beside")
    if front_end.pipeline_iterations:
        parts.append(f"{front_end.pipeline_iterations:g} iteration where it waits")
    return f"; clients see tokens later by {' + '.join(parts)}"
