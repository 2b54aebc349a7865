"""Name of the policy that training starts from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_STARTS = ("start", "heuristic", "baseline")  # settings of agents that name the policy of step 0
UNTRAINED = "an untrained network"


def start_name(agent: Mapping[str, Any]) -> str:
    """Name of the policy of step 0.

    Args:
        agent: Settings of the agent.
    """
    for key in _STARTS:
        policy = agent.get(key)
        if policy is not None:
            return _label(policy)
    return UNTRAINED


def _label(policy: Any) -> str:
    """Name of a policy in an agent's settings, or the path of its checkpoint."""
    if not isinstance(policy, Mapping):
        return str(policy)
    return str(policy.get("path") or policy["name"])
