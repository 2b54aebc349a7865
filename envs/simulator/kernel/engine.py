"""One engine's continuous batching, as vLLM's V1 scheduler does it.

An iteration begins with `schedule` and ends with `complete`. Running requests come first and in order; one that finds no
KV block preempts the last one (FCFS) or the least urgent one (PRIORITY), which loses its KV and is recomputed. Then, if
nothing was preempted, waiting requests are admitted while budget, sequence limit and free blocks last. Prompts are
prefilled in chunks of what the token budget leaves. Block accounting needs no per-request field: a request with n
computed tokens holds ceil(n / block_size) blocks.

Two shortcuts, both exact: an iteration in which every running request gets what it wants needs no walk over them
(`_schedule_running_fast`), and a run of identical pure-decode iterations is crossed in one go (`skip`).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from envs.simulator.kernel.queues import (
    computed_tokens,
    enqueue,
    head_of,
    release_slot,
    tokens_to_prefill,
    unlink,
)
from envs.simulator.kernel.state import (
    ACTIVE,
    DECODE,
    DRAINING,
    FINISHED,
    NEVER,
    PREFILL,
    PRIORITY,
    PS_PER_S,
    S_DECODE_CLOSED,
    S_DECODE_W,
    S_DECODE_WS,
    S_FINISHED,
    S_FIRST,
    S_GENERATED,
    S_GOOD,
    S_TPOT_MET,
    S_TPOT_SUM,
    S_TTFT_MET,
    S_TTFT_SUM,
    S_WAIT_CLOSED,
    S_WAIT_W,
    S_WAIT_WS,
    SPECULATIVE,
    Tables,
    World,
)


@njit(cache=True)
def blocks_for(tokens: int, block_size: int) -> int:
    """KV blocks that hold `tokens` tokens."""
    return (tokens + block_size - 1) // block_size


@njit(cache=True)
def _remove_running(world: World, e: int, i: int) -> None:
    """Removes entry `i` of the running list, keeping the order."""
    last = world.engines[e].num_running - 1
    for j in range(i, last):
        world.running[e, j] = world.running[e, j + 1]
        world.finish_tick[e, j] = world.finish_tick[e, j + 1]
    world.engines[e].num_running = last


@njit(cache=True)
def _find_next_finish(world: World, e: int) -> None:
    earliest = NEVER
    for i in range(world.engines[e].num_running):
        if world.finish_tick[e, i] < earliest:
            earliest = world.finish_tick[e, i]
    world.engines[e].next_finish_tick = earliest


@njit(cache=True)
def _leave_decode(world: World, tables: Tables, e: int, slot: int) -> None:
    """Turns a decoding request's implicit counters into explicit ones and forgets it as a decoder."""
    engine, request = world.engines[e], world.requests[slot]
    computed = engine.tick + request.offset
    world.residues[e, request.offset % tables.block_size[engine.kind]] -= 1
    engine.decode_context -= computed
    request.computed = computed
    request.generated = generated_tokens(world, slot)
    request.phase = PREFILL


@njit(cache=True)
def generated_tokens(world: World, slot: int) -> int:
    """Output tokens a request has produced, the iteration in flight not counted."""
    request = world.requests[slot]
    if request.phase != DECODE:
        return np.int64(request.generated)
    engine = world.engines[request.engine]
    in_flight = 0
    if engine.step_end_ps >= 0:
        in_flight = np.int64(request.chunk) if engine.walked else 1
    return engine.tick + request.offset - in_flight - request.prompt + 1


@njit(cache=True)
def drop_running(world: World, tables: Tables, e: int, i: int) -> int:
    """Takes entry `i` out of the running list and frees its KV; returns its slot, all its tokens to be computed again."""
    engine = world.engines[e]
    slot = np.int64(world.running[e, i])
    request = world.requests[slot]
    held = computed_tokens(world, slot)
    if request.phase == DECODE:
        _leave_decode(world, tables, e, slot)
    else:
        engine.num_prefilling -= 1
        engine.pending_prefill_tokens -= tokens_to_prefill(world, slot)
    engine.used_blocks -= blocks_for(held, tables.block_size[engine.kind])
    request.computed = 0
    request.chunk = 0
    request.preemptions += 1
    _remove_running(world, e, i)
    return slot


@njit(cache=True)
def _preempt(world: World, tables: Tables, e: int, i: int) -> None:
    """Preempts entry `i` of the running list for recomputation at the head of the queue."""
    enqueue(world, e, drop_running(world, tables, e, i), True)
    world.engines[e].preemptions += 1


