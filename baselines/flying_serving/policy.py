"""The policy layer of Flying Serving (sections 2.3, 3 and 5.2): the three use cases through one primitive.

Each decision binds or releases for one cause, the most urgent first: priority (hard preempt), long context (soft
preempt), release, load. Regions in transition are left alone until they are done. Departures from the text, where it
is silent, are in `config.py` and in the file of each use case.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from serving_gym.baselines.common.layouts import (
    compose,
    free_regions,
    parse_mode,
    uniform_layout,
    with_regions,
)
from serving_gym.baselines.flying_serving.binding import target_groups
from serving_gym.baselines.flying_serving.config import FlyingServingConfig
from serving_gym.baselines.flying_serving.load_adaptation import LoadAdaptation
from serving_gym.baselines.flying_serving.long_context import LongContextBinding
from serving_gym.baselines.flying_serving.pauses import PauseWatch
from serving_gym.baselines.flying_serving.priority_binding import PriorityBinding
from serving_gym.baselines.policy import Action, Configured, PolicySpec
from serving_gym.envs.interface.commands import Redeploy, SetLayout, SwitchMode
from serving_gym.envs.interface.layout import Group, Layout, groups_of
from serving_gym.envs.interface.state import ClusterState


class _Cause(Enum):
    """Why a region changes, when it is not to bind a group for a request."""

    RELEASE = "release_mode"
    SPLIT = "load_split_mode"
    MERGE = "load_merge_mode"


class FlyingServingPolicy(Configured[FlyingServingConfig]):
    """Binds base engines into groups for light load, priority and long contexts, and releases them."""

    name = "flying_serving"
    clairvoyant = False

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Prepares for an episode."""
        self._num_base = spec.num_base
        self._load = LoadAdaptation(self.config, spec.num_base, spec.node.num_gpus)
        self._pauses = PauseWatch(spec.num_base, self.config.max_pause_s)
        self._priority = PriorityBinding(self.config, spec.num_base, spec.classes, self._pauses)
        self._long = LongContextBinding(self.config, spec.node, spec.classes)
        self._bound: set[Group] = set()  # groups that were bound for a request and not released yet
        self._fresh = True

    def act(self, observation: Any, state: ClusterState) -> Action:
        """Decides; at time zero the layout for no load is deployed, every base engine with whole weights."""
        fresh, self._fresh = self._fresh, False
        length = self._load.update(state, self._long.tokens_to_prefill(state), self._long.requests(state))
        called_for = groups_of(uniform_layout(self._num_base, length))
        if fresh and state.now_s == 0.0:
            return Redeploy(compose(called_for), weights="whole")
        present = target_groups(state)
        self._pauses.update(state)
        self._bound &= set(present)
        long = self._long.update(state, length, avoid=_given(self._priority.group))
        priority = self._priority.update(state, self._load.load, length, avoid=long)
        return (
            self._bind(state, priority, self.config.priority_mode, self.config.escalate)
            or self._bind_each(state, long)
            or self._return_to(state, [*self._pauses.spare(called_for, present), *_given(priority), *long])
        )

    def _bind_each(self, state: ClusterState, groups: tuple[Group, ...]) -> SetLayout | None:
        """Binds the first group for long contexts that is not bound yet."""
        commands = (self._bind(state, group, self.config.long_mode, False) for group in groups)
        return next((command for command in commands if command is not None), None)

    def _bind(self, state: ClusterState, group: Group | None, mode: str, escalate: bool) -> SetLayout | None:
        """Binds a group, unless it is bound already or part of a wider one."""
        if group is None:
            return None
        wanted = compose([*target_groups(state), group])
        if wanted == state.target_layout:
            return self._hurry(state, group) if escalate else None
        regions = free_regions(state, wanted)
        if not regions:
            return self._hurry(state, group) if escalate else None
        self._bound.add(group)
        return SetLayout(with_regions(state, wanted, regions), parse_mode(mode, "mode"))

    def _hurry(self, state: ClusterState, group: Group) -> SetLayout | None:
        """Turns switches that wait for stragglers on the group's engines into hard ones."""
        waiting = any(
            transition.region.overlaps(group)
            and transition.due_s is None
            and transition.mode in (SwitchMode.SEQUENTIAL, SwitchMode.SOFT)
            for transition in state.transitions
        )
        return SetLayout(state.target_layout, SwitchMode.HARD) if waiting else None

    def _return_to(self, state: ClusterState, groups: list[Group]) -> SetLayout | None:
        """Releases groups that nothing holds any more, or follows the load; one cause a decision."""
        wanted = compose(groups)
        regions = free_regions(state, wanted)
        for cause in _Cause:
            chosen = tuple(region for region in regions if self._cause(region, wanted) == cause)
            if chosen:
                return SetLayout(with_regions(state, wanted, chosen), self._mode(cause))
        return None

    def _cause(self, region: Group, wanted: Layout) -> _Cause:
        if region in groups_of(wanted):
            return _Cause.MERGE
        return _Cause.RELEASE if region in self._bound else _Cause.SPLIT

    def _mode(self, cause: _Cause) -> SwitchMode:
        mode = parse_mode(getattr(self.config, cause.value), cause.value)
        # no member of a group can serve in DP before the group is done, so soft is sequential there
        return SwitchMode.SEQUENTIAL if mode == SwitchMode.SOFT and cause != _Cause.MERGE else mode


def _given(group: Group | None) -> list[Group]:
    return [] if group is None else [group]
