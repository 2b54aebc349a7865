"""What scheduler, executor and workers say to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput

from .groups import Group


@dataclass
class GroupBatch:
    """An iteration of one group.

    Attributes:
        group: Who runs it.
        output: What vLLM's scheduler decided.
        grammar: Bitmask of structured outputs, if there are any.
        histories: Tokens generated elsewhere, by id of a request that is new to this group.
    """

    group: Group
    output: SchedulerOutput
    grammar: GrammarOutput | None
    histories: dict[str, list[int]]


@dataclass(frozen=True)
class Entry:
    """A group is entered by its ranks, for a switch.

    Attributes:
        switch: Its number.
        group: The group.
        seed: What its members' random generators go on from: ranks that sample together must draw alike.
    """

    switch: int
    group: Group
    seed: int


@dataclass
class SwitchingOutput(SchedulerOutput):
    """All that starts in one turn of the engine's loop; the fields of the base class are those of all batches."""

    entries: tuple[Entry, ...] = ()
    batches: tuple[GroupBatch, ...] = ()


@dataclass
class SwitchingResult:
    """What has come back since the last turn.

    Attributes:
        outputs: `ModelRunnerOutput` by group.
        confirmed: (switch, rank, milliseconds it took the rank, when it was done): monotonic seconds, which processes
            of one machine share.
    """

    outputs: dict[Group, Any] = field(default_factory=dict)
    confirmed: list[tuple[int, int, float, float]] = field(default_factory=list)
