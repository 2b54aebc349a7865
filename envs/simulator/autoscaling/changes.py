"""Changes of the number of instances: each is checked, then begun as far as it can be; what cannot is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.scaling import Endpoint, Operation, Release, ScaleChange
from serving_gym.envs.interface.state import EngineStatus

if TYPE_CHECKING:
    from serving_gym.envs.simulator.autoscaling.simulator import AutoscalingSimulator


def carry_out(simulator: AutoscalingSimulator, change: ScaleChange | Release) -> str:
    """Begins to carry out a change.

    As many instances come or go as can; the rest is refused.

    Returns:
        Why all or part of it cannot be, or nothing.
    """
    endpoint = _number(simulator, change.endpoint)
    if endpoint is None:
        return f"there is no endpoint {change.endpoint.model} in {change.endpoint.region}"
    if isinstance(change, Release):
        if change.level >= len(simulator.queue.levels):
            return f"there is no release level {change.level}; there are {len(simulator.queue.levels)}"
        simulator.set_release(endpoint, change.level)
        return ""
    if change.operation in (Operation.DONATE, Operation.STOP):
        return _take_down(simulator, endpoint, change)
    return _bring_up(simulator, endpoint, change)


def _number(simulator: AutoscalingSimulator, endpoint: Endpoint) -> int | None:
    with_places = simulator.fleet.endpoints
    return with_places.index(tuple(endpoint)) if tuple(endpoint) in with_places else None


def _bring_up(simulator: AutoscalingSimulator, endpoint: int, change: ScaleChange) -> str:
    layout, plane = simulator.layout, simulator.plane
    if not 0 <= change.gpu < len(layout.kinds):
        return f"there is no kind of machine {change.gpu}; there are {len(layout.kinds)}"
    source, where, seconds = _source(simulator, endpoint, change)
    if source is None:
        return where
    places = layout.places(endpoint, change.gpu)
    empty = places[simulator.world.engines["status"][places] == EngineStatus.INACTIVE]
    count = min(change.count, len(empty), int(source[change.gpu]))
    for place in empty[:count].tolist():
        source[change.gpu] -= 1
        assert simulator.gate is not None
        simulator.gate.pools[place] = change.pool
        plane.bring_up(place, seconds(place))
    if count == change.count:
        return ""
    if count == len(empty):
        return f"{count} of {change.count}: {_name(change)} has no more places for {layout.names[change.gpu]}"
    return f"{count} of {change.count}: there are no more {where}"


def _source(
    simulator: AutoscalingSimulator, endpoint: int, change: ScaleChange
) -> tuple[NDArray[np.int64] | None, str, Callable[[int], float | None]]:
    """(G,) machines that the instances can come from, what they are called, and how long each takes."""
    layout, plane, machines = simulator.layout, simulator.plane, simulator.machines
    kind, region = layout.names[change.gpu], change.endpoint.region
    local = simulator.weights_local(endpoint)
    if change.operation is Operation.START:
        vacant = plane.inventory.vacant[layout.region_of[endpoint]]
        return vacant, f"vacant {kind} in {region}", lambda _: None
    if change.operation is Operation.RECLAIM:
        own = plane.inventory.spot[endpoint]
        return own, f"spot instances of {_name(change)} on {kind}", lambda _: plane.reclaim_s(endpoint)
    donor = _number(simulator, Endpoint(change.donor, region))
    if donor is None or donor == endpoint:
        return (
            None,
            f"{change.donor} has no spot instances in {region} that could become {_name(change)}",
            lambda _: None,
        )
    redeploy_s = machines.redeploy_s if local else machines.remote_s
    return (
        plane.inventory.spot[donor],
        f"spot instances of {change.donor} in {region} on {kind}",
        lambda _: redeploy_s,
    )


def _take_down(simulator: AutoscalingSimulator, endpoint: int, change: ScaleChange) -> str:
    to_spot = change.operation is Operation.DONATE
    candidates = _that_may_go(simulator, endpoint, to_spot)
    chosen = dict.fromkeys(change.places or candidates[: change.count])
    going = [place for place in chosen if place in candidates]
    for place in going:
        simulator.plane.take_down(place, to_spot)
    if len(going) == change.count:
        return ""
    state = "in service" if to_spot else "in service or starting"
    return f"{len(going)} of {change.count}: {_name(change)} has no more of these instances {state}"


def _that_may_go(simulator: AutoscalingSimulator, endpoint: int, to_spot: bool) -> list[int]:
    """Places whose instances may go: those that start first, where they may, then those with the fewest requests."""
    engines = simulator.world.engines
    places = simulator.layout.places(endpoint)
    status = engines["status"][places]
    ready = status == EngineStatus.ACTIVE
    load = engines["num_running"][places] + engines["num_waiting"][places]
    order = np.lexsort((places, load, ready))
    may = ready if to_spot else ready | (status == EngineStatus.DOWN)
    return [int(places[i]) for i in order if may[i]]


def _name(change: ScaleChange) -> str:
    return f"{change.endpoint.model} in {change.endpoint.region}"
