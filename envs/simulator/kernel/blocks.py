"""KV blocks of requests: taking them, giving them back, and finding those that hold a prompt's beginning already.

Without prefix caching an engine only counts its used blocks. With it, free blocks keep what they hold until they are
taken again, least recently freed first, and a request that is admitted takes over the blocks of the longest cached
beginning of its tokens, all but the last of which may come from the cache. As in vLLM a block is cached as soon as the
tokens that fill it are scheduled, equal blocks are not merged, and of these the one that was cached first is hit.

A running request holds extents for the first `held_blocks` of its blocks: those that it hit, and those of shared
prefixes. Its other blocks are its own, and a number.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.compiled import compiled, entry, int64
from serving_gym.envs.simulator.kernel.extents import (
    add_extent,
    drop_extent,
    first_extent,
    flush,
    free_anonymous,
    free_extent,
    last_extent,
    make_anonymous,
    own_node,
    split,
    take_free,
    unlink_free,
)
from serving_gym.envs.simulator.kernel.host_tier import flush_host, reach, store
from serving_gym.envs.simulator.kernel.state import ANONYMOUS, NEVER, Tables, World

__all__ = [
    "blocks_for",
    "cache_chunk",
    "chain_of",
    "find_hit",
    "find_on_host",
    "flush_cache",
    "forget",
    "free_blocks",
    "give_back",
    "start_sharing",
    "stop_sharing",
    "take_blocks",
    "take_hit",
]


@compiled
def blocks_for(tokens: int, block_size: int) -> int:
    """KV blocks that hold `tokens` tokens."""
    return (tokens + block_size - 1) // block_size


@compiled
def take_blocks(world: World, e: int, count: int) -> None:
    """Takes free blocks; the caller has made sure there are as many."""
    world.engines[e].used_blocks += count
    if world.cluster[0].prefix_caching and count > 0:
        take_free(world, e, count)


@compiled
def free_blocks(world: World, e: int, count: int) -> None:
    """Gives back blocks in which nothing has been computed."""
    world.engines[e].used_blocks -= count
    if world.cluster[0].prefix_caching:
        free_anonymous(world, e, count, int64(1))


@entry
def flush_cache(world: World, e: int) -> None:
    """Forgets what an engine's free blocks hold, and counts them anew."""
    if world.cluster[0].prefix_caching:
        flush(world, e)
        flush_host(world, e)


# -- a request's path through the prefix tree --------------------------------------------------------------------------


@compiled
def chain_of(world: World, tables: Tables, e: int, slot: int) -> tuple[int, int]:
    """First row of a request's chain, and the one behind its last."""
    rank = tables.kinds[world.engines[e].kind].block_rank
    index = world.requests[slot].index
    return int64(world.chain_start[rank, index]), int64(world.chain_start[rank, index + 1])


@compiled
def _chain_blocks(world: World, first: int, last: int) -> int:
    """Blocks of a chain."""
    return int64(world.chains[last - 1].end) if last > first else int64(0)


@compiled
def _hold(world: World, slot: int, x: int, start: int) -> None:
    """Adds an extent and what was split off its beginning, back to `start`, to those a request holds."""
    cluster, request = world.cluster[0], world.requests[slot]
    entry = int64(cluster.first_hold)
    cluster.first_hold = world.holds[entry].next
    cluster.num_free_holds -= 1
    world.holds[entry].extent = x
    world.holds[entry].start = start
    world.holds[entry].next = request.holds
    request.holds = entry


# -- hits --------------------------------------------------------------------------------------------------------------


@compiled
def _copy_at(world: World, e: int, node: int, position: int) -> tuple[int, int]:
    """The first cached copy of a node's block: its extent (-1 if none) and how far it is the first."""
    x = first_extent(world, e, node)
    until = NEVER
    while x >= 0:
        extent = world.extents[x]
        if extent.engine == e and extent.start <= position and position < extent.end:
            return x, min(until, int64(extent.end))
        if extent.engine == e and extent.start > position:
            until = min(until, int64(extent.start))
        x = int64(extent.sibling)
    return int64(-1), position


