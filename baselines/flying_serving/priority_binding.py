"""Use case 2 of Flying Serving (sections 2.3, 3 and 5.2.3): a group for requests of high priority.

A high-priority request binds a subset of the engines at once, the rest stay in DP; with no such request left the
engines are released. Source: ours: the subset's size and choice; that subsets take turns when DP requests have been
paused for long; and, switched off unless asked for, that no subset is bound under heavy load, or while priority
requests are being served in DP, which hard preempt would pause too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from serving_gym.baselines.common.signals import in_flight_by_class, without_first_token
from serving_gym.baselines.flying_serving.binding import choose_group
from serving_gym.baselines.flying_serving.config import FlyingServingConfig
from serving_gym.baselines.flying_serving.pauses import PauseWatch
from serving_gym.envs.interface.layout import Group
from serving_gym.envs.interface.state import ClusterState


class PriorityBinding:
    """Keeps a group while requests of high priority are in the system.

    Args:
        config: Constants.
        num_base: Base engines of the node.
        classes: Names of the request classes.
        pauses: Paused requests.
    """

    def __init__(
        self, config: FlyingServingConfig, num_base: int, classes: Sequence[str], pauses: PauseWatch
    ) -> None:
        self._config, self._num_base, self._pauses = config, num_base, pauses
        self._rows = [i for i, name in enumerate(classes) if name in config.priority_classes]
        share = num_base * config.priority_share
        self.length = min(num_base, max(min(2, num_base), 2 ** round(math.log2(share))))
        self.group: Group | None = None
        self._needed_s = -math.inf

    def pending(self, state: ClusterState) -> bool:
        """Whether requests of high priority are in the system."""
        return bool(self._rows) and bool(in_flight_by_class(state)[self._rows].sum() > 0)

    def only_waiting(self, state: ClusterState) -> bool:
        """Whether requests of high priority are in the system and none of them has its first token."""
        waiting = without_first_token(state)[self._rows].sum()
        return self.pending(state) and bool(waiting >= in_flight_by_class(state)[self._rows].sum())

    def update(
        self, state: ClusterState, load: float, load_length: int, avoid: Sequence[Group] = ()
    ) -> Group | None:
        """The group to keep bound now, if any.

        Args:
            state: The cluster.
            load: Load over the split thresholds.
            load_length: Length of the groups that the load calls for; if these are as wide, no other is needed.
            avoid: Groups that are bound for something else.
        """
        if not self._config.bind_for_priority:
            return None
        if self.pending(state):
            self._needed_s = state.now_s
        needed = state.now_s - self._needed_s <= self._config.priority_linger_s
        limited = self._config.limit_priority_by_load and load > self._config.priority_load_limit
        if not needed or load_length >= self.length or limited:
            self.group = None
        elif self.group is None:
            if self.pending(state) and (not self._config.priority_only_waiting or self.only_waiting(state)):
                self.group = choose_group(state, self.length, self._num_base, avoid)
        elif self._pauses.overdue(self.group):
            others = [*avoid, self.group]
            turn = choose_group(state, self.length, self._num_base, others, allow_avoided=False)
            self.group = turn or self.group
        return self.group
