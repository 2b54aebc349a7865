"""Memory in which copies of episodes are rolled on, one after another, without an object in Python for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.decisions import HANDLE_WIDTHS
from serving_gym.envs.simulator.kernel.desk import Desk, fork_desk
from serving_gym.envs.simulator.kernel.handles import write_handle
from serving_gym.envs.simulator.kernel.state import LOG_DTYPE, World
from serving_gym.envs.simulator.kernel.state import fork as fork_world

_LOG_LENGTH = 4096  # entries; a copy that has more to tell needs the control plane
_WORLD, _, _, _DESK = HANDLE_WIDTHS
_NUM_ARRAYS = len(World._fields) + len(Desk._fields)


class CopyBuffers:
    """Buffers for one copy of each of N episodes, as large as the episode is now.

    Args:
        number: N.
    """

    def __init__(self, number: int) -> None:
        self.worlds = np.zeros((number, _WORLD), np.int64)  # handles, as the next
        self.desks = np.zeros((number, _DESK), np.int64)
        self.copies = np.zeros((number, _NUM_ARRAYS, 3), np.int64)  # from where to where how many bytes
        self._owners: list[tuple[World, Desk] | None] = [None] * number
        self._arrays: list[tuple[World, Desk] | None] = [None] * number

    def fit(self, i: int, world: World, desk: Desk) -> None:
        """Makes the room of an episode as large as it has become.

        Args:
            i: Which.
            world: Its arrays now.
            desk: Its router's.
        """
        owner = self._owners[i]
        if owner is not None and owner[0] is world and owner[1] is desk:
            return
        copy = fork_world(world)._replace(log=np.empty(_LOG_LENGTH, LOG_DTYPE))
        table = fork_desk(desk)
        self.copies[i] = 0
        pairs = [*_pairs(world._replace(log=copy.log), copy), *_pairs(desk, table)]
        for row, (source, target) in zip(self.copies[i], pairs, strict=False):
            row[:] = source.ctypes.data, target.ctypes.data, source.nbytes
        write_handle(self.worlds[i], copy)
        write_handle(self.desks[i], table)
        self._owners[i], self._arrays[i] = (world, desk), (copy, table)


def _pairs(
    sources: Sequence[NDArray[Any]], targets: Sequence[NDArray[Any]]
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Arrays and their copies, but for those that are shared."""
    return [(source, target) for source, target in zip(sources, targets, strict=True) if source is not target]
