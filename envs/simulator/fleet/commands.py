"""Commands to a fleet: each is checked, then begun, or refused with a reason."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.transitions import kv_resize_s
from serving_gym.envs.interface.fleet import FleetCommand, Migrate, ResizeKV, Route, Start, Stop
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.simulator.fleet.build import most_blocks, profile_of
from serving_gym.envs.simulator.fleet.migrating import Migrating
from serving_gym.envs.simulator.fleet.operations import Resizing
from serving_gym.envs.simulator.fleet.places import Places
from serving_gym.envs.simulator.fleet.plane import FleetPlane
from serving_gym.envs.simulator.kernel.migration import requeue
from serving_gym.envs.simulator.kernel.state import FREE, PREFILL, RETURNING, TRANSIT, WAITING
from serving_gym.envs.simulator.kernel.world import may_take, send
from serving_gym.envs.simulator.scheduling import to_ps


def obey(plane: FleetPlane, command: FleetCommand) -> str:
    """Begins to carry out a command; returns why it cannot be, or nothing."""
    simulator = plane.simulator
    if not 0 <= command.place < len(simulator.fleet.places):
        return f"there is no place {command.place}; the fleet has {len(simulator.fleet.places)}"
    if isinstance(command, Route):
        return _route(plane, command)
    if isinstance(command, Migrate):
        return _migrate(plane, command)
    if isinstance(command, Start):
        return _start(plane, command)
    status = plane.status(command.place)
    if status != EngineStatus.ACTIVE:
        return f"place {command.place} has no replica in service"
    if isinstance(command, Stop):
        plane.begin_stop(command.place, command.drain)
        return ""
    return _resize(plane, command)


def _start(plane: FleetPlane, command: Start) -> str:
    simulator = plane.simulator
    if plane.status(command.place) != EngineStatus.INACTIVE:
        return f"place {command.place} is not empty"
    plane.meter.open(command.place, simulator.now_ps)
    plane.begin_start(command.place)
    return ""


def _route(plane: FleetPlane, command: Route) -> str:
    simulator = plane.simulator
    world, place = simulator.world, command.place
    slots = np.flatnonzero(
        (world.requests["index"] == command.request) & (world.requests["phase"] == WAITING)
    )
    if not len(slots) or world.requests["engine"][slots[0]] >= 0:
        return f"request {command.request} is not waiting to be sent to an engine"
    slot = int(slots[0])
    request = world.requests[slot]
    model, origin = simulator.endpoints[request["endpoint"]]
    group = simulator.fleet.places[place]
    if group.replica.model != model or group.replica.role == "decode":
        return (
            f"place {place} does not serve new requests of {model}, which request {command.request} asks for"
        )
    most = int(request["prompt"]) + int(request["max_output"])
    if not may_take(world, simulator.tables, place, most):
        return f"place {place} has no replica in service that could hold request {command.request}"
    round_trip_s = simulator.spec.round_trip_s(origin, group.region)
    if round_trip_s is None:
        return (
            f"fleet.network has no latency between {origin}, where request {command.request} comes from, and "
            f"{group.region}, where place {place} is"
        )
    simulator.make_room()
    if round_trip_s == 0:
        send(simulator.world, simulator.tables, slot, place)
    else:
        plane.begin_forward(slot, place, to_ps(round_trip_s))
    return ""


def _migrate(plane: FleetPlane, command: Migrate) -> str:
    simulator, place = plane.simulator, command.place
    world = simulator.world
    there = ~np.isin(world.requests["phase"], (FREE, RETURNING))
    slots = np.flatnonzero((world.requests["index"] == command.request) & there)
    reason = "is not in the system" if not len(slots) else _why_not_movable(plane, int(slots[0]))
    if reason:
        return f"request {command.request} {reason}"
    slot = int(slots[0])
    request = world.requests[slot]
    source = int(request["engine"])
    reason = _why_not_moved_there(plane, slot, place)
    if reason:
        return f"place {place} {reason}"
    simulator.make_room()
    if request["phase"] == WAITING:
        requeue(simulator.world, simulator.tables, slot, place)
        plane.migrations_done += 1
        return ""
    preemptions = int(request["preemptions"])
    migrating = Migrating(
        place, simulator.now_ps, request=command.request, slot=slot, source=source, preemptions=preemptions
    )
    if not migrating.begin_stage(plane):
        return f"place {place} has no free KV blocks for what request {command.request} has"
    plane.begin(migrating)
    return ""


def _why_not_movable(plane: FleetPlane, slot: int) -> str:
    """What keeps a request from moving anywhere, or nothing."""
    simulator = plane.simulator
    request = simulator.world.requests[slot]
    if request["engine"] < 0:
        return "has no engine that it could be moved from"
    if request["phase"] == PREFILL:
        return "is partly prefilled"
    if request["phase"] == TRANSIT or plane.migration_of(int(request["index"])) is not None:
        return "is on its way already"
    if request["phase"] == WAITING and request["computed"] > 0:
        return "waits with KV that has come from another engine"
    if plane.operation_at(Resizing, int(request["engine"])) is not None:
        return f"is at place {request['engine']}, which is being resized"
    return ""


def _why_not_moved_there(plane: FleetPlane, slot: int, place: int) -> str:
    """Why a request cannot be moved to a place, or nothing."""
    simulator = plane.simulator
    fleet, request = simulator.fleet, simulator.world.requests[slot]
    source = int(request["engine"])
    if place == source:
        return f"has request {request['index']} already"
    same_role = fleet.places[place].replica.role == fleet.places[source].replica.role
    if not same_role or fleet.endpoint_of(place) != fleet.endpoint_of(source):
        return f"is of another endpoint or role than place {source}"
    most = int(request["prompt"]) + int(request["max_output"])
    if not may_take(simulator.world, simulator.tables, place, most):
        return f"has no replica in service that could hold request {request['index']}"
    if plane.operation_at(Resizing, place) is not None:
        return "is being resized"
    return ""


def _resize(plane: FleetPlane, command: ResizeKV) -> str:
    simulator = plane.simulator
    place, now_blocks = command.place, int(simulator.world.engines["total_blocks"][command.place])
    if plane.operation_at(Resizing, place) is not None:
        return f"place {place} is being resized"
    if command.kv_blocks == now_blocks:
        return f"place {place} has {now_blocks} KV blocks already"
    replica = simulator.fleet.places[place].replica
    most = most_blocks(replica)
    if command.kv_blocks > most:
        return f"place {place} has GPU memory for {most} KV blocks at most, not for {command.kv_blocks}"
    reason = _overfull(simulator, command)
    if not reason:
        block_bytes = profile_of(replica).model.kv_bytes_per_token * replica.block_size
        per_gpu = block_bytes / replica.num_gpus
        seconds = kv_resize_s(now_blocks * per_gpu, command.kv_blocks * per_gpu)
        plane.begin_resize(place, command.kv_blocks, to_ps(seconds))
    return reason


def _overfull(simulator: Places, command: ResizeKV) -> str:
    """Why what is there would not fit the new pool, or nothing."""
    place, engine = command.place, simulator.world.engines[command.place]
    if engine["used_blocks"] > command.kv_blocks:
        return f"place {place} uses {engine['used_blocks']} KV blocks, more than {command.kv_blocks}"
    tokens = command.kv_blocks * simulator.fleet.places[place].replica.block_size
    requests = simulator.world.requests
    running = ~np.isin(requests["phase"], (FREE, WAITING, RETURNING)) & (requests["engine"] == place)
    if _longest(simulator, running) > tokens:
        return f"place {place} runs a request that may grow beyond {command.kv_blocks} KV blocks"
    endpoint = simulator.fleet.endpoint_of(place)
    blocks = simulator.world.engines["capacity_blocks"].copy()
    blocks[place] = command.kv_blocks
    unsent = (requests["phase"] == WAITING) | ((requests["phase"] == TRANSIT) & (requests["engine"] < 0))
    for number in simulator.served_by(endpoint):
        limit = simulator.request_limit(number, blocks)
        if _longest(simulator, unsent & (requests["endpoint"] == number)) > limit:
            return f"a request waits that no replica could hold if place {place} had {command.kv_blocks} KV blocks"
    return ""


def _longest(simulator: Places, which: NDArray[np.bool_]) -> int:
    """Most tokens that one of some requests may grow to, as its client declared; `which` is (R,)."""
    requests = simulator.world.requests
    most = requests["prompt"].astype(np.int64) + requests["max_output"]
    return int(most[which].max(initial=0))
