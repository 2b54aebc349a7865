"""The environment's own memory manager, for policies that only place.

After LLM-Mesh (sections 6.1, 6.2 and 6.4), without what needs a second look at the node: KV pools are sized by the
requests of an instance, each at least as long as the mean answer of its model so far; they grow early and shrink late.
It never allocates what the node does not hold free now.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.compiled import compiled
from serving_gym.envs.simulator.sharing.arrays import (
    LOADING,
    NEVER,
    RESIZING,
    SERVING,
    SharingTables,
    SharingWorld,
)
from serving_gym.envs.simulator.sharing.iterations import is_stuck, missing_blocks, prefill_tokens
from serving_gym.envs.simulator.sharing.memory import (
    begin_replacement,
    begin_resize,
    empty_slot,
    node_of,
    vacate,
)
from serving_gym.envs.simulator.sharing.requests import evict, hold


@compiled
def mean_output(world: SharingWorld, tables: SharingTables, model: int) -> float:
    """Running mean of the answers of a model, tokens; at first that of the training split."""
    parameters = tables.parameters[0]
    count, total = world.outputs[model, 0], world.outputs[model, 1]
    weight = parameters.mean_weight
    return (total + weight * parameters.mean_output) / (count + weight)


@compiled
def _rounded(tables: SharingTables, model: int, tokens: float) -> int:
    """Bytes of the whole blocks that hold some tokens."""
    block_tokens = tables.parameters[0].block_tokens
    blocks = int((tokens + block_tokens - 1e-6) // block_tokens)
    return blocks * block_tokens * tables.token_bytes[model]


@compiled
def required(world: SharingWorld, tables: SharingTables, i: int) -> float:
    """Equation 2 over the requests of an instance that run and wait, tokens: no less than the one that is longest."""
    instance = world.instances[i]
    mean = mean_output(world, tables, instance.model)
    total = 0.0
    for head in (instance.running_head, instance.waiting_head):
        r = head
        while r >= 0:
            total += tables.input_tokens[r] + max(float(world.requests[r].generated + 1), mean)
            r = world.requests[r].next
    return max(total, float(tables.parameters[0].least_tokens))


@compiled
def _free(world: SharingWorld, tables: SharingTables, i: int) -> int:
    """Bytes that the KV pool of an instance could have now, by what its node holds."""
    instance, node = world.instances[i], world.nodes[node_of(tables, i)]
    return node.memory - node.held + instance.kv


@compiled
def new_pool(world: SharingWorld, tables: SharingTables, n: int, model: int, r: int) -> int:
    """KV pool of a new instance for one request, bytes; -1 where the node has no room for it."""
    return _pool_within(world, tables, world.nodes[n].memory - world.nodes[n].held, model, r)


@compiled
def is_idle(world: SharingWorld, tables: SharingTables, i: int) -> bool:
    """Whether an instance serves and has nothing to do."""
    instance = world.instances[i]
    return (
        instance.status == SERVING
        and instance.idle_ps < NEVER
        and world.nodes[node_of(tables, i)].at_work != i
    )


@compiled
def _idle_next(
    world: SharingWorld, tables: SharingTables, i: int, model: int, after_ps: int, after: int
) -> int:
    """Another idle instance of i's node, of another model, that has been idle the longest; -1: there is none.

    Args:
        world: The world.
        tables: What things take.
        i: The instance.
        model: The other model.
        after_ps: Only such count as have been idle since later than this, or as long and have a later slot.
        after: That slot.
    """
    width, found = tables.parameters[0].slots_per_node, -1
    for j in range(i // width * width, (i // width + 1) * width):
        if j == i or world.instances[j].model == model or not is_idle(world, tables, j):
            continue
        since_ps = world.instances[j].idle_ps
        later = since_ps > after_ps or (since_ps == after_ps and j > after)
        if later and (found < 0 or since_ps < world.instances[found].idle_ps):
            found = j
    return found


@compiled
def replaced(world: SharingWorld, tables: SharingTables, i: int, r: int) -> int:
    """How many idle instances a new one for a request takes the place of, an idle one among them; 0: that cannot be.

    Where what that one holds is not enough, others of its node go as well, those that have been idle the longest first.
    """
    model, node = tables.model[r], world.nodes[node_of(tables, i)]
    if not tables.parameters[0].replace_idle or not is_idle(world, tables, i):
        return 0
    if world.instances[i].model == model:
        return 0
    room, number, last_ps, last = node.memory - node.held + world.instances[i].held, 1, -1, -1
    while _pool_within(world, tables, room, model, r) < 0:
        last = _idle_next(world, tables, i, model, last_ps, last)
        if last < 0:
            return 0
        room, number, last_ps = (
            room + world.instances[last].held,
            number + 1,
            world.instances[last].idle_ps,
        )
    return number


@compiled
def replace(world: SharingWorld, tables: SharingTables, i: int, r: int) -> None:
    """Loads a new instance for a request in the slot of an idle one, which is unloaded; see `replaced`."""
    model, n = tables.model[r], node_of(tables, i)
    others = replaced(world, tables, i, r) - 1
    freed = 0
    for _ in range(others):
        j = _idle_next(world, tables, i, model, -1, -1)
        freed += world.instances[j].held
        vacate(world, tables, j)
    room = world.nodes[n].memory - world.nodes[n].held + world.instances[i].held
    begin_replacement(world, tables, i, model, _pool_within(world, tables, room, model, r), freed)


@compiled
def _pool_within(world: SharingWorld, tables: SharingTables, room: int, model: int, r: int) -> int:
    """KV pool of a new instance for one request where it may take some bytes; -1: they are too few."""
    parameters = tables.parameters[0]
    tokens = tables.input_tokens[r] + max(
        float(world.requests[r].generated + 1), mean_output(world, tables, model)
    )
    tokens = max(tokens, float(parameters.least_tokens))
    free = room - tables.weights[model]
    ample = _rounded(tables, model, tokens * (1.0 + parameters.watermark))
    if ample <= free:
        return ample
    bare = _rounded(tables, model, tokens)
    return bare if bare <= free else -1


@compiled
def fit_pool(world: SharingWorld, tables: SharingTables, i: int) -> bool:
    """Grows an instance's pool where it is too small, shrinks it where it is far too large. Returns whether it did."""
    instance = world.instances[i]
    if instance.status != SERVING:
        return False
    need = required(world, tables, i)
    watermark = tables.parameters[0].watermark
    ample = _rounded(tables, instance.model, need * (1.0 + watermark))
    bare = _rounded(tables, instance.model, need)
    free = _free(world, tables, i)
    if instance.kv < bare:
        target = ample if ample <= free else bare
        return target <= free and begin_resize(world, tables, i, target)
    if instance.num_running + instance.num_waiting > 0 and ample * (1.0 + watermark) < instance.kv:
        return begin_resize(world, tables, i, ample)
    return False


