"""How long the places of a fleet have had a replica: what is paid for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Meter:
    """Counts the time for which replicas are kept, from the command that starts one until it is gone.

    Args:
        num_places: Places of the fleet.
    """

    def __init__(self, num_places: int) -> None:
        self._closed_ps = np.zeros(num_places, np.int64)  # of replicas that are gone
        self._since_ps = np.full(num_places, -1, np.int64)  # of those that are kept, -1 where there is none

    def fork(self) -> Meter:
        """A copy."""
        copy = Meter(len(self._since_ps))
        copy._closed_ps, copy._since_ps = self._closed_ps.copy(), self._since_ps.copy()
        return copy

    def open(self, place: int, now_ps: int) -> None:
        """A replica is kept from now on."""
        self._since_ps[place] = now_ps

    def close(self, place: int, now_ps: int) -> None:
        """The replica is gone."""
        self._closed_ps[place] += now_ps - self._since_ps[place]
        self._since_ps[place] = -1

    def kept_ps(self, now_ps: int) -> NDArray[np.int64]:
        """Time for which each place has had a replica, (places,) ps."""
        return self._closed_ps + np.where(self._since_ps >= 0, now_ps - self._since_ps, 0)
