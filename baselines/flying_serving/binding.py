"""Which engines are bound: the one switching primitive of Flying Serving (section 3)."""

from __future__ import annotations

from collections.abc import Sequence

from serving_gym.baselines.common.layouts import requests_by_base
from serving_gym.envs.interface.layout import Group, all_groups, groups_of
from serving_gym.envs.interface.state import ClusterState


def choose_group(
    state: ClusterState, length: int, num_base: int, avoid: Sequence[Group] = (), allow_avoided: bool = True
) -> Group | None:
    """The group of a length that disturbs least.

    The text says "a subset of engines". Source: ours: first those clear of `avoid` and of transitions in flight, then
    the fewest requests on its base engines, then the leftmost.

    Args:
        state: The cluster.
        length: Base engines of the group.
        num_base: Base engines of the node.
        avoid: Groups to stay clear of if possible.
        allow_avoided: Whether a group that overlaps one of `avoid` may be chosen at all.
    """
    load = requests_by_base(state, num_base)
    busy = [transition.region for transition in state.transitions]

    def cost(group: Group) -> tuple[bool, bool, float, int]:
        return (
            any(group.overlaps(other) for other in avoid),
            any(group.overlaps(region) for region in busy),
            sum(load[member] for member in group.members),
            group.first,
        )

    candidates = [group for group in all_groups(num_base) if group.length == length]
    best = min(candidates, key=cost)
    return None if cost(best)[0] and not allow_avoided else best


def target_groups(state: ClusterState) -> tuple[Group, ...]:
    """Groups that the node has or is heading for."""
    return groups_of(state.target_layout)
