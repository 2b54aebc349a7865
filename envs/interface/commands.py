"""Commands to a node: changes of its layout.

A command that cannot be executed is refused with a reason and counted, never silently corrected.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from serving_gym.envs.interface.layout import Layout, groups_of


class SwitchMode(IntEnum):
    """How a live switch treats the requests that are running (Flying Serving, section 5.2)."""

    SEQUENTIAL = 0  # wait for the stragglers
    SOFT = 1  # meanwhile idle members run waiting requests in DP; these are recomputed after the switch
    HARD = 2  # running DP requests pause with their KV resident; requests of a split TP group are recomputed


@dataclass(frozen=True, slots=True)
class SetLayout:
    """Switch live to `layout`; regions that differ switch independently. Needs engines that hold whole weights.

    At time zero it is the choice of the first layout and costs nothing.
    """

    layout: Layout
    mode: SwitchMode = SwitchMode.SEQUENTIAL

    def __post_init__(self) -> None:
        groups_of(self.layout)


@dataclass(frozen=True, slots=True)
class Redeploy:
    """Stop every engine and cold-start `layout`; at time zero it is the initial deployment and costs nothing.

    `weights="sharded"` gives each engine only its own shard (more room for KV, no live switching afterwards).
    `execution="shift"` runs wide batches sequence-parallel (Shift Parallelism), narrow ones tensor-parallel.
    """

    layout: Layout
    execution: str = "tp"
    weights: str = "sharded"

    def __post_init__(self) -> None:
        groups_of(self.layout)
        if self.execution not in ("tp", "shift"):
            raise ValueError(f"execution must be 'tp' or 'shift', got {self.execution!r}")
        if self.weights not in ("sharded", "whole"):
            raise ValueError(f"weights must be 'sharded' or 'whole', got {self.weights!r}")


Command = SetLayout | Redeploy


@dataclass(frozen=True, slots=True)
class Receipt:
    """Result of a command."""

    accepted: bool
    reason: str = ""  # why it was refused