@compiled
def fit_node(world: SharingWorld, tables: SharingTables, n: int) -> None:
    """Looks at every instance of a node again: memory has come free, or requests have ended."""
    width = tables.parameters[0].slots_per_node
    for i in range(n * width, (n + 1) * width):
        fit_pool(world, tables, i)


@compiled
def relieve(world: SharingWorld, tables: SharingTables, i: int) -> None:
    """The pool is too small for the next tokens: it grows, or requests with the longest headroom go to the gateway."""
    instance = world.instances[i]
    if fit_pool(world, tables, i) or instance.status != SERVING:
        return
    if is_stuck(world, tables, i):
        r = instance.waiting_head
        while r >= 0:
            following = world.requests[r].next
            evict(world, tables, r)
            hold(world, r)
            world.requests[r].offer_ps = world.clock[0].now_ps + tables.parameters[0].retry_ps
            r = following
        return
    while instance.num_running > 1 and missing_blocks(world, tables, i) > 0:
        r = longest = instance.running_head
        while r >= 0:
            if world.requests[r].deadline_ps > world.requests[longest].deadline_ps:
                longest = r
            r = world.requests[r].next
        evict(world, tables, longest)
        hold(world, longest)


@compiled
def can_take(world: SharingWorld, tables: SharingTables, i: int, r: int) -> bool:
    """Whether an instance may be given a request: it is of its model, and its node could hold the pool it needs."""
    instance = world.instances[i]
    if instance.model != tables.model[r] or instance.status not in (LOADING, SERVING, RESIZING):
        return False
    mean = mean_output(world, tables, instance.model)
    need = required(world, tables, i) + tables.input_tokens[r]
    need += max(float(world.requests[r].generated + 1), mean)
    bare = _rounded(tables, instance.model, need)
    node = world.nodes[node_of(tables, i)]
    return bare <= node.memory - node.held + max(instance.kv, instance.target) or bare <= instance.kv


@compiled
def can_start(world: SharingWorld, tables: SharingTables, n: int, r: int) -> bool:
    """Whether a node has room for an instance with a pool for a request."""
    return new_pool(world, tables, n, tables.model[r], r) > 0


@compiled
def has_place(world: SharingWorld, tables: SharingTables, r: int) -> bool:
    """Whether some instance may be given a request, or some node a new one for it."""
    for i in range(len(world.instances)):
        if can_take(world, tables, i, r) or replaced(world, tables, i, r) > 0:
            return True
    found = False
    for n in range(len(world.nodes)):
        found = found or (empty_slot(world, tables, n) >= 0 and can_start(world, tables, n, r))
    return found


@compiled
def unfinished_tokens(world: SharingWorld, tables: SharingTables, i: int) -> int:
    """Tokens that an instance has still to prefill."""
    total, r = 0, world.instances[i].waiting_head
    while r >= 0:
        total += prefill_tokens(world, tables, r)
        r = world.requests[r].next
    return total
