"""What follows from a fleet before an episode: machines there are, where requests may go, room for latencies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.interface.fleet import FleetSpec
from serving_gym.envs.interface.scaling import MachineSpec
from serving_gym.envs.simulator.autoscaling.bins import LATENCIES, NUM_LATENCY_BINS
from serving_gym.envs.simulator.autoscaling.inventory import Layout
from serving_gym.envs.simulator.fleet.build import Fleet
from serving_gym.envs.simulator.scheduling import to_ps


def machines_there(fleet: Fleet, layout: Layout, machines: MachineSpec) -> NDArray[np.int64]:
    """(R, G) machines of each kind in each region.

    Raises:
        ValueError: A name is unknown, or there are fewer machines than hold instances at the start.
    """
    for name in machines.per_region:
        check_choice("key of machines.per_region", name, layout.names)
    endpoints = [f"{model}@{region}" for model, region in fleet.endpoints]
    for name in machines.without_weights:
        check_choice("entry of machines.without_weights", name, endpoints)
    owned = np.zeros((len(layout.regions), len(layout.kinds)), np.int64)
    np.add.at(owned, layout.region_of, layout.by_kind())
    for name, count in machines.per_region.items():
        owned[:, layout.names.index(name)] = count
    needed = np.zeros_like(owned)
    for place in fleet.running:
        needed[layout.region_of[layout.endpoint_of[place]], layout.kind_of[place]] += 1
    for endpoint in range(layout.num_endpoints):
        kind = layout.kind_of[layout.places(endpoint)[0]]
        needed[layout.region_of[endpoint], kind] += machines.spot
    if (needed > owned).any():
        region, kind = np.argwhere(needed > owned)[0]
        raise ValueError(
            f"machines: {layout.regions[region]} has {owned[region, kind]} {layout.names[kind]}, but instances and "
            f"spot instances take {needed[region, kind]} at the start"
        )
    return owned


def preferences(
    spec: FleetSpec, endpoints: Sequence[tuple[str, str]], num_with_places: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Endpoints that may serve a request, the nearest first, and how far they are.

    Args:
        spec: The fleet.
        endpoints: (P,) model and region, those with places first.
        num_with_places: How many have places.

    Returns:
        (P, P) endpoints in order of preference, then -1; (P, P) network latency, -1 where no way leads there.
    """
    preference = np.full((len(endpoints), len(endpoints)), -1, np.int32)
    delay_ps = np.full(preference.shape, -1, np.int64)
    for number, (model, origin) in enumerate(endpoints):
        trips = {}
        for other, (served, region) in enumerate(endpoints[:num_with_places]):
            trip = spec.round_trip_s(origin, region)
            if served == model and trip is not None:
                trips[other] = trip
                delay_ps[number, other] = to_ps(trip)
        order = sorted(trips, key=lambda other: (other != number, trips[other], other))
        preference[number, : len(order)] = order
    return preference, delay_ps


def new_latencies(num_classes: int, num_endpoints: int) -> NDArray[np.int64]:
    """No latencies, (C, P, 3, NUM_LATENCY_BINS)."""
    return np.zeros((num_classes, num_endpoints, len(LATENCIES), NUM_LATENCY_BINS), np.int64)
