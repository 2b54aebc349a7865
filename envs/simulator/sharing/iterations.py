"""Iterations: which instance of a node has the next one, how long it takes, and what it brings.

An iteration prefills one request, whole, or decodes one token of every running request of an instance.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.compiled import compiled
from serving_gym.envs.simulator.sharing.arrays import (
    ASK,
    EXCLUSIVE,
    NEVER,
    NOT_ASKED,
    ROUND_ROBIN,
    SERVING,
    SHORTEST_HEADROOM,
    SharingTables,
    SharingWorld,
)
from serving_gym.envs.simulator.sharing.memory import node_of
from serving_gym.envs.simulator.sharing.requests import (
    admit,
    blocks_of,
    book_finish,
    book_first_token,
    evict,
    queue,
    take_out,
)


@compiled
def prefill_tokens(world: SharingWorld, tables: SharingTables, r: int) -> int:
    """Tokens that a request's prefill computes: its prompt, and what it had generated before it was evicted."""
    return tables.input_tokens[r] + world.requests[r].generated


@compiled
def fits(world: SharingWorld, tables: SharingTables, i: int, r: int) -> bool:
    """Whether a waiting request can be prefilled: with its next token it fits the pool, and there is a place."""
    instance, parameters = world.instances[i], tables.parameters[0]
    needed = blocks_of(prefill_tokens(world, tables, r) + 1, parameters.block_tokens)
    return (
        instance.used_blocks + needed <= instance.pool_blocks
        and instance.num_running < parameters.max_running
    )


@compiled
def first_waiting(world: SharingWorld, i: int, by_headroom: bool) -> int:
    """The request that an instance would prefill next: the most urgent, or the first of its queue; -1: none."""
    r = world.instances[i].waiting_head
    if not by_headroom or r < 0:
        return r
    best = r
    while r >= 0:
        if world.requests[r].deadline_ps < world.requests[best].deadline_ps:
            best = r
        r = world.requests[r].next
    return best


@compiled
def to_prefill(world: SharingWorld, tables: SharingTables, i: int, by_headroom: bool) -> int:
    """The request that an instance can prefill next; -1: none."""
    if world.instances[i].status != SERVING:
        return -1
    r = first_waiting(world, i, by_headroom)
    return r if r >= 0 and fits(world, tables, i, r) else -1


@compiled
def headroom_rules(world: SharingWorld) -> bool:
    """Whether an instance prefills the most urgent request that waits, rather than the first of its queue."""
    return world.clock[0].scheduler in (SHORTEST_HEADROOM, ASK)


@compiled
def can_decode(world: SharingWorld, i: int) -> bool:
    """Whether an instance has tokens to decode, room for them or not."""
    return world.instances[i].status == SERVING and world.instances[i].num_running > 0


@compiled
def is_runnable(world: SharingWorld, tables: SharingTables, i: int) -> bool:
    """Whether an instance has an iteration to run."""
    return can_decode(world, i) or to_prefill(world, tables, i, headroom_rules(world)) >= 0


@compiled
def missing_blocks(world: SharingWorld, tables: SharingTables, i: int) -> int:
    """Blocks that the next tokens of the running requests need beyond the pool; 0 or less: they fit."""
    instance, block_tokens = world.instances[i], tables.parameters[0].block_tokens
    new = 0
    r = instance.running_head
    while r >= 0:
        new += prefill_tokens(world, tables, r) % block_tokens == 0
        r = world.requests[r].next
    return instance.used_blocks + new - instance.pool_blocks


@compiled
def is_stuck(world: SharingWorld, tables: SharingTables, i: int) -> bool:
    """Whether an instance runs nothing and has no room for the request that it would prefill next."""
    instance = world.instances[i]
    if instance.status != SERVING or instance.num_running > 0 or instance.num_waiting == 0:
        return False
    return to_prefill(world, tables, i, headroom_rules(world)) < 0


@compiled
def recompute_last(world: SharingWorld, tables: SharingTables, i: int) -> None:
    """Makes room as vLLM does: what was admitted last goes to the front of the queue and is computed again."""
    while world.instances[i].num_running > 0 and missing_blocks(world, tables, i) > 0:
        r = world.instances[i].running_tail
        evict(world, tables, r)
        queue(world, r, i, True)


@compiled
def _urgency(world: SharingWorld, tables: SharingTables, i: int) -> tuple[int, int]:
    """Least deadline of what an instance can run, and the request to prefill, or -1 to decode. NEVER: nothing."""
    deadline, chosen = NEVER, -1
    if can_decode(world, i):
        r = world.instances[i].running_head
        while r >= 0:
            deadline = min(deadline, world.requests[r].deadline_ps)
            r = world.requests[r].next
    r = to_prefill(world, tables, i, True)
    if r >= 0 and world.requests[r].deadline_ps < deadline:
        deadline, chosen = world.requests[r].deadline_ps, r
    return deadline, chosen


