"""Communicator Pool (Flying Serving, section 4.3): groups of every degree, built at start, looked up later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed
from vllm.distributed import parallel_state

from .groups import aligned, degrees


class CommunicatorPool:
    """vLLM's `GroupCoordinator` of each degree that this rank belongs to.

    All ranks build the pool together: creating a group is itself a collective.

    Args:
        world: ranks.
        local_rank: this rank on its machine.
    """

    def __init__(self, world: int, local_rank: int) -> None:
        whole = parallel_state.get_tp_group()
        backend = torch.distributed.get_backend(whole.device_group)
        self._by_degree: dict[int, Any] = {world: whole}
        for degree in degrees(world)[:-1]:
            ranks = [list(group.ranks) for group in aligned(world, degree)]
            # names that begin with tp get the shared-memory collectives of CPUs; one rank alone needs none
            name = "alone" if degree == 1 else f"tp{degree}"
            self._by_degree[degree] = parallel_state.init_model_parallel_group(
                ranks, local_rank, backend, group_name=name
            )

    def rank(self, degree: int) -> int:
        """This rank's place in its group of a degree."""
        return int(self._by_degree[degree].rank_in_group)

    def activate(self, degree: int) -> None:
        """Routes the collectives of tensor parallelism through the group of a degree."""
        parallel_state._TP = self._by_degree[degree]

    @contextmanager
    def activated(self, degree: int) -> Iterator[None]:
        """The group of a degree inside the block, the present one after it."""
        before = parallel_state._TP
        self.activate(degree)
        try:
            yield
        finally:
            parallel_state._TP = before
