"""What a training begins with, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_STARTS = ("start", "heuristic", "baseline")  # settings of agents that name the policy of step 0
UNTRAINED = "an untrained network"


def start_name(agent: Mapping[str, Any]) -> str:
    """The policy of step 0.

    Args:
        agent: Settings of the agent.
    """
    for key in _STARTS:
        policy = agent.get(key)
        if policy is not None:
            return _label(policy)
    return UNTRAINED


def _label(policy: Any) -> str:
    """A policy of an agent's settings: its name, or where its checkpoint lies."""
    if not isinstance(policy, Mapping):
        return str(policy)
    return str(policy.get("path") or policy["name"])
