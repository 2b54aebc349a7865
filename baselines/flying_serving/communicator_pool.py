"""Communicator Pool (Flying Serving, section 4.3): groups built at start-up, looked up when engines are bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from serving_gym.calibration.transitions import COMMUNICATOR_HOST_BYTES, COMMUNICATOR_START_S

Ranks = tuple[int, ...]


def identify_groups(num_engines: int, degrees: Iterable[int]) -> tuple[Ranks, ...]:
    """Step 1, topology-aware group identification: contiguous aligned segments of each degree.

    For 4 engines and degrees 2 and 4: (0, 1), (2, 3), (0, 1, 2, 3). The number of groups is linear in the engines.

    Raises:
        ValueError: a degree is below 2 or does not divide the engines.
    """
    degrees = sorted(set(degrees))
    for degree in degrees:
        if degree < 2 or num_engines % degree:
            raise ValueError(f"degree must be at least 2 and divide num_engines={num_engines}, got {degree}")
    return tuple(
        tuple(range(first, first + degree)) for degree in degrees for first in range(0, num_engines, degree)
    )


@dataclass(frozen=True)
class Communicator:
    """A handle to collectives among some engines."""

    ranks: Ranks


class CommunicatorPool:
    """Step 2, pre-initialisation: every identified group is built now, and none later.

    Args:
        num_engines: DP engines of the node.
        degrees: Supported TP degrees.
        new_group: Builds a communicator (`torch.distributed.new_group` in a live system).
    """

    def __init__(
        self,
        num_engines: int,
        degrees: Iterable[int],
        new_group: Callable[[Ranks], Communicator] = Communicator,
    ) -> None:
        self._groups = {ranks: new_group(ranks) for ranks in identify_groups(num_engines, degrees)}

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def groups(self) -> tuple[Ranks, ...]:
        """Members of every communicator."""
        return tuple(self._groups)

    @property
    def host_bytes(self) -> int:
        """Host memory: 2 MB a group (section 4.3.2)."""
        return len(self) * COMMUNICATOR_HOST_BYTES

    @property
    def start_up_s(self) -> float:
        """Time the construction adds to a start, seconds. Source: ours (`calibration.transitions`)."""
        return len(self) * COMMUNICATOR_START_S

    def get(self, ranks: Iterable[int]) -> Communicator:
        """The communicator of exactly these engines.

        Raises:
            ValueError: it was not built; to build it now would risk a deadlock (section 4.3).
        """
        key = tuple(ranks)
        if key not in self._groups:
            raise ValueError(f"no communicator for engines {key}; built: {', '.join(map(str, self._groups))}")
        return self._groups[key]
