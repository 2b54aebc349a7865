"""State machine of switches: the layout, switches in progress, and when each may take place.

Pure: it knows groups, request ids and times, nothing of vLLM. A switch goes through three moments: *asked*; *safe*,
when no request holds it up and no member is in the middle of an iteration (section 5, principle (ii)); *entered*, when
every member has confirmed its new mode. From asked to safe it drains; from safe to entered is the cut-over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from .groups import Group, Layout, changed_regions, groups_of, layout_of

_REMEMBERED = 64


class Mode(IntEnum):
    """How a switch treats what is running (section 5.2); numbers as in `envs.interface.commands.SwitchMode`."""

    SEQUENTIAL = 0  # wait for the stragglers
    SOFT = 1  # meanwhile members without stragglers serve new requests in DP, recomputed after the switch
    HARD = 2  # at once: a merged DP group's requests pause with their KV, a split TP group's are recomputed


class RefusedError(ValueError):
    """A refused switch, with the reason."""


@dataclass
class Switch:
    """A switch of one region from some groups to others."""

    number: int
    region: Group
    source: tuple[Group, ...]
    target: tuple[Group, ...]
    mode: Mode
    asked_s: float
    stragglers: dict[Group, set[str]]  # requests that must finish first, by group
    safe_s: float | None = None
    entered_s: float | None = None
    unconfirmed: set[int] = field(default_factory=set)  # ranks
    enter_ms: dict[int, float] = field(
        default_factory=dict
    )  # by rank: the swap itself, as the worker timed it
    paused: int = 0  # paused requests
    recomputed: int = 0  # requests that lost their KV
    queued: int = 0  # requests without KV at the cut-over

    @property
    def merges(self) -> bool:
        """Whether groups become one."""
        return len(self.target) == 1

    @property
    def draining(self) -> bool:
        """Whether it has not taken place yet."""
        return self.safe_s is None

    def held_up(self, group: Group) -> bool:
        """Whether a group has stragglers that the switch waits for."""
        return self.mode != Mode.HARD and bool(self.stragglers[group])

    @property
    def due(self) -> bool:
        """Whether it only waits for running iterations; its groups must not start another."""
        return self.draining and not any(self.held_up(group) for group in self.source)

    def report(self) -> dict[str, Any]:
        """Times in seconds, by the monotonic clock, and counts."""
        safe_s, entered_s = self.safe_s, None if self.unconfirmed else self.entered_s
        return {
            "number": self.number,
            "region": list(self.region),
            "from": [list(group) for group in self.source],
            "to": [list(group) for group in self.target],
            "mode": self.mode.name.lower(),
            "asked_s": self.asked_s,
            "drain_s": None if safe_s is None else safe_s - self.asked_s,
            "cut_over_s": None if safe_s is None or entered_s is None else entered_s - safe_s,
            "enter_ms": {str(rank): ms for rank, ms in self.enter_ms.items()},
            "paused": self.paused,
            "recomputed": self.recomputed,
            "queued": self.queued,
        }


class SwitchBook:
    """Layout and switches of one engine.

    Args:
        world: ranks.
        layout: the first layout.

    Attributes:
        groups: groups that serve or are being drained.
        open: switches that are not entered yet, oldest first.
        done: the last switches that are.
    """

    def __init__(self, world: int, layout: Layout) -> None:
        self.world = world
        self.groups: set[Group] = set(groups_of(layout, world))
        self.open: list[Switch] = []
        self.done: deque[Switch] = deque(maxlen=_REMEMBERED)
        self._count = 0

    @property
    def layout(self) -> Layout:
        """The present layout."""
        return layout_of(tuple(self.groups))

    @property
    def target(self) -> tuple[Group, ...]:
        """Groups once every open switch has taken place."""
        groups = set(self.groups)
        for switch in self.open:
            if switch.draining:
                groups = groups - set(switch.source) | set(switch.target)
        return tuple(sorted(groups))

    def ask(
        self, layout: Layout, mode: Mode, now_s: float, running: Mapping[Group, Collection[str]]
    ) -> list[Switch]:
        """Begins the switches that lead to a layout; regions that differ switch independently.

        Asking for the present target with HARD hurries what is draining. SOFT is SEQUENTIAL where a group is split, as
        none of its members can serve before the switch.

        Args:
            layout: wanted groups, left to right.
            mode: what happens to running requests.
            now_s: monotonic seconds.
            running: ids of the running requests of every serving group.

        Returns:
            The switches begun.

        Raises:
            RefusedError: a region is on its way elsewhere.
            ValueError: not a layout.
        """
        wanted = groups_of(layout, self.world)
        regions = changed_regions(self.target, wanted)
        for region in regions:
            for switch in self.open:
                if switch.region.overlaps(region):
                    raise RefusedError(
                        f"ranks {switch.region.first} to {switch.region.ranks[-1]} are being reconfigured"
                    )
        if not regions and mode == Mode.HARD:
            for switch in self.open:
                switch.mode = Mode.HARD if switch.draining else switch.mode
        begun = [self._begin(region, wanted, mode, now_s, running) for region in regions]
        self.open += begun
        return begun

    def _begin(
        self,
        region: Group,
        wanted: tuple[Group, ...],
        mode: Mode,
        now_s: float,
        running: Mapping[Group, Collection[str]],
    ) -> Switch:
        source = tuple(sorted(group for group in self.groups if region.contains(group)))
        target = tuple(group for group in wanted if region.contains(group))
        if mode == Mode.SOFT and len(target) > 1:
            mode = Mode.SEQUENTIAL
        self._count += 1
        stragglers = {group: set(running.get(group, ())) for group in source}
        return Switch(self._count, region, source, target, mode, now_s, stragglers)

    def over(self, request: str) -> None:
        """A request is no straggler any more: it has finished or was aborted."""
        for switch in self.open:
            for stragglers in switch.stragglers.values():
                stragglers.discard(request)

    def admits(self, group: Group) -> bool:
        """Whether a group takes new requests."""
        switch = self.draining(group)
        if switch is None:
            return group in self.groups
        return switch.mode == Mode.SOFT and not switch.held_up(group)

    def draining(self, group: Group) -> Switch | None:
        """The switch that a serving group is being drained for."""
        return next((s for s in self.open if s.draining and group in s.source), None)

    def may_start(self, group: Group) -> bool:
        """Whether a serving group may start an iteration."""
        switch = self.draining(group)
        return switch is None or not switch.due

    def ready(self, busy: Collection[Group]) -> list[Switch]:
        """Switches at a safe point: none of their groups has stragglers or is in the middle of an iteration.

        Args:
            busy: groups whose iteration is running.
        """
        return [s for s in self.open if s.due and not any(group in busy for group in s.source)]

    def wait_for_entry(self, switch: Switch, now_s: float) -> None:
        """The new groups serve from now on; the switch is over when every member has confirmed."""
        switch.safe_s = now_s
        switch.unconfirmed = set(switch.region.ranks)
        self.groups = self.groups - set(switch.source) | set(switch.target)

    def confirm(self, number: int, rank: int, enter_ms: float, now_s: float) -> None:
        """A rank works in its new group."""
        switch = next(switch for switch in self.open if switch.number == number)
        switch.unconfirmed.discard(rank)
        switch.enter_ms[rank] = enter_ms
        switch.entered_s = max(now_s, switch.entered_s or now_s)
        if not switch.unconfirmed:
            self.open.remove(switch)
            self.done.append(switch)