@compiled
def _touch(world: World, e: int, x: int, start: int, end: int) -> int:
    """Adds a user to positions of an extent; returns the extent that has exactly these."""
    if end < world.extents[x].end:
        x = split(world, e, x, end)
    if start > world.extents[x].start:
        split(world, e, x, start)
    extent = world.extents[x]
    if extent.refs == 0:
        unlink_free(world, e, x)
        world.engines[e].used_blocks += extent.end - extent.start
    extent.refs += 1
    return x


@compiled
def _hit_node(world: World, e: int, slot: int, node: int, start: int, end: int, take: int) -> tuple[int, int]:
    """Cached blocks of a node from `start` on; returns where they end and how many of them are free."""
    position, free = start, int64(0)
    while position < end:
        x, until = _copy_at(world, e, node, position)
        if x < 0:
            break
        until = min(until, end)
        if world.extents[x].refs == 0:
            free += until - position
        if take:
            x = _touch(world, e, x, position, until)
            _hold(world, slot, x, position)
        position = until
    return position, free


@compiled
def _hit(world: World, tables: Tables, e: int, slot: int, take: int) -> tuple[int, int]:
    """Length of the longest cached beginning of a waiting request, blocks, and how many of these are free."""
    request = world.requests[slot]
    limit = (int64(request.prompt) + request.generated - 1) // tables.kinds[world.engines[e].kind].block_size
    first, last = chain_of(world, tables, e, slot)
    position, free = int64(0), int64(0)
    for row in range(first, last):
        end = min(int64(world.chains[row].end), limit)
        position, freed = _hit_node(world, e, slot, int64(world.chains[row].node), position, end, take)
        free += freed
        if position < end:
            return position, free
    if position < limit and request.own_extents >= 0 and position >= _chain_blocks(world, first, last):
        position, freed = _hit_node(world, e, slot, own_node(slot), position, limit, take)
        free += freed
    return position, free


@compiled
def find_hit(world: World, tables: Tables, e: int, slot: int) -> tuple[int, int]:
    """Length of the longest cached beginning of a waiting request, blocks, and how many of these are free."""
    if world.cluster[0].prefix_caching:
        return _hit(world, tables, e, slot, int64(0))
    return int64(0), int64(0)


@compiled
def find_on_host(world: World, tables: Tables, e: int, slot: int, hit: int) -> int:
    """Blocks of a waiting request's beginning that the GPU, which has `hit` of them, and then the host have."""
    request = world.requests[slot]
    limit = (int64(request.prompt) + request.generated - 1) // tables.kinds[world.engines[e].kind].block_size
    first, last = chain_of(world, tables, e, slot)
    return reach(world, e, first, last, hit, limit)


@compiled
def take_hit(world: World, tables: Tables, e: int, slot: int) -> None:
    """Makes a request that is being admitted a user of the longest cached beginning of its tokens."""
    world.requests[slot].held_blocks = _hit(world, tables, e, slot, int64(1))[0]


# -- caching and giving back -------------------------------------------------------------------------------------------


@compiled
def _cache_shared(world: World, e: int, slot: int, first: int, last: int, full: int) -> None:
    """Caches a running request's full blocks of shared prefixes, in the node's last extent if that is its own."""
    request = world.requests[slot]
    for row in range(first, last):
        node, end = int64(world.chains[row].node), min(int64(world.chains[row].end), full)
        start = int64(request.held_blocks)
        if start >= end:
            continue
        x = last_extent(world, e, node)
        extent = world.extents[max(x, int64(0))]
        latest = int64(request.holds)
        mine = x >= 0 and latest >= 0 and world.holds[latest].extent == x
        if mine and extent.refs == 1 and extent.end == start:
            extent.end = end
        else:
            x = add_extent(world, e, node, start, end, int64(1))
            _hold(world, slot, x, start)
        request.held_blocks = end


@compiled
def cache_chunk(world: World, tables: Tables, e: int, slot: int, tokens: int) -> None:
    """Caches the blocks that a request's first `tokens` tokens fill, as far as others may share them."""
    if world.cluster[0].longest_chain == 0:
        return
    first, last = chain_of(world, tables, e, slot)
    request = world.requests[slot]
    if request.held_blocks < _chain_blocks(world, first, last):
        full = tokens // tables.kinds[world.engines[e].kind].block_size
        _cache_shared(world, e, slot, first, last, full)
        store(world, e, first, last, full)
    if request.sharing and request.held_blocks >= _chain_blocks(world, first, last):
        stop_sharing(world, e, slot)


