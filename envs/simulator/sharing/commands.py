"""Commands to a cluster of shared nodes, and reasons of refusal."""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.compiled import compiled, entry
from serving_gym.envs.simulator.sharing.arrays import (
    ALWAYS,
    COMING,
    GONE,
    HELD,
    LOADING,
    NO_CHOICE,
    RESIZING,
    SERVING,
    SharingTables,
    SharingWorld,
)
from serving_gym.envs.simulator.sharing.engine import wait
from serving_gym.envs.simulator.sharing.iterations import is_runnable
from serving_gym.envs.simulator.sharing.manager import (
    can_start,
    can_take,
    fit_pool,
    new_pool,
    replace,
    replaced,
)
from serving_gym.envs.simulator.sharing.memory import (
    begin_load,
    begin_resize,
    begin_unload,
    empty_slot,
    lose,
    node_of,
    pool_blocks,
)
from serving_gym.envs.simulator.sharing.requests import evict, hold, queue

REASONS = (
    "",
    "the request is not in the system",
    "the instance is empty or being unloaded",
    "the instance is of another model than the request",
    "the node has no empty slot",
    "the instance still has requests",
    "the instance is not serving: an operation on it is under way",
    "what is in the KV pool would not fit",
    "the node has no room for an instance of the model",
    "a KV pool must hold a block at least",
    "the request is in that instance already",
    "there is no such action",
    "the instance has no iteration to run on this node",
)
(
    FINE,
    NO_REQUEST,
    NO_INSTANCE,
    OTHER_MODEL,
    NO_SLOT,
    HAS_REQUESTS,
    UNDER_WAY,
    TOO_SMALL,
    NO_ROOM,
    NO_POOL,
    SAME_PLACE,
    NO_ACTION,
    NO_ITERATION,
) = range(len(REASONS))
LOAD, UNLOAD, RESIZE, TO_INSTANCE, TO_NEW, TO_GATEWAY, AWAIT = range(7)  # kinds of `command`


@compiled
def _pool_reason(tables: SharingTables, model: int, kv: int) -> int:
    return FINE if pool_blocks(tables, model, kv) > 0 else NO_POOL


@compiled
def _load(world: SharingWorld, tables: SharingTables, n: int, model: int, kv: int) -> int:
    i = empty_slot(world, tables, n)
    if i < 0:
        return NO_SLOT
    reason = _pool_reason(tables, model, kv)
    if reason == FINE:
        begin_load(world, tables, i, model, kv)
    return reason


@compiled
def _unload(world: SharingWorld, tables: SharingTables, i: int) -> int:
    instance = world.instances[i]
    if instance.status not in (LOADING, SERVING, RESIZING):
        return NO_INSTANCE
    if instance.num_running + instance.num_waiting > 0:
        return HAS_REQUESTS
    if instance.status != SERVING:
        return UNDER_WAY
    begin_unload(world, tables, i)
    return FINE


@compiled
def _resize(world: SharingWorld, tables: SharingTables, i: int, kv: int) -> int:
    instance = world.instances[i]
    if instance.status not in (LOADING, SERVING, RESIZING):
        return NO_INSTANCE
    if instance.status != SERVING:
        return UNDER_WAY
    reason = _pool_reason(tables, instance.model, kv)
    if reason == FINE and pool_blocks(tables, instance.model, kv) < instance.used_blocks:
        reason = TOO_SMALL
    if reason == FINE:
        begin_resize(world, tables, i, kv)
    return reason


@compiled
def _present(world: SharingWorld, r: int) -> bool:
    """Whether a request is in the system."""
    return 0 <= r < len(world.requests) and world.requests[r].phase not in (COMING, GONE)


@compiled
def _to_instance(world: SharingWorld, tables: SharingTables, r: int, i: int) -> int:
    instance = world.instances[i]
    if instance.status not in (LOADING, SERVING, RESIZING):
        return NO_INSTANCE
    if instance.model != tables.model[r]:
        return OTHER_MODEL
    if world.requests[r].instance == i:
        return SAME_PLACE
    evict(world, tables, r)
    queue(world, r, i, False)
    if not world.clock[0].manages:
        fit_pool(world, tables, i)
    return FINE