@njit(cache=True)
def _victim(world: World, e: int) -> int:
    """Entry of the running list that gives way: the last (FCFS) or the highest (priority, arrival)."""
    count = world.engines[e].num_running
    if world.cluster[0].order != PRIORITY:
        return count - 1
    worst = 0
    for i in range(1, count):
        a, b = world.requests[world.running[e, i]], world.requests[world.running[e, worst]]
        if (a.level, a.arrival_ps, a.index) > (b.level, b.arrival_ps, b.index):
            worst = i
    return worst


@njit(cache=True)
def _prefill_threshold(world: World, e: int) -> int:
    """Longest prefill chunk: vLLM's long_prefill_token_threshold, which a request alone in its engine is spared."""
    engine = world.engines[e]
    if engine.num_running + engine.num_waiting > 1 and world.cluster[0].long_prefill_threshold > 0:
        return np.int64(world.cluster[0].long_prefill_threshold)
    return NEVER


@njit(cache=True)
def _schedule_running_fast(world: World, tables: Tables, e: int, budget: int, threshold: int) -> int:
    """Schedules every running request if all get what they want; returns the budget left, or -1 to walk instead."""
    engine = world.engines[e]
    block_size = tables.block_size[engine.kind]
    decoding = engine.num_running - engine.num_prefilling
    left = budget - decoding
    if left < 0 or (engine.num_prefilling > 0 and left == 0):
        return -1
    needed = world.residues[e, -engine.tick % block_size]
    for i in range(decoding, engine.num_running):
        slot = np.int64(world.running[e, i])
        request = world.requests[slot]
        if request.phase != PREFILL or left == 0:
            return -1
        request.chunk = min(tokens_to_prefill(world, slot), threshold, left)
        left -= request.chunk
        needed += blocks_for(request.computed + request.chunk, block_size) - blocks_for(
            request.computed, block_size
        )
    if engine.used_blocks + needed > engine.capacity_blocks:
        return -1
    engine.used_blocks += needed
    for i in range(decoding, engine.num_running):
        request = world.requests[world.running[e, i]]
        request.computed += request.chunk
    return left


@njit(cache=True)
def _schedule_running_walk(
    world: World, tables: Tables, e: int, budget: int, threshold: int
) -> tuple[int, bool, int]:
    """vLLM's walk over the running list.

    Returns the budget left, whether anything was preempted, and the summed context of decoding requests that go on.
    """
    engine = world.engines[e]
    block_size = tables.block_size[engine.kind]
    for i in range(engine.num_running):
        world.requests[world.running[e, i]].chunk = 0
    preempted = False
    i = 0
    while i < engine.num_running and budget > 0:
        slot = np.int64(world.running[e, i])
        request = world.requests[slot]
        computed = computed_tokens(world, slot)
        wanted = 1 if request.phase == DECODE else min(tokens_to_prefill(world, slot), threshold)
        chunk = min(wanted, budget)
        needed = blocks_for(computed + chunk, block_size) - blocks_for(computed, block_size)
        alive = True
        while engine.used_blocks + needed > engine.capacity_blocks:
            victim = _victim(world, e)
            victim_slot = np.int64(world.running[e, victim])
            budget += _unschedule(world, tables, e, victim_slot)
            _preempt(world, tables, e, victim)
            preempted = True
            if victim_slot == slot:
                alive = False
                break
            if victim < i:
                i -= 1
        if not alive:
            break
        request.chunk = chunk
        engine.used_blocks += needed
        budget -= chunk
        i += 1
    context = 0
    for j in range(engine.num_running):
        slot = np.int64(world.running[e, j])
        request = world.requests[slot]
        if request.phase == PREFILL:
            request.computed += request.chunk
        elif request.chunk == 0:
            _stand_still(world, tables, e, j)
        else:
            context += computed_tokens(world, slot)
    return budget, preempted, context


@njit(cache=True)
def _unschedule(world: World, tables: Tables, e: int, slot: int) -> int:
    """Takes back what this iteration gave a request that is about to be preempted; returns the tokens refunded."""
    engine, request = world.engines[e], world.requests[slot]
    block_size = tables.block_size[engine.kind]
    refund = request.chunk
    computed = computed_tokens(world, slot)
    engine.used_blocks -= blocks_for(computed + refund, block_size) - blocks_for(computed, block_size)
    request.chunk = 0
    return refund


