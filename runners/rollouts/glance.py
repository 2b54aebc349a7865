"""A few numbers on a cluster from the state of any environment, for the decisions log."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.autoscaling.state import AutoscalingState
from serving_gym.envs.deployment.state import DeploymentState
from serving_gym.envs.interface.state import ClusterState, EngineStatus
from serving_gym.envs.sharing.state import SharingState

EVERY_S = 1.0  # of an episode's time, between two entries of the log


def glance(state: Any) -> dict[str, Any]:
    """What a cluster is and does at a decision.

    Args:
        state: The state of any environment.

    Returns:
        `serving`: engines or instances in service; `starting`: those that start, where they can; `running` and
        `waiting`: requests in batches and in queues; `kv_usage_ratio`: share of the KV blocks in use; `layout`: what
        the cluster is divided into, where it can be divided. What an environment does not know is left out.
    """
    if isinstance(state, AutoscalingState):
        return {
            "serving": sum(len(each.running) for each in state.endpoints),
            "starting": sum(len(each.starting) for each in state.endpoints),
            "running": len(state.in_flight),
            "waiting": sum(each.num_held + each.niw_queued for each in state.endpoints),
        }
    if isinstance(state, SharingState):
        there = state.instances[state.instances["model"] >= 0]
        return {
            "serving": len(there),
            "running": int(there["num_running"].sum()),
            "waiting": int(there["num_waiting"].sum()) + state.num_held,
        }
    return _engines(state.engines) | _division(state)


def _engines(engines: NDArray[np.void]) -> dict[str, Any]:
    status = engines["status"]
    serves = engines[
        (status == EngineStatus.ACTIVE)
        | (status == EngineStatus.DRAINING)
        | (status == EngineStatus.SPECULATIVE)
    ]
    capacity = int(serves["kv_capacity_blocks"].sum())
    return {
        "serving": len(serves),
        "running": int(serves["num_running"].sum()),
        "waiting": int(serves["num_waiting"].sum()),
        "kv_usage_ratio": int(serves["kv_used_blocks"].sum()) / capacity if capacity else 0.0,
    }


def _division(state: Any) -> dict[str, Any]:
    if isinstance(state, ClusterState):
        return {"layout": _counted(f"TP{width}" for width in state.layout)}
    if isinstance(state, DeploymentState):
        return {"layout": _counted(str(replica.kind) for replica in state.deployment.replicas)}
    return {}


def _counted(parts: Any) -> str:
    """Parts with their number, as `2 x TP4 + 1 x TP8`."""
    return " + ".join(f"{count} x {part}" for part, count in sorted(Counter(parts).items()))
