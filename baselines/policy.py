"""What every policy is, learned or not."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from envs.backend import ClusterState, Command
from envs.policy_spec import PolicySpec

__all__ = ["Action", "Policy", "PolicySpec", "Tunable"]

Action = (
    Command | int | None
)  # a command, an index of the environment's action space, or None: leave all as it is


class Policy(Protocol):
    """Decides, at each decision, what the cluster is told."""

    name: str
    clairvoyant: bool  # whether it looks at the future or at true output lengths

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Forgets everything and prepares for an episode in this setting."""
        ...

    def act(self, observation: Any, state: ClusterState) -> Action:
        """Decides."""
        ...


class Tunable(NamedTuple):
    """Range in which a tuner may search for a constant."""

    low: float
    high: float
    log: bool = False  # whether to search on a logarithmic scale
