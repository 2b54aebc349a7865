"""Operations on a node's memory: loads, resizes, unloads, and what comes of an allocation that does not fit.

While an operation is under way, its instance holds the larger of what it had and will have: a growth takes its new
blocks as it begins, a shrink gives its old ones back as it ends. An allocation beyond the node's memory fails, and its
instance with it.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.compiled import compiled
from serving_gym.envs.simulator.sharing.arrays import (
    EMPTY,
    LOADING,
    NEVER,
    RESIZING,
    SERVING,
    UNLOADING,
    SharingTables,
    SharingWorld,
)
from serving_gym.envs.simulator.sharing.requests import book_loss, hold, take_out

_FS_PER_PS = 1000


@compiled
def node_of(tables: SharingTables, i: int) -> int:
    """Node of a slot."""
    return i // tables.parameters[0].slots_per_node


@compiled
def empty_slot(world: SharingWorld, tables: SharingTables, n: int) -> int:
    """The first empty slot of a node; -1: none."""
    width = tables.parameters[0].slots_per_node
    for i in range(n * width, (n + 1) * width):
        if world.instances[i].status == EMPTY:
            return i
    return -1


@compiled
def pool_blocks(tables: SharingTables, model: int, kv: int) -> int:
    """Whole KV blocks in a pool of some bytes."""
    return kv // (tables.token_bytes[model] * tables.parameters[0].block_tokens)


@compiled
def resize_ps(tables: SharingTables, kind: int, old: int, new: int) -> int:
    """How long a resize takes on a kind of node (`calibration.transitions.kv_resize_s`)."""
    copied, created = min(old, new), max(new - old, 0)
    return int((copied * tables.resize_fs[kind, 0] + created * tables.resize_fs[kind, 1]) / _FS_PER_PS + 0.5)


@compiled
def _hold_memory(world: SharingWorld, tables: SharingTables, i: int, held: int) -> None:
    """Changes what an instance holds of its node."""
    instance, node = world.instances[i], world.nodes[node_of(tables, i)]
    node.held += held - instance.held
    instance.held = held


@compiled
def _end_iteration(world: SharingWorld, n: int) -> None:
    """Breaks off what a node computes."""
    node, now = world.nodes[n], world.clock[0].now_ps
    node.busy_ps += now - node.begun_ps
    node.at_work = node.prefilling = -1
    node.due_ps = NEVER


@compiled
def vacate(world: SharingWorld, tables: SharingTables, i: int) -> None:
    """Empties a slot without requests."""
    instance, node, now = world.instances[i], world.nodes[node_of(tables, i)], world.clock[0].now_ps
    _hold_memory(world, tables, i, 0)
    instance.status, instance.model = EMPTY, -1
    instance.weights = instance.kv = instance.target = instance.pool_blocks = 0
    instance.due_ps = instance.idle_ps = NEVER
    instance.finished = instance.shortage_ps = 0
    node.num_instances -= 1
    if node.num_instances == 0:
        node.used_ps += now - node.used_since_ps
        node.used_since_ps = NEVER
        world.releases[len(world.releases) - 1] += 1


@compiled
def lose(world: SharingWorld, tables: SharingTables, r: int) -> None:
    """A request loses its instance to an allocation that failed: it fails, or waits at the gateway."""
    if tables.parameters[0].restart_on_oom:
        world.requests[r].evictions += 1
        hold(world, r)
    else:
        book_loss(world, tables, r, False)


@compiled
def _run_out_of_memory(world: SharingWorld, tables: SharingTables, i: int) -> None:
    """An instance dies of its allocation, and its requests with it."""
    instance, n = world.instances[i], node_of(tables, i)
    world.clock[0].num_ooms += 1
    if world.nodes[n].at_work == i:
        _end_iteration(world, n)
    while instance.running_head >= 0:
        r = instance.running_head
        take_out(world, tables, r)
        lose(world, tables, r)
    while instance.waiting_head >= 0:
        r = instance.waiting_head
        take_out(world, tables, r)
        lose(world, tables, r)
    vacate(world, tables, i)


@compiled
def begin_load(world: SharingWorld, tables: SharingTables, i: int, model: int, kv: int) -> bool:
    """Starts an instance in an empty slot. Returns False where its memory is not there: it is dead at once."""
    n, now = node_of(tables, i), world.clock[0].now_ps
    instance, node = world.instances[i], world.nodes[n]
    if node.held + tables.weights[model] + kv > node.memory:
        world.clock[0].num_ooms += 1
        return False
    if node.num_instances == 0:
        node.used_since_ps = now
    node.num_instances += 1
    world.releases[model] += 1
    instance.status, instance.model = LOADING, model
    instance.weights, instance.kv, instance.target = tables.weights[model], 0, kv
    instance.pool_blocks = instance.used_blocks = instance.context_tokens = 0
    instance.due_ps = now + tables.load_ps[node.kind, tables.size[model]]
    instance.idle_ps = NEVER
    instance.finished = instance.operated = instance.shortage_ps = 0
    _hold_memory(world, tables, i, tables.weights[model] + kv)
    return True


@compiled
def begin_replacement(
    world: SharingWorld, tables: SharingTables, i: int, model: int, kv: int, freed: int
) -> None:
    """Unloads an idle instance and then loads one of another model in its slot, for which there must be room.

    It holds the larger of what it and those that go for it take until it is done.

    Args:
        world: The world.
        tables: What things take.
        i: The slot.
        model: What is loaded.
        kv: Bytes of its KV pool.
        freed: Bytes of other instances that have just been vacated for it.
    """
    instance, parameters = world.instances[i], tables.parameters[0]
    held = instance.held + freed
    vacate(world, tables, i)
    begin_load(world, tables, i, model, kv)
    instance.due_ps += parameters.unload_ps
    _hold_memory(world, tables, i, max(held, instance.held))


@compiled
def _begins_at(world: SharingWorld, tables: SharingTables, i: int) -> int:
    """When an operation on an instance can begin: an iteration of it that is under way ends first."""
    node, now = world.nodes[node_of(tables, i)], world.clock[0].now_ps
    return node.due_ps if node.at_work == i else now


@compiled
def begin_resize(world: SharingWorld, tables: SharingTables, i: int, kv: int) -> bool:
    """Starts to resize the KV pool of a serving instance. Returns False where it died of it."""
    instance, node = world.instances[i], world.nodes[node_of(tables, i)]
    held = instance.weights + max(instance.kv, kv)
    if node.held - instance.held + held > node.memory:
        _run_out_of_memory(world, tables, i)
        return False
    instance.status, instance.target, instance.idle_ps = RESIZING, kv, NEVER
    kind = world.nodes[node_of(tables, i)].kind
    instance.due_ps = _begins_at(world, tables, i) + resize_ps(tables, kind, instance.kv, kv)
    _hold_memory(world, tables, i, held)
    return True


@compiled
def begin_unload(world: SharingWorld, tables: SharingTables, i: int) -> None:
    """Starts to unload an instance without requests."""
    instance = world.instances[i]
    instance.status, instance.idle_ps = UNLOADING, NEVER
    instance.due_ps = _begins_at(world, tables, i) + tables.parameters[0].unload_ps


@compiled
def end_operation(world: SharingWorld, tables: SharingTables, i: int) -> None:
    """An operation is done."""
    instance = world.instances[i]
    instance.operated = 1
    instance.due_ps = NEVER
    if instance.status == UNLOADING:
        vacate(world, tables, i)
        return
    instance.kv, instance.status = instance.target, SERVING
    instance.shortage_ps = 0
    instance.pool_blocks = pool_blocks(tables, instance.model, instance.kv)
    _hold_memory(world, tables, i, instance.weights + instance.kv)
    if instance.num_running + instance.num_waiting == 0:
        instance.idle_ps = world.clock[0].now_ps
