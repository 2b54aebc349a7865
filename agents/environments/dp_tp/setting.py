"""Whether a node is one that a DP/TP policy was trained for."""

from __future__ import annotations

from gymnasium import spaces

from serving_gym.agents.environments.spaces import ActionSpace, entries
from serving_gym.envs.dp_tp.action import num_actions
from serving_gym.envs.interface.policy_spec import PolicySpec


def check_setting(name: str, observation: spaces.Dict, action: ActionSpace, spec: PolicySpec) -> None:
    """Refuses a cluster of another size than the one trained on.

    Raises:
        ValueError: says what differs.
    """
    rows = (observation["engines"].shape or (0,))[0]
    if spec.num_base != rows or num_actions(spec.num_base) != sum(entries(action)):
        raise ValueError(
            f"policy {name!r} was trained on a node of {rows} base engines ({sum(entries(action))} actions), "
            f"this one has {spec.num_base} ({num_actions(spec.num_base)} actions)"
        )