@njit(cache=True)
def _stand_still(world: World, tables: Tables, e: int, i: int) -> None:
    """A decoding request that the coming tick gives no token: its counters shift by one."""
    engine = world.engines[e]
    block_size = tables.block_size[engine.kind]
    request = world.requests[world.running[e, i]]
    world.residues[e, request.offset % block_size] -= 1
    request.offset -= 1
    world.residues[e, request.offset % block_size] += 1
    engine.decode_context -= 1
    engine.generated_tokens -= 1
    world.finish_tick[e, i] += 1
    if engine.next_finish_tick == world.finish_tick[e, i] - 1:
        _find_next_finish(world, e)


@njit(cache=True)
def _admit_waiting(world: World, tables: Tables, e: int, now: int, budget: int, threshold: int) -> int:
    """Moves waiting requests into the batch while budget, sequence limit and blocks last; returns the budget left."""
    engine, cluster = world.engines[e], world.cluster[0]
    block_size = tables.block_size[engine.kind]
    while budget > 0 and engine.num_waiting > 0 and engine.num_running < tables.max_num_seqs[engine.kind]:
        slot = head_of(world, e)
        request = world.requests[slot]
        tokens = tokens_to_prefill(world, slot)
        wanted = min(tokens, threshold)
        if wanted > budget and not cluster.chunked_prefill:
            break
        chunk = min(wanted, budget)
        free = engine.capacity_blocks - engine.used_blocks
        must_fit = tokens if cluster.reserve_full_prompt else chunk
        if blocks_for(must_fit, block_size) > free:
            break
        unlink(world, e, slot)
        engine.used_blocks += blocks_for(chunk, block_size)
        request.phase = PREFILL
        request.chunk = chunk
        request.computed = chunk
        if request.first_scheduled_ps < 0:
            request.first_scheduled_ps = now
        world.running[e, engine.num_running] = slot
        world.finish_tick[e, engine.num_running] = NEVER
        engine.num_running += 1
        engine.num_prefilling += 1
        budget -= chunk
    return budget


@njit(cache=True)
def _prefill_work(world: World, e: int) -> tuple[int, int]:
    """Tokens and (query, key) pairs of this iteration's prefill chunks, whose tokens are no longer pending."""
    engine = world.engines[e]
    tokens, pairs, seen = 0, 0, 0
    i = engine.num_running - 1
    while seen < engine.num_prefilling:
        request = world.requests[world.running[e, i]]
        if request.phase == PREFILL:
            seen += 1
            chunk = np.int64(request.chunk)
            tokens += chunk
            pairs += chunk * (request.computed - chunk) + chunk * (chunk + 1) // 2
        i -= 1
    engine.pending_prefill_tokens -= tokens
    engine.prefilled_tokens += tokens
    return tokens, pairs


@njit(cache=True)
def schedule(world: World, tables: Tables, e: int, now: int) -> None:
    """Begins an iteration at `now` if there is anything to run."""
    engine = world.engines[e]
    engine.step_end_ps = -1
    engine.steady = 0
    if engine.hold or engine.num_running + engine.num_waiting == 0:
        return
    kind = engine.kind
    full_budget = tables.max_batched_tokens[kind]
    threshold = _prefill_threshold(world, e)
    preempted = False
    budget = _schedule_running_fast(world, tables, e, full_budget, threshold)
    walked = budget < 0
    context = engine.decode_context
    if walked:
        budget, preempted, context = _schedule_running_walk(world, tables, e, full_budget, threshold)
    if engine.num_waiting > 0 and not preempted:
        budget = _admit_waiting(world, tables, e, now, budget, threshold)
    scheduled = full_budget - budget
    if scheduled == 0:
        return
    tokens, pairs = _prefill_work(world, e) if engine.num_prefilling > 0 else (0, 0)
    decoding = engine.num_running - engine.num_prefilling
    if tokens == 0:
        duration = tables.decode_ps[kind, scheduled] + tables.kv_ps[kind] * context
    else:
        duration = (
            tables.mixed_ps[kind, scheduled]
            + tables.kv_ps[kind] * context
            + tables.attn_fs[kind] * pairs // 1000
        )
    engine.tick += 1
    engine.decode_context += decoding
    engine.step_context = context
    engine.steady = engine.num_prefilling == 0 and not walked
    engine.steps += 1
    engine.busy_ps += duration
    engine.step_end_ps = now + duration


