"""Doors for Python to what only the kernel calls."""

from __future__ import annotations

from serving_gym.envs.simulator.kernel import accounting, engine, queues, world
from serving_gym.envs.simulator.kernel.compiled import entry
from serving_gym.envs.simulator.kernel.state import Tables, Traffic, World


@entry
def add(state: World, traffic: Traffic, tables: Tables, index: int) -> int:
    """Lets row `index` of the load join the queue of engine 0; returns its slot."""
    slot = world.new_request(state, traffic, tables, index)
    accounting.book_arrival(state, tables, slot)
    queues.enqueue(state, 0, slot)
    return slot


@entry
def begin(state: World, tables: Tables, now: int) -> None:
    """Begins an iteration of engine 0."""
    engine.schedule(state, tables, 0, now)


@entry
def end(state: World, tables: Tables, now: int) -> None:
    """Ends the iteration of engine 0."""
    engine.complete(state, tables, 0, now)


@entry
def computed_tokens(state: World, slot: int) -> int:
    """Tokens whose KV a running request holds, those in flight included."""
    return engine.computed_tokens(state, slot)
