"""Extents of KV blocks: unused records, an engine's list of free blocks, and the copies it has of each prefix node.

vLLM keeps one record a block. Blocks that were cached together and have the same users behave alike, so one record
stands for a run of them. What makes that exact: a request gives its blocks back last one first, hence a free extent is
eaten from its end, and an extent is split where a request comes to use only part of it.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.compiled import compiled, int64
from serving_gym.envs.simulator.kernel.state import ANONYMOUS, World


@compiled
def own_node(slot: int) -> int:
    """Node of blocks that only the request in `slot` can use again."""
    return int64(-2 - slot)


@compiled
def _take_extent(world: World, e: int, node: int, start: int, end: int, refs: int) -> int:
    """An unused record, filled in and linked nowhere; the caller has made sure there is one."""
    cluster = world.cluster[0]
    x = int64(cluster.first_extent)
    extent = world.extents[x]
    cluster.first_extent = extent.next
    cluster.num_free_extents -= 1
    extent.node = node
    extent.start = start
    extent.end = end
    extent.refs = refs
    extent.engine = e
    extent.next = -1
    extent.prev = -1
    extent.sibling = -1
    extent.before = -1
    return x


@compiled
def drop_extent(world: World, x: int) -> None:
    """Returns a record that is linked nowhere."""
    cluster = world.cluster[0]
    world.extents[x].next = cluster.first_extent
    cluster.first_extent = x
    cluster.num_free_extents += 1


# -- the copies of a node ----------------------------------------------------------------------------------------------


@compiled
def first_extent(world: World, e: int, node: int) -> int:
    """The extent of a node that was cached first in this engine, or -1; of a request's own, first in any engine."""
    if node >= 0:
        return int64(world.node_extents[e, node])
    return int64(world.requests[-2 - node].own_extents)


@compiled
def _set_first_extent(world: World, e: int, node: int, x: int) -> None:
    if node >= 0:
        world.node_extents[e, node] = x
    else:
        world.requests[-2 - node].own_extents = x


@compiled
def last_extent(world: World, e: int, node: int) -> int:
    """The extent of a node that was cached last in this engine, or -1; of a request's own, last in any engine."""
    x = first_extent(world, e, node)
    while x >= 0 and world.extents[x].sibling >= 0:
        x = int64(world.extents[x].sibling)
    return x


@compiled
def add_extent(world: World, e: int, node: int, start: int, end: int, refs: int) -> int:
    """Caches positions of a node behind all copies it has; returns the extent."""
    x = _take_extent(world, e, node, start, end, refs)
    last = last_extent(world, e, node)
    if last < 0:
        _set_first_extent(world, e, node, x)
    else:
        world.extents[last].sibling = x
    return x


@compiled
def make_anonymous(world: World, e: int, x: int) -> None:
    """Forgets what an extent holds."""
    extent = world.extents[x]
    node = int64(extent.node)
    if node == ANONYMOUS:
        return
    before = int64(-1)
    at = first_extent(world, e, node)
    while at != x:
        before = at
        at = int64(world.extents[at].sibling)
    if before < 0:
        _set_first_extent(world, e, node, int64(extent.sibling))
    else:
        world.extents[before].sibling = extent.sibling
    extent.node = ANONYMOUS
    extent.sibling = -1


@compiled
def split(world: World, e: int, x: int, at: int) -> int:
    """Cuts an extent before position `at`; returns the new record of its beginning. `x` keeps the end."""
    extent = world.extents[x]
    beginning = _take_extent(world, e, int64(extent.node), int64(extent.start), at, int64(extent.refs))
    world.extents[beginning].before = extent.before
    world.extents[beginning].sibling = extent.sibling
    extent.before = beginning
    extent.sibling = beginning
    extent.start = at
    if extent.refs == 0:  # free blocks go last one first
        _link_free(world, e, beginning, x)
    return beginning


# -- the free blocks ---------------------------------------------------------------------------------------------------


@compiled
def _link_free(world: World, e: int, x: int, behind: int) -> None:
    """Puts an extent into the list of free blocks, behind another (-1: first)."""
    engine, extent = world.engines[e], world.extents[x]
    if behind < 0:
        following = int64(engine.free_first)
        engine.free_first = x
    else:
        following = int64(world.extents[behind].next)
        world.extents[behind].next = x
    extent.prev = behind
    extent.next = following
    if following < 0:
        engine.free_last = x
    else:
        world.extents[following].prev = x


@compiled
def unlink_free(world: World, e: int, x: int) -> None:
    """Takes an extent out of the list of free blocks."""
    engine, extent = world.engines[e], world.extents[x]
    if extent.prev < 0:
        engine.free_first = extent.next
    else:
        world.extents[extent.prev].next = extent.next
    if extent.next < 0:
        engine.free_last = extent.prev
    else:
        world.extents[extent.next].prev = extent.prev
    extent.next = -1
    extent.prev = -1


@compiled
def free_extent(world: World, e: int, x: int) -> None:
    """Puts an extent that nobody uses at the end of the list of free blocks."""
    _link_free(world, e, x, int64(world.engines[e].free_last))


@compiled
def free_anonymous(world: World, e: int, count: int, at_once: int) -> None:
    """Frees blocks whose content nobody can use: to be taken next (`at_once`), or after all others."""
    if count == 0:
        return
    engine = world.engines[e]
    neighbour = int64(engine.free_first if at_once else engine.free_last)
    if neighbour >= 0 and world.extents[neighbour].node == ANONYMOUS:
        world.extents[neighbour].end += count
        return
    x = _take_extent(world, e, int64(ANONYMOUS), int64(0), count, int64(0))
    _link_free(world, e, x, int64(-1) if at_once else neighbour)


@compiled
def take_free(world: World, e: int, count: int) -> None:
    """Takes blocks off the list of free ones, whatever they hold; the caller has made sure there are as many."""
    left = count
    while left > 0:
        x = int64(world.engines[e].free_first)
        extent = world.extents[x]
        taken = min(left, int64(extent.end) - extent.start)
        extent.end -= taken
        left -= taken
        if extent.end == extent.start:
            unlink_free(world, e, x)
            make_anonymous(world, e, x)
            drop_extent(world, x)


@compiled
def flush(world: World, e: int) -> None:
    """Empties an engine's cache; free blocks are as many as its capacity leaves."""
    engine = world.engines[e]
    x = int64(engine.free_first)
    while x >= 0:
        following = int64(world.extents[x].next)
        make_anonymous(world, e, x)
        drop_extent(world, x)
        x = following
    engine.free_first = -1
    engine.free_last = -1
    free_anonymous(world, e, max(int64(engine.capacity_blocks) - engine.used_blocks, int64(0)), int64(0))
