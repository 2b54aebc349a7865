"""What Python asks a shared world."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.simulator.kernel.compiled import entry
from envs.simulator.sharing.arrays import SharingTables, SharingWorld
from envs.simulator.sharing.iterations import is_runnable


@entry
def runnable(world: SharingWorld, tables: SharingTables, found: NDArray[np.bool_]) -> None:
    """Notes which instances have an iteration to run, (S,)."""
    for i in range(len(world.instances)):
        found[i] = is_runnable(world, tables, i)
