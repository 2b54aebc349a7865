"""Spot instances: where instances come from and go to (sections 2.3 and 6.4; times: `envs.interface.scaling`).

Out: first spot instances of the same model, "which are faster to acquire, and if none are available, ... spot instances
from other model types"; then, where the text says nothing, vacant machines. In: "we donate the instances to the spot
instances of the same model type". Which other model gives: the one with the most to give (ours; the public code takes
any).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.autoscaler import default_gpu, victims
from serving_gym.envs.autoscaling.state import AutoscalingSpec, AutoscalingState, EndpointState
from serving_gym.envs.interface.scaling import Endpoint, Operation, Pool, ScaleChange


@dataclass
class Stock:
    """What a region has to give, as changes of one decision use it up.

    Attributes:
        spot: By endpoint, (G,) spot instances.
        vacant: By region, (G,) vacant machines.
    """

    spot: dict[Endpoint, NDArray[np.int64]] = field(default_factory=dict)
    vacant: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    @classmethod
    def of(cls, state: AutoscalingState) -> Stock:
        """As things stand."""
        return cls(
            {own.endpoint: own.spot.copy() for own in state.endpoints},
            {region: count.copy() for region, count in state.vacant.items()},
        )

    def donors(self, endpoint: Endpoint, gpu: int) -> Mapping[Endpoint, int]:
        """Other endpoints of the region with spot instances on this kind of GPU."""
        return {
            own: int(count[gpu])
            for own, count in self.spot.items()
            if own.region == endpoint.region and own != endpoint and count[gpu] > 0
        }


def bring_in(
    spec: AutoscalingSpec,
    stock: Stock,
    endpoint: Endpoint,
    count: int,
    gpu: int | None = None,
    pool: Pool = Pool.MIXED,
) -> Iterable[ScaleChange]:
    """Operations that bring instances in, the fastest source first; fewer where sources run dry.

    Args:
        spec: The setting.
        stock: What there is; what is taken is taken off it.
        endpoint: Where they are wanted.
        count: How many.
        gpu: On which kind of GPU; None: the first that the model runs on.
        pool: What they are for.
    """
    kind = default_gpu(spec, endpoint.model) if gpu is None else gpu
    own = stock.spot[endpoint]
    taken = min(count, int(own[kind]))
    if taken:
        own[kind] -= taken
        count -= taken
        yield ScaleChange(endpoint, Operation.RECLAIM, taken, gpu=kind, pool=pool)
    while count and (donors := stock.donors(endpoint, kind)):
        donor = max(donors, key=lambda other: donors[other])
        taken = min(count, donors[donor])
        stock.spot[donor][kind] -= taken
        count -= taken
        yield ScaleChange(endpoint, Operation.REDEPLOY, taken, donor=donor.model, gpu=kind, pool=pool)
    taken = min(count, int(stock.vacant[endpoint.region][kind]))
    if taken:
        stock.vacant[endpoint.region][kind] -= taken
        yield ScaleChange(endpoint, Operation.START, taken, gpu=kind, pool=pool)


def give_away(
    endpoint: EndpointState, count: int, rows: NDArray[np.void] | None = None
) -> Iterable[ScaleChange]:
    """Operations that turn instances into spot instances of their model, those with least to do first.

    Args:
        endpoint: The endpoint.
        count: How many, at most those that run: what is only starting cannot be leased.
        rows: Instances to choose from; None: all.
    """
    running = endpoint.running if rows is None else rows[np.isin(rows["place"], endpoint.running["place"])]
    places = victims(endpoint, count, running)
    if places:
        yield ScaleChange(endpoint.endpoint, Operation.DONATE, len(places), places)
