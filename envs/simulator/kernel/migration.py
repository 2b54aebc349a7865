"""Requests that move from one engine to another: out of a batch at the end of an iteration, into the other's batch.

A request that is to migrate is marked; the iteration in flight ends the engine's run and takes it off the running list
(`engine.let_migrating_go`). It then belongs to no list, has its blocks and its place in the batch still, and comes back
or joins the batch of the other engine, where blocks and a place have been kept for it. When which KV is copied is the
control plane's affair. All of these are called between two `advance`s, when engines have caught up.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.blocks import cache_chunk, free_blocks, give_back, take_blocks
from serving_gym.envs.simulator.kernel.compiled import compiled, entry, int64
from serving_gym.envs.simulator.kernel.engine import enter_decode, let_migrating_go
from serving_gym.envs.simulator.kernel.queues import enqueue, tokens_to_prefill, unlink
from serving_gym.envs.simulator.kernel.runs import interrupt, kick, show_load
from serving_gym.envs.simulator.kernel.state import DECODE, Tables, World


@compiled
def _look_again(world: World, tables: Tables, e: int) -> None:
    """Lets an engine see that something has changed for it: it schedules anew after the iteration in flight, or now."""
    interrupt(world, e)
    show_load(world, tables, e)
    kick(world, e)


@entry
def keep(world: World, tables: Tables, e: int, blocks: int, places: int) -> None:
    """Keeps KV blocks and places in the batch for a request that is to join an engine; negative numbers let go of them.

    The caller has made sure there are as many.
    """
    world.engines[e].num_kept += places
    if blocks >= 0:
        take_blocks(world, e, blocks)
    else:
        free_blocks(world, e, -blocks)
    _look_again(world, tables, e)


@entry
def ask_to_leave(world: World, tables: Tables, slot: int, target: int) -> None:
    """Marks a decoding request as one that leaves the batch with the iteration in flight, or now if there is none."""
    request = world.requests[slot]
    e = int64(request.engine)
    request.target = target + 1
    world.engines[e].num_leaving += 1
    if world.engines[e].step_end_ps < 0:
        let_migrating_go(world, tables, e)
    _look_again(world, tables, e)


@compiled
def _name_those_in_flight(world: World, e: int) -> None:
    """Writes down who gets a token from the iteration in flight, as someone joins the batch who does not."""
    engine = world.engines[e]
    if engine.walked == 0:
        for i in range(engine.num_running):
            request = world.requests[world.running[e, i]]
            if request.phase == DECODE:
                request.chunk = 1
        engine.walked = 1


@entry
def join(world: World, tables: Tables, slot: int, e: int) -> None:
    """Puts a request that has left a batch into that of an engine which has its KV, last in order.

    That is where it was, or another that has kept blocks and a place for it. It gets tokens from the next iteration on.
    """
    engine, request = world.engines[e], world.requests[slot]
    left = int64(request.engine)
    world.engines[left].num_kept -= 1
    if e != left:
        give_back(world, tables, left, slot, int64(request.computed), int64(1), int64(0))
        _look_again(world, tables, left)
        engine.num_kept -= 1
        request.engine = e
    _name_those_in_flight(world, e)
    world.running[e, engine.num_running] = slot
    engine.num_running += 1
    engine.prefill_context += request.computed
    cache_chunk(world, tables, e, slot, int64(request.computed))
    enter_decode(world, tables, e, int64(engine.num_running) - 1)
    request.settled = 1
    _look_again(world, tables, e)


@entry
def requeue(world: World, tables: Tables, slot: int, e: int) -> None:
    """Moves a waiting request from one engine's queue to another's; what it has on the host stays behind."""
    left = int64(world.requests[slot].engine)
    unlink(world, left, slot)
    world.engines[left].pending_prefill_tokens -= tokens_to_prefill(world, slot)
    world.requests[slot].loaded = world.requests[slot].computed = 0
    enqueue(world, e, slot)
    _look_again(world, tables, left)
    _look_again(world, tables, e)
