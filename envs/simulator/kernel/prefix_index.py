"""What a router believes that engines have cached: where it sent which prefix, and when.

As routers know it that are told nothing by their engines: a prompt that was sent to a place is taken to be cached there
for a time (Dynamo's approximate index: 120 s), whatever the engine has evicted since.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.blocks import chain_of, find_hit
from serving_gym.envs.simulator.kernel.compiled import compiled, int64
from serving_gym.envs.simulator.kernel.desk import Desk
from serving_gym.envs.simulator.kernel.state import Tables, World


@compiled
def note_sent(world: World, tables: Tables, desk: Desk, slot: int, e: int) -> None:
    """Notes that the request on the desk is sent to a place."""
    if desk.sent_index.shape[1] == 0:
        return
    now, begin = int64(world.cluster[0].now_ps), int64(0)
    full = int64(world.requests[slot].prompt) // tables.kinds[world.engines[e].kind].block_size
    first, last = chain_of(world, tables, e, slot)
    for row in range(first, last):
        entry, end = desk.sent_index[e, world.chains[row].node], min(int64(world.chains[row].end), full)
        if end <= begin:
            return
        known = entry.end if now <= entry.until_ps else 0
        entry.end = max(int64(known), end)
        entry.until_ps = now + desk.desk[0].index_ttl_ps
        begin = end


@compiled
def expected_hit(world: World, tables: Tables, desk: Desk, e: int, slot: int) -> int:
    """Blocks of a request's beginning that the router expects a place to have; what it has, if there is no index."""
    if desk.sent_index.shape[1] == 0:
        return int64(find_hit(world, tables, e, slot)[0])
    now, reached = int64(world.cluster[0].now_ps), int64(0)
    limit = (int64(world.requests[slot].prompt) - 1) // tables.kinds[world.engines[e].kind].block_size
    first, last = chain_of(world, tables, e, slot)
    for row in range(first, last):
        entry, end = desk.sent_index[e, world.chains[row].node], min(int64(world.chains[row].end), limit)
        if now > entry.until_ps or entry.end <= reached:
            break
        reached = min(end, int64(entry.end))
        if reached < end:
            break
    return reached
