"""Requests on their way to an engine in another region: out of the pool, in no queue until they are there."""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.compiled import entry
from serving_gym.envs.simulator.kernel.queues import enqueue, unlink
from serving_gym.envs.simulator.kernel.runs import interrupt, kick, show_load
from serving_gym.envs.simulator.kernel.state import TRANSIT, Tables, World


@entry
def send_away(world: World, slot: int, target: int) -> None:
    """Takes a request out of the pool that goes to an engine far away."""
    unlink(world, len(world.engines), slot)
    world.requests[slot].phase = TRANSIT
    world.requests[slot].target = target + 1


@entry
def take_in(world: World, tables: Tables, slot: int, row: int) -> None:
    """Puts a request that was on its way into an engine's queue, or back into the pool (row E).

    Called between two `advance`s, when engines have caught up.
    """
    world.requests[slot].target = 0
    enqueue(world, row, slot)
    if row < len(world.engines):
        interrupt(world, row)
        show_load(world, tables, row)
        kick(world, row)
