"""The deployment action: one of the candidates, and the assignment of requests to its replicas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.deployment.assignment import Assignment, keep_apart, soonest
from serving_gym.envs.deployment.candidates import Candidate, is_divided
from serving_gym.envs.deployment.state import DeploymentSetting
from serving_gym.envs.machines.cluster import Deployment

FloatArray = NDArray[np.float64]


def action_mask(num_actions: int, candidates: Sequence[Candidate]) -> NDArray[np.bool_]:
    """(num_actions,), actions that have a candidate."""
    return np.arange(num_actions) < len(candidates)


def decode_action(action: int, candidates: Sequence[Candidate]) -> tuple[Candidate | None, str]:
    """The candidate of an action; None, and the reason, if there is none."""
    if not 0 <= action < len(candidates):
        return None, f"there is no candidate {action}; there are {len(candidates)} now"
    return candidates[action], ""


def assign_forecast(
    setting: DeploymentSetting, deployment: Deployment, forecast: FloatArray, apart: bool
) -> FloatArray:
    """(K, J), an assignment of the forecast to replicas; prefill and decode workers share evenly.

    Args:
        setting: What is known before an episode.
        deployment: The replicas.
        forecast: (J,), requests of each type that the next span may bring.
        apart: Whether it is the flow solution with types kept apart; else each type goes to all replicas in proportion
            to what they can do of it.
    """
    if is_divided(deployment.kinds):
        return np.ones((len(deployment.replicas), setting.num_types))
    of_replicas = [replica.kind for replica in deployment.replicas]
    capacity = np.array([setting.table.row(kind) for kind in of_replicas])
    if not apart:
        return capacity / np.maximum(capacity.sum(axis=0), np.finfo(float).tiny)
    kinds = sorted(deployment.kinds)
    counts = np.array([deployment.kinds[kind] for kind in kinds], np.float64)
    together = np.array([setting.table.row(kind) for kind in kinds]) * counts[:, None]
    able = np.where((together > 0).any(axis=0), forecast, 0.0)
    rows = [kinds.index(kind) for kind in of_replicas]
    requests = (soonest(together, able).requests / counts[:, None])[rows]
    return keep_apart(Assignment(requests, capacity, able), of_replicas, setting.order).routing()
