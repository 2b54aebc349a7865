"""Request lists of the gateway and of instances, and the records of requests."""

from __future__ import annotations

from serving_gym.envs.interface.metrics import FAILED, FINISHED, REFUSED
from serving_gym.envs.interface.state import TOTALS
from serving_gym.envs.simulator.kernel.compiled import compiled
from serving_gym.envs.simulator.sharing.arrays import (
    ALWAYS,
    GONE,
    HELD,
    NEVER,
    PS_PER_S,
    RUNNING,
    S_CLOSED,
    S_DECODE_W,
    S_DECODE_WS,
    S_WAIT_W,
    S_WAIT_WS,
    SERVING,
    WAITING,
    SharingTables,
    SharingWorld,
)
from serving_gym.envs.simulator.sharing.demand import note_demand

_ARRIVED, _PROMPTS = TOTALS.index("arrived"), TOTALS.index("arrived_tokens")
_REFUSED, _FAILED = TOTALS.index("refused"), TOTALS.index("failed")
_FIRST, _TTFT_MET, _TTFT_SUM = (TOTALS.index(name) for name in ("first_tokens", "ttft_met", "ttft_sum_s"))
_FINISHED, _TPOT_MET, _TPOT_SUM = (TOTALS.index(name) for name in ("finished", "tpot_met", "tpot_sum_s"))
_GOOD, _GENERATED = TOTALS.index("good"), TOTALS.index("generated_tokens")


@compiled
def blocks_of(tokens: int, block_tokens: int) -> int:
    """KV blocks that hold some tokens."""
    return (tokens + block_tokens - 1) // block_tokens


@compiled
def _unlink(world: SharingWorld, r: int) -> None:
    """Takes a request out of the list that it is in; whose it was, its phase and instance still say."""
    request, clock = world.requests[r], world.clock[0]
    before, after, i = request.previous, request.next, request.instance
    if before >= 0:
        world.requests[before].next = after
    elif request.phase == HELD:
        clock.held_head = after
    elif request.phase == RUNNING:
        world.instances[i].running_head = after
    else:
        world.instances[i].waiting_head = after
    if after >= 0:
        world.requests[after].previous = before
    elif request.phase == HELD:
        clock.held_tail = before
    elif request.phase == RUNNING:
        world.instances[i].running_tail = before
    else:
        world.instances[i].waiting_tail = before
    request.previous = request.next = -1


@compiled
def releases(world: SharingWorld, model: int) -> int:
    """Changes so far that may have brought room for a model (`envs.interface.sharing.Retry.AFTER_RELEASE`)."""
    return world.releases[model] + world.releases[len(world.releases) - 1]


@compiled
def hold(world: SharingWorld, r: int) -> None:
    """Puts a request that is nowhere at the end of the gateway's queue, to be offered at once."""
    request, clock = world.requests[r], world.clock[0]
    request.phase, request.instance = HELD, -1
    request.held_since_ps = request.offer_ps = clock.now_ps
    request.retry = ALWAYS
    request.next, request.previous = -1, clock.held_tail
    if clock.held_tail >= 0:
        world.requests[clock.held_tail].next = r
    else:
        clock.held_head = r
    clock.held_tail = r
    clock.num_held += 1
    clock.next_offer_ps = min(clock.next_offer_ps, clock.now_ps)


@compiled
def queue(world: SharingWorld, r: int, i: int, front: bool) -> None:
    """Puts a request that is nowhere in an instance's queue."""
    request, instance = world.requests[r], world.instances[i]
    request.phase, request.instance, request.last_instance = WAITING, i, i
    if front:
        request.previous, request.next = -1, instance.waiting_head
        if instance.waiting_head >= 0:
            world.requests[instance.waiting_head].previous = r
        else:
            instance.waiting_tail = r
        instance.waiting_head = r
    else:
        request.next, request.previous = -1, instance.waiting_tail
        if instance.waiting_tail >= 0:
            world.requests[instance.waiting_tail].next = r
        else:
            instance.waiting_head = r
        instance.waiting_tail = r
    instance.num_waiting += 1
    instance.idle_ps = NEVER