@compiled
def start_sharing(world: World, tables: Tables, e: int, slot: int) -> None:
    """Counts a request that begins to decode among those whose blocks others may hit, if any are named."""
    if world.cluster[0].longest_chain == 0:
        return
    first, last = chain_of(world, tables, e, slot)
    if world.requests[slot].held_blocks < _chain_blocks(world, first, last):
        world.requests[slot].sharing = 1
        world.engines[e].num_sharing += 1
        world.cluster[0].num_sharing += 1


@compiled
def stop_sharing(world: World, e: int, slot: int) -> None:
    """Forgets a request as one whose blocks others may hit."""
    if world.requests[slot].sharing:
        world.requests[slot].sharing = 0
        world.engines[e].num_sharing -= 1
        world.cluster[0].num_sharing -= 1


@compiled
def _release(world: World, e: int, x: int, goes_on: int) -> None:
    """Takes a user from an extent."""
    extent = world.extents[x]
    extent.refs -= 1
    if extent.refs > 0:
        return
    size = int64(extent.end) - extent.start
    world.engines[e].used_blocks -= size
    if extent.node < ANONYMOUS and not goes_on:
        make_anonymous(world, e, x)
        drop_extent(world, x)
        free_anonymous(world, e, size, int64(0))
    else:
        free_extent(world, e, x)


@compiled
def _release_held(world: World, e: int, slot: int, goes_on: int) -> None:
    """Takes a request from the users of all extents it holds, last blocks first."""
    cluster, request = world.cluster[0], world.requests[slot]
    entry = int64(request.holds)
    while entry >= 0:
        x, start = int64(world.holds[entry].extent), int64(world.holds[entry].start)
        more = True
        while more:
            more = world.extents[x].start > start
            earlier = int64(world.extents[x].before)
            _release(world, e, x, goes_on)
            x = earlier
        following = int64(world.holds[entry].next)
        world.holds[entry].next = cluster.first_hold
        cluster.first_hold = entry
        cluster.num_free_holds += 1
        entry = following
    request.holds = -1
    request.held_blocks = 0


@compiled
def _free_shared(world: World, e: int, start: int, end: int, first: int, last: int) -> None:
    """Caches and frees blocks of a request's shared prefix that it never shared while it ran, last ones first."""
    for row in range(last - 1, first - 1, -1):
        begin = int64(world.chains[row - 1].end) if row > first else int64(0)
        low, high = max(start, begin), min(end, int64(world.chains[row].end))
        if low < high:
            x = add_extent(world, e, int64(world.chains[row].node), low, high, int64(0))
            free_extent(world, e, x)


@compiled
def give_back(
    world: World, tables: Tables, e: int, slot: int, tokens: int, goes_on: int, unknown: int
) -> None:
    """Gives back the blocks of a running request whose KV holds `tokens` tokens.

    `goes_on` says that the request is not over: it may come back to this engine and find its own blocks again. The last
    `unknown` tokens are not known yet: a block that they fill is not cached.
    """
    block_size = tables.kinds[world.engines[e].kind].block_size
    total = blocks_for(tokens, block_size)
    request = world.requests[slot]
    held = int64(request.held_blocks)
    world.engines[e].used_blocks -= total - held
    if not world.cluster[0].prefix_caching:
        return
    full = (tokens - unknown) // block_size
    first, last = chain_of(world, tables, e, slot)
    shared = max(min(full, _chain_blocks(world, first, last)), held)
    free_anonymous(world, e, total - full, int64(1))
    if goes_on and full > shared:
        free_extent(world, e, add_extent(world, e, own_node(slot), shared, full, int64(0)))
    else:
        free_anonymous(world, e, full - shared, int64(0))
    _free_shared(world, e, held, shared, first, last)
    store(world, e, first, last, shared)
    _release_held(world, e, slot, goes_on)


@compiled
def forget(world: World, slot: int) -> None:
    """Forgets whose the blocks are that a request has left in caches: it is over, and not coming back for them."""
    while world.requests[slot].own_extents >= 0:
        x = int64(world.requests[slot].own_extents)
        make_anonymous(world, int64(world.extents[x].engine), x)
