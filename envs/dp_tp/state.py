"""What a policy may know of a node: the simulator's and a live server's `ClusterState`, and what follows from it."""

from __future__ import annotations

from serving_gym.envs.interface.commands import SwitchMode
from serving_gym.envs.interface.layout import Group
from serving_gym.envs.interface.state import ClusterState

__all__ = ["ClusterState", "busy_regions", "can_hurry"]


def busy_regions(state: ClusterState) -> tuple[Group, ...]:
    """Regions of the node that are being reconfigured."""
    return tuple(transition.region for transition in state.transitions)


def can_hurry(state: ClusterState) -> bool:
    """Whether a reconfiguration still waits for stragglers, so that a hard switch would hasten it."""
    return any(
        transition.due_s is None and transition.mode in (SwitchMode.SEQUENTIAL, SwitchMode.SOFT)
        for transition in state.transitions
    )
