"""Requests that hard preempt has paused, and for how long (Flying Serving, section 5.2.3).

They go on only when their engines are released. Source: ours, where the text is silent: no request stays paused for
ever, neither under a steady stream of priority requests nor under a group that the load has called for.
"""

from __future__ import annotations

from serving_gym.envs.interface.layout import Group, all_groups
from serving_gym.envs.interface.state import ClusterState, EngineStatus


class PauseWatch:
    """Knows which engines hold paused requests.

    Args:
        num_base: Base engines of the node.
        max_pause_s: How long requests may stand paused, seconds.
    """

    def __init__(self, num_base: int, max_pause_s: float) -> None:
        self._groups, self._max_pause_s = all_groups(num_base), max_pause_s
        self._since_s: dict[Group, float] = {}
        self._now_s = 0.0

    def update(self, state: ClusterState) -> None:
        """Looks at the engines."""
        self._now_s = state.now_s
        paused = (state.engines["status"] == EngineStatus.PAUSED) & (state.engines["num_running"] > 0)
        held = [group for group, stands in zip(self._groups, paused, strict=True) if stands]
        self._since_s = {group: self._since_s.get(group, state.now_s) for group in held}

    def under(self, group: Group) -> list[Group]:
        """Engines inside a group that hold paused requests."""
        return [held for held in self._since_s if group.contains(held)]

    def overdue(self, group: Group) -> bool:
        """Whether requests have been paused inside a group for longer than they may."""
        return any(self._now_s - self._since_s[held] > self._max_pause_s for held in self.under(group))

    def spare(self, groups: tuple[Group, ...], present: tuple[Group, ...]) -> tuple[Group, ...]:
        """Groups that the load calls for, split where they would trap paused requests.

        Args:
            groups: What the load calls for.
            present: What the node has or is heading for. These are kept until their paused requests are overdue.
        """
        result: list[Group] = []
        for group in groups:
            held = self.under(group)
            if not held or group in held or (group in present and not self.overdue(group)):
                result.append(group)
            else:
                length = max(other.length for other in held)
                last = group.first + group.length
                result.extend(Group(first, length) for first in range(group.first, last, length))
        return tuple(result)