@njit(cache=True)
def _first_token(world: World, tables: Tables, slot: int, now: int) -> None:
    request = world.requests[slot]
    request.first_token_ps = now
    c = request.class_id
    stats = world.stats[c]
    ttft_ps = now - request.arrival_ps
    ttft_s = ttft_ps / PS_PER_S
    weight = PS_PER_S / tables.ttft_slo_ps[c]
    stats[S_FIRST] += 1
    stats[S_TTFT_SUM] += ttft_s
    if ttft_ps <= tables.ttft_slo_ps[c]:
        stats[S_TTFT_MET] += 1
    stats[S_WAIT_W] -= weight
    stats[S_WAIT_WS] -= weight * (request.arrival_ps / PS_PER_S)
    stats[S_WAIT_CLOSED] += weight * ttft_s
    if request.output > 1:
        decode_weight = decode_cost_rate(world, tables, slot)
        stats[S_DECODE_W] += decode_weight
        stats[S_DECODE_WS] += decode_weight * (now / PS_PER_S)


@njit(cache=True)
def decode_cost_rate(world: World, tables: Tables, slot: int) -> float:
    """Cost per second of a request between first and last token: adds up to TPOT over its SLO."""
    request = world.requests[slot]
    return PS_PER_S / tables.tpot_slo_ps[request.class_id] / (request.output - 1)


@njit(cache=True)
def _finish(world: World, tables: Tables, slot: int, now: int) -> None:
    """Books a finished request and frees its slot."""
    request = world.requests[slot]
    c = request.class_id
    stats = world.stats[c]
    stats[S_FINISHED] += 1
    stats[S_GENERATED] += request.output
    decode_ps = now - request.first_token_ps
    tpot_ps = decode_ps / max(request.output - 1, 1)
    stats[S_TPOT_SUM] += tpot_ps / PS_PER_S
    on_time = tpot_ps <= tables.tpot_slo_ps[c]
    if on_time:
        stats[S_TPOT_MET] += 1
        if request.first_token_ps - request.arrival_ps <= tables.ttft_slo_ps[c]:
            stats[S_GOOD] += 1
    if request.output > 1:
        weight = decode_cost_rate(world, tables, slot)
        stats[S_DECODE_W] -= weight
        stats[S_DECODE_WS] -= weight * (request.first_token_ps / PS_PER_S)
        stats[S_DECODE_CLOSED] += weight * (decode_ps / PS_PER_S)
    request.generated = request.output
    write_log(world, slot, now, FINISHED)
    release_slot(world, slot)


@njit(cache=True)
def write_log(world: World, slot: int, now: int, outcome: int) -> None:
    """Appends a request's fate to the log; the caller has made sure there is room."""
    cluster, request = world.cluster[0], world.requests[slot]
    entry = world.log[cluster.log_length]
    entry.arrival_ps = request.arrival_ps
    entry.first_scheduled_ps = request.first_scheduled_ps
    entry.first_token_ps = request.first_token_ps
    entry.finish_ps = now
    entry.index = request.index
    entry.generated = request.generated
    entry.preemptions = request.preemptions
    entry.engine = request.engine
    entry.outcome = outcome
    cluster.log_length += 1


@njit(cache=True)
def _end_prefills(world: World, tables: Tables, e: int, now: int) -> bool:
    """Gives a first (or next) token to requests whose prefill is done. Returns whether one of them is finished."""
    engine = world.engines[e]
    any_done = False
    left = engine.num_prefilling
    i = engine.num_running - 1
    while left > 0:
        slot = np.int64(world.running[e, i])
        request = world.requests[slot]
        if request.phase == PREFILL:
            left -= 1
            if tokens_to_prefill(world, slot) == 0:
                request.generated += 1
                engine.generated_tokens += 1
                engine.num_prefilling -= 1
                if request.first_token_ps < 0:
                    _first_token(world, tables, slot, now)
                if request.generated >= request.output:
                    world.finish_tick[e, i] = engine.tick
                    any_done = True
                else:
                    _enter_decode(world, tables, e, i)
        i -= 1
    return any_done


@njit(cache=True)
def _enter_decode(world: World, tables: Tables, e: int, i: int) -> None:
    engine = world.engines[e]
    request = world.requests[world.running[e, i]]
    request.phase = DECODE
    request.offset = request.computed - engine.tick
    world.residues[e, request.offset % tables.block_size[engine.kind]] += 1
    engine.decode_context += request.computed
    finish = request.prompt + request.output - 1 - request.offset
    world.finish_tick[e, i] = finish
    if finish < engine.next_finish_tick:
        engine.next_finish_tick = finish


