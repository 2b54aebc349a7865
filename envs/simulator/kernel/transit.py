"""Disaggregated prefill: requests whose KV is on its way from the engine that computed it to one that decodes.

An engine sends the KV of one request after another over its link. Until it is there, the blocks that hold it are not
free; then the request joins the queue of the least loaded engine that decodes, brings the KV along, and is admitted
there when it has blocks for all of it, as vLLM does with a KV connector. The first token comes from the prefill engine.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.blocks import give_back
from serving_gym.envs.simulator.kernel.compiled import compiled, int64
from serving_gym.envs.simulator.kernel.queues import tokens_to_prefill, unlink
from serving_gym.envs.simulator.kernel.state import NEVER, TRANSIT, Tables, World


@compiled
def _set_off(world: World, e: int, slot: int, arrives_ps: int) -> None:
    """Puts a request on the way behind those of its engine that are, all of which arrive before."""
    engine, request = world.engines[e], world.requests[slot]
    request.arrives_ps = arrives_ps
    request.phase = TRANSIT
    request.next = -1
    if engine.first_transit < 0:
        engine.first_transit = slot
        world.due_ps[len(world.engines) + e] = arrives_ps
    else:
        world.requests[engine.last_transit].next = slot
    engine.last_transit = slot


@compiled
def send_off(world: World, tables: Tables, e: int, slot: int, now: int) -> None:
    """Puts a request that has its first token on the way; it is no longer running."""
    engine, request = world.engines[e], world.requests[slot]
    engine.link_free_ps = (
        max(engine.link_free_ps, now) + tables.kinds[engine.kind].transfer_ps * request.computed
    )
    request.chunk = 0
    _set_off(world, e, slot, engine.link_free_ps + tables.kinds[engine.kind].transfer_fixed_ps)


@compiled
def start_load(world: World, tables: Tables, e: int, slot: int, hit: int, until: int, now: int) -> None:
    """Takes a waiting request out of the queue and loads the blocks from `hit` to `until` of its prompt."""
    engine, request = world.engines[e], world.requests[slot]
    unlink(world, e, slot)
    engine.pending_prefill_tokens -= tokens_to_prefill(world, slot)
    engine.host_free_ps = max(engine.host_free_ps, now) + tables.kinds[engine.kind].load_ps * (until - hit)
    engine.loaded_blocks += until - hit
    request.loaded = until
    request.loads = 1
    _set_off(world, e, slot, int64(engine.host_free_ps))


@compiled
def land(world: World, e: int) -> int:
    """Ends the transit of an engine's first request on the way; returns its slot."""
    engine = world.engines[e]
    slot = int64(engine.first_transit)
    following = int64(world.requests[slot].next)
    engine.first_transit = following
    if following < 0:
        engine.last_transit = -1
        world.due_ps[len(world.engines) + e] = NEVER
    else:
        world.due_ps[len(world.engines) + e] = world.requests[following].arrives_ps
    return slot


@compiled
def take_off(world: World, tables: Tables, e: int) -> int:
    """Ends the transit of an engine's first request on the way and frees its blocks there; returns its slot.

    One that is loaded from the host has none, and is to be loaded anew.
    """
    slot = land(world, e)
    if world.requests[slot].loads:
        world.requests[slot].loads = world.requests[slot].loaded = 0
    else:
        give_back(world, tables, e, slot, int64(world.requests[slot].computed), int64(1), int64(0))
    return slot