@compiled
def admit(world: SharingWorld, tables: SharingTables, r: int) -> None:
    """Moves a request from its instance's queue to those that run, once its prompt is prefilled."""
    request = world.requests[r]
    instance = world.instances[request.instance]
    _unlink(world, r)
    instance.num_waiting -= 1
    request.phase, request.next, request.previous = RUNNING, -1, instance.running_tail
    if instance.running_tail >= 0:
        world.requests[instance.running_tail].next = r
    else:
        instance.running_head = r
    instance.running_tail = r
    instance.num_running += 1
    tokens = tables.input_tokens[r] + request.generated
    instance.context_tokens += tokens
    instance.used_blocks += blocks_of(tokens, tables.parameters[0].block_tokens)


@compiled
def take_out(world: SharingWorld, tables: SharingTables, r: int) -> None:
    """Takes a request out of the gateway's queue or of its instance; its KV cache is gone."""
    request, clock = world.requests[r], world.clock[0]
    i, phase = request.instance, request.phase
    _unlink(world, r)
    if phase == HELD:
        clock.num_held -= 1
        return
    world.releases[tables.model[r]] += 1
    instance = world.instances[i]
    node = world.nodes[i // tables.parameters[0].slots_per_node]
    if phase == RUNNING:
        instance.num_running -= 1
        tokens = tables.input_tokens[r] + request.generated
        instance.context_tokens -= tokens
        instance.used_blocks -= blocks_of(tokens, tables.parameters[0].block_tokens)
    else:
        instance.num_waiting -= 1
        if node.prefilling == r:
            node.prefilling = -1
    if instance.num_running + instance.num_waiting == 0 and instance.status == SERVING:
        instance.idle_ps = clock.now_ps
    request.instance = -1


@compiled
def evict(world: SharingWorld, tables: SharingTables, r: int) -> None:
    """Takes a request out of its instance; what it has generated will be prefilled again with its prompt."""
    if world.requests[r].phase == RUNNING:
        world.requests[r].evictions += 1
    take_out(world, tables, r)


# -- the books ---------------------------------------------------------------------------------------------------------


@compiled
def _wait_weight(tables: SharingTables, r: int) -> float:
    """Cost a second before the first token."""
    return PS_PER_S / tables.ttft_ps[r]


@compiled
def _decode_weight(tables: SharingTables, r: int) -> float:
    """Cost a second from the first token to the last of more than one."""
    return PS_PER_S / tables.tpot_ps[r] / (tables.output_tokens[r] - 1)


@compiled
def _stop_waiting(world: SharingWorld, tables: SharingTables, r: int, at_ps: int) -> None:
    """Closes the cost of waiting for the first token, which ends at some time."""
    stats, weight = world.stats[tables.class_id[r]], _wait_weight(tables, r)
    stats[S_WAIT_W] -= weight
    stats[S_WAIT_WS] -= weight * (tables.arrival_ps[r] / PS_PER_S)
    stats[S_CLOSED] += weight * ((at_ps - tables.arrival_ps[r]) / PS_PER_S)


@compiled
def _stop_decoding(world: SharingWorld, tables: SharingTables, r: int, at_ps: int) -> None:
    """Closes the cost of the tokens after the first, which ends at some time."""
    if tables.output_tokens[r] < 2:
        return
    stats, weight = world.stats[tables.class_id[r]], _decode_weight(tables, r)
    first_ps = world.requests[r].first_token_ps
    stats[S_DECODE_W] -= weight
    stats[S_DECODE_WS] -= weight * (first_ps / PS_PER_S)
    stats[S_CLOSED] += weight * ((at_ps - first_ps) / PS_PER_S)


@compiled
def book_arrival(world: SharingWorld, tables: SharingTables, r: int) -> None:
    """A request has arrived."""
    stats, weight = world.stats[tables.class_id[r]], _wait_weight(tables, r)
    stats[_ARRIVED] += 1
    stats[_PROMPTS] += tables.input_tokens[r]
    stats[S_WAIT_W] += weight
    stats[S_WAIT_WS] += weight * (tables.arrival_ps[r] / PS_PER_S)
    world.clock[0].num_in_system += 1
    note_demand(world.demand[tables.model[r]], tables.arrival_ps[r] / PS_PER_S)


@compiled
def book_first_token(world: SharingWorld, tables: SharingTables, r: int) -> None:
    """An instance has computed a request's first token. It counts at once, with the time when its client has it."""
    request, stats = world.requests[r], world.stats[tables.class_id[r]]
    instance = world.instances[request.instance]
    kind = world.nodes[request.instance // tables.parameters[0].slots_per_node].kind
    front_ps = tables.front_ps[kind, tables.size[tables.model[r]]]
    request.lag_ps = front_ps[0] + front_ps[1] * tables.input_tokens[r]
    request.lag_ps += front_ps[2] * (instance.num_running - 1)
    now = world.clock[0].now_ps + request.lag_ps
    request.first_token_ps = now
    ttft_ps = now - tables.arrival_ps[r]
    stats[_FIRST] += 1
    stats[_TTFT_SUM] += ttft_ps / PS_PER_S
    stats[_TTFT_MET] += ttft_ps <= tables.ttft_ps[r]
    _stop_waiting(world, tables, r, now)
    if tables.output_tokens[r] > 1:
        weight = _decode_weight(tables, r)
        stats[S_DECODE_W] += weight
        stats[S_DECODE_WS] += weight * (now / PS_PER_S)


@compiled
def _leave(world: SharingWorld, r: int, outcome: int) -> None:
    request = world.requests[r]
    request.phase, request.outcome = GONE, outcome
    world.clock[0].num_in_system -= 1


@compiled
def book_finish(world: SharingWorld, tables: SharingTables, r: int) -> None:
    """A request that has been taken out has its last token. It counts at once, as its first has done."""
    request, clock, stats = world.requests[r], world.clock[0], world.stats[tables.class_id[r]]
    request.finish_ps = clock.now_ps + request.lag_ps
    # Compared as a product of integers, so that it is exact.
    gaps = max(tables.output_tokens[r] - 1, 1)
    span_ps = request.finish_ps - request.first_token_ps
    stats[_FINISHED] += 1
    stats[_GENERATED] += tables.output_tokens[r]
    stats[_TPOT_SUM] += span_ps / gaps / PS_PER_S
    if span_ps <= tables.tpot_ps[r] * gaps:
        stats[_TPOT_MET] += 1
        stats[_GOOD] += request.first_token_ps - tables.arrival_ps[r] <= tables.ttft_ps[r]
    _stop_decoding(world, tables, r, request.finish_ps)
    world.outputs[tables.model[r], 0] += 1
    world.outputs[tables.model[r], 1] += tables.output_tokens[r]
    world.finished[clock.num_finished] = r
    clock.num_finished += 1
    _leave(world, r, FINISHED)


@compiled
def book_loss(world: SharingWorld, tables: SharingTables, r: int, refused: bool) -> None:
    """A request that has been taken out is refused, or fails."""
    request, stats = world.requests[r], world.stats[tables.class_id[r]]
    stats[_REFUSED if refused else _FAILED] += 1
    if request.first_token_ps < 0:
        _stop_waiting(world, tables, r, world.clock[0].now_ps)
    else:
        _stop_decoding(world, tables, r, max(world.clock[0].now_ps, request.first_token_ps))
    _leave(world, r, REFUSED if refused else FAILED)


@compiled
def latency_cost(world: SharingWorld) -> float:
    """Running sum over requests of TTFT / SLO + TPOT / SLO, up to now."""
    now_s, total = world.clock[0].now_ps / PS_PER_S, 0.0
    for c in range(len(world.stats)):
        stats = world.stats[c]
        total += stats[S_CLOSED] + now_s * stats[S_WAIT_W] - stats[S_WAIT_WS]
        total += now_s * stats[S_DECODE_W] - stats[S_DECODE_WS]
    return total