@njit(cache=True)
def complete(world: World, tables: Tables, e: int, now: int) -> None:
    """Ends the iteration in flight: tokens come out, finished requests leave."""
    engine = world.engines[e]
    block_size = tables.block_size[engine.kind]
    engine.generated_tokens += engine.num_running - engine.num_prefilling
    leaving = False
    if engine.num_prefilling > 0:
        leaving = _end_prefills(world, tables, e, now)
    if not leaving and engine.next_finish_tick > engine.tick:
        return
    kept = 0
    earliest = NEVER
    for i in range(engine.num_running):
        slot = np.int64(world.running[e, i])
        finish = world.finish_tick[e, i]
        if finish <= engine.tick:
            computed = computed_tokens(world, slot)
            if world.requests[slot].phase == DECODE:
                _leave_decode(world, tables, e, slot)
            engine.used_blocks -= blocks_for(computed, block_size)
            _finish(world, tables, slot, now)
            continue
        world.running[e, kept] = slot
        world.finish_tick[e, kept] = finish
        earliest = min(earliest, finish)
        kept += 1
    engine.num_running = kept
    engine.next_finish_tick = earliest


@njit(cache=True)
def _blocks_over(world: World, tables: Tables, e: int, ticks: int) -> int:
    """New KV blocks that `ticks` further decode iterations take."""
    engine = world.engines[e]
    block_size = tables.block_size[engine.kind]
    needed = ticks // block_size * engine.num_running
    for j in range(ticks % block_size):
        needed += world.residues[e, (-engine.tick - j) % block_size]
    return needed


@njit(cache=True)
def skip(world: World, tables: Tables, e: int, until: int) -> None:
    """Crosses identical decode iterations: all that begin by `until`, before any request ends or blocks run out.

    With D decoding requests and context C in the iteration in flight, the j-th further one lasts d + g*j with
    d = decode_ps[D] + kv_ps*C and g = kv_ps*D, so k of them last k*d + g*k*(k+1)/2.
    """
    engine = world.engines[e]
    most = engine.next_finish_tick - engine.tick
    if not engine.steady or most <= 0:
        return
    base = tables.decode_ps[engine.kind, engine.num_running] + tables.kv_ps[engine.kind] * engine.step_context
    growth = tables.kv_ps[engine.kind] * engine.num_running
    span = until - engine.step_end_ps  # k further iterations begin in time if the first k-1 of them end within span
    most = min(most, span // base + 1)
    half = base + 0.5 * growth
    if growth > 0:
        guess = (np.sqrt(half * half + 2.0 * growth * span) - half) / growth
        most = min(most, np.int64(guess) + 2)
    while most > 1 and (most - 1) * base + growth * (most - 1) * most // 2 > span:
        most -= 1
    free = engine.capacity_blocks - engine.used_blocks
    needed = _blocks_over(world, tables, e, most)
    while needed > free:
        most -= 1
        if most == 0:
            return
        needed = _blocks_over(world, tables, e, most)
    duration = most * base + growth * most * (most + 1) // 2
    engine.used_blocks += needed
    engine.tick += most
    engine.decode_context += most * engine.num_running
    engine.step_context += most * engine.num_running
    engine.generated_tokens += most * engine.num_running
    engine.steps += most
    engine.busy_ps += duration
    engine.step_end_ps += duration


@njit(cache=True)
def advance_engine(world: World, tables: Tables, e: int, until: int) -> None:
    """Ends every iteration due by `until` and begins the next ones."""
    engine = world.engines[e]
    while 0 <= engine.step_end_ps <= until:
        if engine.steady:
            skip(world, tables, e, until)
            if engine.step_end_ps > until:
                return
        now = engine.step_end_ps
        complete(world, tables, e, now)
        schedule(world, tables, e, now)


@njit(cache=True)
def takes_steps(world: World, e: int) -> bool:
    """Whether an idle engine may begin an iteration."""
    status = world.engines[e].status
    return status == ACTIVE or status == SPECULATIVE or status == DRAINING


@njit(cache=True)
def kick(world: World, tables: Tables, e: int, now: int) -> None:
    """Begins an iteration on an engine that stands idle with something to do."""
    engine = world.engines[e]
    if engine.step_end_ps < 0 and engine.num_running + engine.num_waiting > 0 and takes_steps(world, e):
        schedule(world, tables, e, now)
