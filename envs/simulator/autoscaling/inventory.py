"""Machines: which kinds there are, how many stand vacant, how many are leased as spot instances, and how long."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.fleet.build import Fleet


@dataclass(frozen=True)
class Layout:
    """Places by endpoint and kind of machine. P endpoints with places, E places, R regions, G kinds.

    Attributes:
        kinds: (G,) GPU and number of GPUs of each kind of machine.
        regions: (R,) names.
        region_of: (P,) region of each endpoint.
        endpoint_of: (E,) endpoint of each place.
        kind_of: (E,) kind of machine of each place.
    """

    kinds: tuple[tuple[str, int], ...]
    regions: tuple[str, ...]
    region_of: NDArray[np.int64]
    endpoint_of: NDArray[np.int64]
    kind_of: NDArray[np.int64]

    @classmethod
    def of(cls, fleet: Fleet) -> Layout:
        """The layout of a fleet."""
        machines = [(group.replica.gpu, group.replica.num_gpus) for group in fleet.places]
        kinds = tuple(dict.fromkeys(machines))
        regions = tuple(dict.fromkeys(region for _, region in fleet.endpoints))
        return cls(
            kinds,
            regions,
            np.array([regions.index(region) for _, region in fleet.endpoints]),
            np.array([fleet.endpoint_of(place) for place in range(len(fleet.places))]),
            np.array([kinds.index(machine) for machine in machines]),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """(G,) names of the kinds of machines, as 4xH100."""
        return tuple(f"{count}x{gpu}" for gpu, count in self.kinds)

    @property
    def num_endpoints(self) -> int:
        """Endpoints that have places."""
        return len(self.region_of)

    def places(self, endpoint: int, kind: int | None = None) -> NDArray[np.int64]:
        """Places of an endpoint, of one kind or of all."""
        mine = self.endpoint_of == endpoint
        return np.flatnonzero(mine if kind is None else mine & (self.kind_of == kind))

    def count(self, which: NDArray[np.bool_]) -> NDArray[np.int64]:
        """(P, G) how many of some places, (E,), each endpoint has of each kind."""
        num_kinds = len(self.kinds)
        cells = self.endpoint_of[which] * num_kinds + self.kind_of[which]
        return np.bincount(cells, minlength=self.num_endpoints * num_kinds).reshape(-1, num_kinds)

    def by_kind(self) -> NDArray[np.int64]:
        """(P, G) places."""
        return self.count(np.ones(len(self.endpoint_of), bool))


@dataclass
class Inventory:
    """Machines that no instance of the fleet runs on, and for how long machines have been held.

    Attributes:
        vacant: (R, G) machines that stand empty and cost nothing.
        spot: (P, G) leased to others.
        held_ns: (P, G, len(Held)) time for which machines have been held, summed over machines, whole nanoseconds of
            the clock.
    """

    vacant: NDArray[np.int64]
    spot: NDArray[np.int64]
    held_ns: NDArray[np.int64]

    def fork(self) -> Inventory:
        """A copy."""
        return replace(self, vacant=self.vacant.copy(), spot=self.spot.copy(), held_ns=self.held_ns.copy())