@compiled
def _to_new(world: SharingWorld, tables: SharingTables, r: int, n: int, kv: int) -> int:
    i = empty_slot(world, tables, n)
    if i < 0:
        return NO_SLOT
    model = tables.model[r]
    reason = _pool_reason(tables, model, kv)
    if reason != FINE:
        return reason
    evict(world, tables, r)
    if begin_load(world, tables, i, model, kv):
        queue(world, r, i, False)
    else:
        lose(world, tables, r)
    return FINE


@compiled
def _replace(world: SharingWorld, tables: SharingTables, r: int, i: int) -> int:
    """Sends a request to a new instance in the place of an idle one of another model."""
    evict(world, tables, r)
    replace(world, tables, i, r)
    queue(world, r, i, False)
    return FINE


@entry
def command(world: SharingWorld, tables: SharingTables, what: int, r: int, where: int, kv: int) -> int:
    """Begins to carry out a command. Returns why not, an index of `REASONS`.

    Args:
        world: The world.
        tables: What things take.
        what: LOAD to AWAIT.
        r: The request, or the model to load.
        where: The instance, or the node; AWAIT: when it is offered again.
        kv: Bytes of the KV pool.
    """
    if what == LOAD:
        return _load(world, tables, where, r, kv)
    if what == UNLOAD:
        return _unload(world, tables, where)
    if what == RESIZE:
        return _resize(world, tables, where, kv)
    if not _present(world, r):
        return NO_REQUEST
    if what == TO_INSTANCE:
        return _to_instance(world, tables, r, where)
    if what == TO_NEW:
        return _to_new(world, tables, r, where, kv)
    if what == TO_GATEWAY:
        if world.requests[r].phase == HELD:
            return SAME_PLACE
        evict(world, tables, r)
        hold(world, r)
        return FINE
    if world.requests[r].phase == HELD:
        wait(world, tables, r, where)
    return FINE


@compiled
def _give(world: SharingWorld, tables: SharingTables, n: int, action: int) -> int:
    """Gives the next iteration of a node to a slot; to none, and shortest headroom decides."""
    node = world.nodes[n]
    node.asked, node.asked_prefill = NO_CHOICE, -1
    if action == len(world.instances) + len(world.nodes):
        return FINE
    if not 0 <= action < len(world.instances) or node_of(tables, action) != n:
        return NO_ITERATION
    if not is_runnable(world, tables, action):
        return NO_ITERATION
    node.asked = action
    return FINE


@compiled
def act(world: SharingWorld, tables: SharingTables, action: int) -> int:
    """Carries out an agent's action at the present event. Returns why not, an index of `REASONS`.

    At PLACEMENT it is a slot (that of an idle instance of another model, which is replaced, included), S + a node, or
    S + N to hold; at ITERATION the slot that runs.
    """
    clock, num_slots = world.clock[0], len(world.instances)
    r = clock.event_request
    if r < 0:
        return _give(world, tables, clock.event_node, action)
    reason = FINE
    if action < 0 or action > num_slots + len(world.nodes):
        reason = NO_ACTION
    elif action < num_slots:
        reason = (
            OTHER_MODEL if world.instances[action].status in (LOADING, SERVING, RESIZING) else NO_INSTANCE
        )
        if world.instances[action].model == tables.model[r] and reason == OTHER_MODEL:
            reason = NO_ROOM
        if can_take(world, tables, action, r):
            reason = _to_instance(world, tables, r, action)
        elif replaced(world, tables, action, r) > 0:
            reason = _replace(world, tables, r, action)
    elif action < num_slots + len(world.nodes):
        n = action - num_slots
        if empty_slot(world, tables, n) < 0:
            reason = NO_SLOT
        elif not can_start(world, tables, n, r):
            reason = NO_ROOM
        else:
            reason = _to_new(world, tables, r, n, new_pool(world, tables, n, tables.model[r], r))
    if world.requests[r].phase == HELD and world.requests[r].offer_ps <= clock.now_ps:
        wait(world, tables, r, ALWAYS)
    return reason
