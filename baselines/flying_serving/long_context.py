"""Use case 3 of Flying Serving (sections 2.3 and 3): a group for a request that no single engine can hold.

The text binds engines until the request is "past the memory-critical phase". Source: ours: how that is seen. A request
is known to be long from its own size, if its arrival asked for the decision; else from the mean prompt of its class;
else from the pool, where it waits although engines take requests. A group is kept while requests of a long class are in
flight, or, without such a class, while it holds more than a base engine could. Where several long requests are queued,
their share of the prompt tokens to compute is the share of the node that is bound for them, in the narrowest groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from serving_gym.baselines.common.signals import (
    in_flight_by_class,
    mean_prompt_tokens,
    tokens_to_prefill,
    without_first_token,
)
from serving_gym.baselines.flying_serving.binding import choose_group, target_groups
from serving_gym.baselines.flying_serving.config import FlyingServingConfig
from serving_gym.calibration.memory import block_capacity_tokens
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.layout import Group, all_groups
from serving_gym.envs.interface.state import ClusterState, EngineStatus


class LongContextBinding:
    """Keeps the smallest groups that hold the longest request known to be in the system.

    Args:
        config: Constants.
        cluster: The cluster.
        classes: Names of the request classes.
    """

    def __init__(self, config: FlyingServingConfig, cluster: ClusterSpec, classes: Sequence[str]) -> None:
        self._config, self._cluster, self._num_base = config, cluster, cluster.num_base
        self._rows = [i for i, name in enumerate(classes) if name in config.long_classes]
        self.groups: tuple[Group, ...] = ()
        self.base_capacity_tokens = 0  # KV of a base engine
        self._longest_tokens = 0.0

    def tokens_to_prefill(self, state: ClusterState) -> float:
        """Prompt tokens of requests of long classes that wait for their first token; an estimate."""
        if not self._rows:
            return 0.0
        waiting = without_first_token(state)[self._rows]
        return float((waiting * mean_prompt_tokens(state)[self._rows]).sum())

    def requests(self, state: ClusterState) -> float:
        """Requests in flight of long classes that more engines would not serve sooner.

        Those that a base engine does not hold, by the class's mean prompt; none where several groups may be bound.
        """
        if not self._rows or self._config.long_groups == "many":
            return 0.0
        self._learn_capacity(state)
        too_long = mean_prompt_tokens(state)[self._rows] > self.base_capacity_tokens
        return float(in_flight_by_class(state)[self._rows][too_long].sum())

    def update(self, state: ClusterState, load_length: int, avoid: Sequence[Group] = ()) -> tuple[Group, ...]:
        """The groups to keep bound now.

        Args:
            state: The cluster.
            load_length: Length of the groups that the load calls for; if these hold the request, no other is needed.
            avoid: Groups that are bound for something else.
        """
        if not self._config.bind_for_long_context:
            return ()
        self._learn_capacity(state)
        length = self._length(self._needed_tokens(state))
        if length <= load_length:
            self.groups = ()
            return ()
        most = self._in_flight_count(state)
        groups = [group for group in self.groups if group.length >= length][:most]
        while len(groups) < self._wanted(state, length, most):
            group = choose_group(state, length, self._num_base, [*avoid, *groups], allow_avoided=not groups)
            if group is None:
                break
            groups.append(group)
        self.groups = tuple(groups)
        return self.groups

    def _in_flight_count(self, state: ClusterState) -> int:
        """Requests of long classes in flight, at least 1; 1 where one group is asked for or there is no such class."""
        if self._config.long_groups == "one" or not self._rows:
            return 1
        return max(1, int(in_flight_by_class(state)[self._rows].sum()))

    def _wanted(self, state: ClusterState, length: int, most: int) -> int:
        """Groups of a length for the share of long prompts in the tokens to compute."""
        share = self.tokens_to_prefill(state) / max(1.0, tokens_to_prefill(state))
        return max(1, min(most, round(min(1.0, share) * (self._num_base // length))))

    def _learn_capacity(self, state: ClusterState) -> None:
        active = state.active
        if len(active):
            lengths = active["width"] // self._cluster.base_width
            self.base_capacity_tokens = max(
                self.base_capacity_tokens, int((active["kv_capacity_tokens"] // lengths).max())
            )

    def _length(self, tokens: float) -> int:
        """Base engines of the smallest group that holds so many tokens; 0 where the whole node does not."""
        if tokens > self._num_base * self.base_capacity_tokens:
            return 0
        length, share_tokens = 1, self.base_capacity_tokens * self._config.long_capacity_ratio
        while length < self._num_base and length * share_tokens < tokens:
            length *= 2
        return length

    def _needed_tokens(self, state: ClusterState) -> float:
        sizes = [request.input_tokens + request.max_output_tokens for request in state.waiting]
        evidence = [float(size) for size in sizes if self._length(size) > 1]
        stuck = self._stuck_tokens(state)
        if not (evidence or stuck or self._in_flight(state)):
            self._longest_tokens = 0.0
            return 0.0
        known = max([self._longest_tokens, self._class_tokens(state), stuck, *evidence])
        self._longest_tokens = min(known, float(self._num_base * self.base_capacity_tokens))
        return self._longest_tokens

    def _class_tokens(self, state: ClusterState) -> float:
        """Mean prompt of the long classes, or 0 where none of their requests is in flight."""
        if not self._rows or not in_flight_by_class(state)[self._rows].sum() > 0:
            return 0.0
        return float(mean_prompt_tokens(state)[self._rows].max())

    def _in_flight(self, state: ClusterState) -> bool:
        """Whether a long request may still be in the system."""
        if self._rows:
            return bool(in_flight_by_class(state)[self._rows].sum() > 0)
        return any(self._holds_long(state, group) for group in self.groups)

    def _holds_long(self, state: ClusterState, group: Group) -> bool:
        if group not in target_groups(state) or any(t.region.overlaps(group) for t in state.transitions):
            return state.num_pooled > 0  # not bound yet: the request waits in the pool
        row = state.engines[all_groups(self._num_base).index(group)]
        block_tokens = block_capacity_tokens(self._cluster.block_size, group.length)
        held = int(row["kv_used_blocks"]) * block_tokens + int(row["pending_prefill_tokens"])
        return held > self.base_capacity_tokens * self._config.long_capacity_ratio

    def _stuck_tokens(self, state: ClusterState) -> float:
        """Least size of the longest pooled request, if requests wait there though engines take some; else 0."""
        taking = state.engines[state.engines["status"] == EngineStatus.ACTIVE]
        if state.num_pooled == 0 or self._cluster.router == "hold" or not len(taking):
            return 0.0
        mean = state.pooled_tokens / state.num_pooled
        return max(mean, float(taking["kv_capacity_tokens"].max()) + 1.0)
