"""KV beyond the GPU: a tier in host memory for each engine, as vLLM's offloading connector has it.

Blocks of shared prefixes are copied to the host as they are cached; the copies go over the link while the engine
computes and cost it nothing. What is on the host and no longer on the GPU is loaded before its request is admitted:
over one link, one load after the other, while the engine goes on with others. Here a request holds no blocks of the GPU
while it is loaded, but takes them when that has ended.

Of a node of the prefix tree the host has the first blocks. Where there is no room, the node that was used longest ago
loses its last ones. A chain is used from its end to its beginning, so that the end of a prefix goes before that.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.compiled import compiled, int64
from serving_gym.envs.simulator.kernel.state import World


@compiled
def _unlink(world: World, e: int, node: int) -> None:
    """Takes a node out of the list by last use."""
    engine, held = world.engines[e], world.host[e, node]
    if held.prev < 0:
        engine.host_first = held.next
    else:
        world.host[e, held.prev].next = held.next
    if held.next < 0:
        engine.host_last = held.prev
    else:
        world.host[e, held.next].prev = held.prev


@compiled
def _put_first(world: World, e: int, node: int) -> None:
    """Puts a node at the front of the list by last use."""
    engine, held = world.engines[e], world.host[e, node]
    held.prev, held.next = -1, engine.host_first
    if engine.host_first < 0:
        engine.host_last = node
    else:
        world.host[e, engine.host_first].prev = node
    engine.host_first = node


@compiled
def _make_room(world: World, e: int) -> None:
    """Forgets blocks until the tier holds no more than it can."""
    engine = world.engines[e]
    while engine.host_used > engine.host_blocks:
        node = int64(engine.host_last)
        held = world.host[e, node]
        cut = min(engine.host_used - engine.host_blocks, int64(held.end) - held.begin)
        held.end -= cut
        engine.host_used -= cut
        if held.end == held.begin:
            _unlink(world, e, node)


@compiled
def _keep(world: World, e: int, node: int, begin: int, end: int) -> None:
    """Copies a node's blocks from its `begin` to `end`, those that are not there yet, and notes its use."""
    engine, held = world.engines[e], world.host[e, node]
    if held.end > held.begin:
        _unlink(world, e, node)
    else:
        held.begin = held.end = begin
    if end > held.end:
        engine.host_used += end - held.end
        held.end = end
    _put_first(world, e, node)
    _make_room(world, e)


@compiled
def store(world: World, e: int, first: int, last: int, full: int) -> None:
    """Copies the first `full` blocks of the chain in rows `first` to `last` - 1 to the host."""
    if world.engines[e].host_blocks == 0:
        return
    for row in range(last - 1, first - 1, -1):
        begin = int64(world.chains[row - 1].end) if row > first else int64(0)
        end = min(int64(world.chains[row].end), full)
        if begin < end:
            _keep(world, e, int64(world.chains[row].node), begin, end)


@compiled
def reach(world: World, e: int, first: int, last: int, position: int, limit: int) -> int:
    """How far the host goes on with a chain from `position`, blocks, at most to `limit`."""
    reached = position
    for row in range(first, last):
        end = min(int64(world.chains[row].end), limit)
        if end <= reached:
            continue
        held = world.host[e, world.chains[row].node]
        if held.end <= reached or held.begin > reached:
            break
        reached = min(end, int64(held.end))
        if reached < end:
            break
    return reached


@compiled
def flush_host(world: World, e: int) -> None:
    """Forgets all that an engine has on the host."""
    engine = world.engines[e]
    while engine.host_first >= 0:
        node = int64(engine.host_first)
        _unlink(world, e, node)
        world.host[e, node].end = world.host[e, node].begin
    engine.host_used = 0