@compiled
def _oldest_ps(world: SharingWorld, tables: SharingTables, i: int) -> int:
    """Earliest arrival among the requests of an instance."""
    earliest = NEVER
    for head in (world.instances[i].running_head, world.instances[i].waiting_head):
        r = head
        while r >= 0:
            earliest = min(earliest, tables.arrival_ps[r])
            r = world.requests[r].next
    return earliest


@compiled
def choose(world: SharingWorld, tables: SharingTables, n: int, scheduler: int) -> tuple[int, int]:
    """Slot of a node that has the next iteration, and the request to prefill, or -1 to decode; slot -1: none."""
    width, node = tables.parameters[0].slots_per_node, world.nodes[n]
    first, best, chosen = n * width, -1, -1
    if scheduler == SHORTEST_HEADROOM:
        least = NEVER
        for i in range(first, first + width):
            deadline, r = _urgency(world, tables, i)
            if deadline < least:
                least, best, chosen = deadline, i, r
        return best, chosen
    if scheduler == EXCLUSIVE and node.last >= 0 and is_runnable(world, tables, node.last):
        return node.last, to_prefill(world, tables, node.last, False)
    if scheduler == ROUND_ROBIN:
        start = node.last - first + 1 if node.last >= 0 else 0
        for k in range(width):
            i = first + (start + k) % width
            if is_runnable(world, tables, i):
                return i, to_prefill(world, tables, i, False)
        return -1, -1
    least = NEVER
    for i in range(first, first + width):
        if is_runnable(world, tables, i):
            oldest = _oldest_ps(world, tables, i)
            if oldest < least:
                least, best = oldest, i
    return best, to_prefill(world, tables, best, False) if best >= 0 else -1


@compiled
def chosen_by_policy(world: SharingWorld, tables: SharingTables, n: int) -> tuple[int, int]:
    """As `choose`, by what the policy has said; what cannot run is left to shortest headroom."""
    node = world.nodes[n]
    i, prefill = node.asked, node.asked_prefill
    node.asked = NOT_ASKED
    if i < 0 or not is_runnable(world, tables, i):
        return choose(world, tables, n, SHORTEST_HEADROOM)
    r = to_prefill(world, tables, i, True) if prefill != 0 else -1
    if r < 0 and not can_decode(world, i):
        r = to_prefill(world, tables, i, True)
    return i, r


@compiled
def num_runnable(world: SharingWorld, tables: SharingTables, n: int) -> int:
    """Instances of a node that have an iteration to run."""
    width, found = tables.parameters[0].slots_per_node, 0
    for i in range(n * width, (n + 1) * width):
        found += is_runnable(world, tables, i)
    return found


@compiled
def begin_iteration(world: SharingWorld, tables: SharingTables, i: int, r: int) -> None:
    """Gives an instance its node: to prefill a request, or (-1) to decode."""
    n, now = node_of(tables, i), world.clock[0].now_ps
    node, instance = world.nodes[n], world.instances[i]
    kind, size = node.kind, tables.size[instance.model]
    if r >= 0:
        duration = tables.prefill_ps[kind, size, prefill_tokens(world, tables, r)]
        if world.requests[r].first_scheduled_ps < 0:
            world.requests[r].first_scheduled_ps = now
    else:
        duration = tables.decode_ps[kind, size, instance.num_running]
        duration += tables.context_ps[kind, size] * instance.context_tokens
    duration = int(duration * tables.time_factor[kind] + 0.5)
    node.at_work = node.last = i
    node.prefilling, node.decodes = r, r < 0
    node.begun_ps, node.due_ps = now, now + duration


@compiled
def _gains_token(world: SharingWorld, tables: SharingTables, r: int) -> None:
    """A running request has one token more; at its last it is done."""
    request = world.requests[r]
    i, block_tokens = request.instance, tables.parameters[0].block_tokens
    instance = world.instances[i]
    instance.used_blocks += prefill_tokens(world, tables, r) % block_tokens == 0
    instance.context_tokens += 1
    request.generated += 1
    request.deadline_ps += tables.tpot_ps[r]
    if request.first_token_ps < 0:
        book_first_token(world, tables, r)
    if request.generated == tables.output_tokens[r]:
        take_out(world, tables, r)
        instance.finished = 1
        book_finish(world, tables, r)


@compiled
def end_iteration(world: SharingWorld, tables: SharingTables, n: int) -> None:
    """An iteration is done: a request has its first token, or all running ones of an instance have one more."""
    node, now = world.nodes[n], world.clock[0].now_ps
    i, r, begun_ps = node.at_work, node.prefilling, node.begun_ps
    node.busy_ps += now - begun_ps
    node.at_work = node.prefilling = -1
    node.due_ps = NEVER
    if not node.decodes:
        if r >= 0:
            admit(world, tables, r)
            _gains_token(world, tables, r)
        return
    r = world.instances[i].running_head
    while r >= 0:
        following = world.requests[r].next
        _gains_token(world, tables, r)
        r = following
