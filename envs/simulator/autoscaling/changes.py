"""Changes of the number of instances: each is checked, then begun as far as it can be; what cannot is said."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.scaling import Endpoint, Operation, ScaleChange
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.simulator.autoscaling.plane import AutoscalingPlane


def carry_out(plane: AutoscalingPlane, pools: NDArray[np.int32], change: ScaleChange) -> str:
    """Begins to carry out a change.

    As many instances come or go as can; the rest is refused.

    Args:
        plane: The control plane.
        pools: (E,) Pool of each place, which those that come are entered in.
        change: What is wanted.

    Returns:
        Why all or part of it cannot be, or nothing.
    """
    endpoint = endpoint_number(plane, change.endpoint)
    if endpoint is None:
        return f"there is no endpoint {change.endpoint.model} in {change.endpoint.region}"
    if change.operation in (Operation.DONATE, Operation.STOP):
        return _take_down(plane, endpoint, change)
    return _bring_up(plane, pools, endpoint, change)


def endpoint_number(plane: AutoscalingPlane, endpoint: Endpoint) -> int | None:
    """Number of an endpoint of the fleet that has places; None: there is none of that name."""
    with_places = plane.simulator.fleet.endpoints
    return with_places.index(tuple(endpoint)) if tuple(endpoint) in with_places else None


def _bring_up(plane: AutoscalingPlane, pools: NDArray[np.int32], endpoint: int, change: ScaleChange) -> str:
    layout = plane.machines.layout
    if not 0 <= change.gpu < len(layout.kinds):
        return f"there is no kind of machine {change.gpu}; there are {len(layout.kinds)}"
    source, where, seconds = _source(plane, endpoint, change)
    if source is None:
        return where
    places = layout.places(endpoint, change.gpu)
    empty = places[plane.simulator.world.engines["status"][places] == EngineStatus.INACTIVE]
    count = min(change.count, len(empty), int(source[change.gpu]))
    for place in empty[:count].tolist():
        source[change.gpu] -= 1
        pools[place] = change.pool
        plane.bring_up(place, seconds(place))
    if count == change.count:
        return ""
    if count == len(empty):
        return f"{count} of {change.count}: {_name(change)} has no more places for {layout.names[change.gpu]}"
    return f"{count} of {change.count}: there are no more {where}"


def _source(
    plane: AutoscalingPlane, endpoint: int, change: ScaleChange
) -> tuple[NDArray[np.int64] | None, str, Callable[[int], float | None]]:
    """(G,) machines that the instances can come from, what they are called, and how long each takes."""
    layout, spec = plane.machines.layout, plane.machines.spec
    kind, region = layout.names[change.gpu], change.endpoint.region
    local = plane.machines.weights_local(endpoint)
    if change.operation is Operation.START:
        vacant = plane.inventory.vacant[layout.region_of[endpoint]]
        return vacant, f"vacant {kind} in {region}", lambda _: None
    if change.operation is Operation.RECLAIM:
        own = plane.inventory.spot[endpoint]
        return own, f"spot instances of {_name(change)} on {kind}", lambda _: plane.reclaim_s(endpoint)
    donor = endpoint_number(plane, Endpoint(change.donor, region))
    if donor is None or donor == endpoint:
        return (
            None,
            f"{change.donor} has no spot instances in {region} that could become {_name(change)}",
            lambda _: None,
        )
    redeploy_s = spec.redeploy_s if local else spec.remote_s
    return (
        plane.inventory.spot[donor],
        f"spot instances of {change.donor} in {region} on {kind}",
        lambda _: redeploy_s,
    )


def _take_down(plane: AutoscalingPlane, endpoint: int, change: ScaleChange) -> str:
    to_spot = change.operation is Operation.DONATE
    candidates = _that_may_go(plane, endpoint, to_spot)
    chosen = dict.fromkeys(change.places or candidates[: change.count])
    going = [place for place in chosen if place in candidates]
    for place in going:
        plane.take_down(place, to_spot)
    if len(going) == change.count:
        return ""
    state = "in service" if to_spot else "in service or starting"
    return f"{len(going)} of {change.count}: {_name(change)} has no more of these instances {state}"


def _that_may_go(plane: AutoscalingPlane, endpoint: int, to_spot: bool) -> list[int]:
    """Places whose instances may go: those that start first, where they may, then those with the fewest requests."""
    engines = plane.simulator.world.engines
    places = plane.machines.layout.places(endpoint)
    status = engines["status"][places]
    ready = status == EngineStatus.ACTIVE
    load = engines["num_running"][places] + engines["num_waiting"][places]
    order = np.lexsort((places, load, ready))
    may = ready if to_spot else ready | (status == EngineStatus.DOWN)
    return [int(places[i]) for i in order if may[i]]


def _name(change: ScaleChange) -> str:
    return f"{change.endpoint.model} in {change.endpoint.region}"
