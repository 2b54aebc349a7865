"""One engine's continuous batching, as vLLM's V1 scheduler does it.

An iteration begins with `schedule` and ends with `complete`. Running requests come first and in order; one that finds
no KV block preempts the last one (FCFS) or the least urgent one (PRIORITY), which loses its KV and is recomputed. Then,
if nothing was preempted, waiting requests are admitted while budget, sequence limit and free blocks last. Prompts are
prefilled in chunks of what the token budget leaves. Block accounting needs no per-request field: a request with n
computed tokens holds ceil(n / block_size) blocks (`blocks.py`).

With asynchronous scheduling an iteration is put together while the one before it runs, if there is anything to put
together (`EngineCore.step_with_batch_queue`). Here that is done at the end of the one before, overlooking what has
happened since that began: whoever came is not known yet, and whoever is over is parting, still with blocks and a place.

The scheduler before V1 is `before_v1.py`; what an iteration ends with is the same for both.

Two shortcuts, both exact: an iteration in which every running request gets what it wants needs no walk over them
(`_schedule_running_fast`), and a run of identical pure-decode iterations is crossed in one go (`runs.py`).
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.blocks import (
    blocks_for,
    cache_chunk,
    find_hit,
    find_on_host,
    give_back,
    start_sharing,
    stop_sharing,
    take_blocks,
    take_hit,
)
from serving_gym.envs.simulator.kernel.compiled import compiled, entry, inlined, int64
from serving_gym.envs.simulator.kernel.parting import (
    know_all,
    less_urgent,
    let_parting_go,
    move_up,
    part,
    parting_victim,
    preempt_parting,
)
from serving_gym.envs.simulator.kernel.queues import (
    count_known,
    head_of,
    known_head_of,
    next_change,
    put_back,
    tokens_to_prefill,
    unlink,
)
from serving_gym.envs.simulator.kernel.returns import end_answer, end_first_token
from serving_gym.envs.simulator.kernel.state import (
    ACTIVE,
    DECODE,
    DPA,
    DRAINING,
    EDF,
    NEVER,
    PREFILL,
    PREFILLS,
    PRIORITY,
    SPECULATIVE,
    TRANSIT,
    Tables,
    World,
)
from serving_gym.envs.simulator.kernel.transit import send_off, start_load


@compiled
def computed_tokens(world: World, slot: int) -> int:
    """Tokens whose KV a running request holds, those scheduled in the iteration in flight included."""
    request = world.requests[slot]
    if request.phase == DECODE:
        return world.engines[request.engine].tick + request.offset
    return int64(request.computed)


@entry
def decoding_progress(world: World, slot: int) -> int:
    """Output tokens a request has produced, the iteration in flight not counted."""
    request = world.requests[slot]
    if request.phase != DECODE:
        return int64(request.generated)
    engine = world.engines[request.engine]
    in_flight = 0
    if engine.step_end_ps >= 0:
        in_flight = int64(request.chunk) if engine.walked else 1
    return engine.tick + request.offset - in_flight - request.prompt + 1


# -- the running list --------------------------------------------------------------------------------------------------


@compiled
def _remove_running(world: World, e: int, i: int) -> None:
    """Removes entry `i` of the running list, keeping the order."""
    last = world.engines[e].num_running - 1
    for j in range(i, last):
        world.running[e, j] = world.running[e, j + 1]
        world.finish_tick[e, j] = world.finish_tick[e, j + 1]
    world.engines[e].num_running = last


@compiled
def find_next_finish(world: World, e: int) -> None:
    """Looks for the earliest tick at which a decoding request ends."""
    earliest = NEVER
    for i in range(world.engines[e].num_running):
        earliest = min(earliest, world.finish_tick[e, i])
    world.engines[e].next_finish_tick = earliest


@compiled
def enter_decode(world: World, tables: Tables, e: int, i: int) -> None:
    """Counts a request whose prefill is done among the decoders, whose counters are implicit in the engine's tick."""
    engine = world.engines[e]
    request = world.requests[world.running[e, i]]
    request.phase = DECODE
    request.settled = 2
    request.offset = request.computed - engine.tick
    world.residues[e, request.offset % tables.kinds[engine.kind].block_size] += 1
    engine.decode_context += request.computed
    engine.prefill_context -= request.computed
    start_sharing(world, tables, e, int64(world.running[e, i]))
    finish = request.prompt + request.output - 1 - request.offset
    world.finish_tick[e, i] = finish
    engine.next_finish_tick = min(engine.next_finish_tick, finish)


@compiled
def _leave_decode(world: World, tables: Tables, e: int, slot: int) -> None:
    """Forgets a request as a decoder."""
    engine, request = world.engines[e], world.requests[slot]
    world.residues[e, request.offset % tables.kinds[engine.kind].block_size] -= 1
    engine.decode_context -= engine.tick + request.offset
    stop_sharing(world, e, slot)
    if request.target > 0:
        request.target = 0
        engine.num_leaving -= 1


@compiled
def cache_decoded(world: World, tables: Tables, e: int) -> None:
    """Caches what decoding requests have filled, in the order in which they did: vLLM hits the oldest of equal blocks.

    Of two that fill the same block of a prefix, the one with more computed tokens does so first.
    """
    engine = world.engines[e]
    before = NEVER
    left = int64(engine.num_sharing)
    while left > 0:
        offset = -NEVER
        for i in range(engine.num_running):
            request = world.requests[world.running[e, i]]
            if request.sharing and request.offset < before:
                offset = max(offset, int64(request.offset))
        for i in range(engine.num_running):
            slot = int64(world.running[e, i])
            request = world.requests[slot]
            if request.sharing and request.offset == offset:
                left -= 1
                cache_chunk(world, tables, e, slot, engine.tick + offset - engine.late)
        before = offset


@compiled
def drop_running(world: World, tables: Tables, e: int, i: int, planned: int, goes_on: int) -> int:
    """Takes entry `i` out of the running list and frees its KV; returns its slot, all its tokens to be computed again.

    What the iteration in flight would have given it is lost, and so are `planned` tokens of one that is being put
    together. `goes_on` says that the request is not over.
    """
    engine = world.engines[e]
    slot = int64(world.running[e, i])
    request = world.requests[slot]
    unknown = int64(0)
    if request.phase == DECODE and planned > 0:
        unknown = int64(engine.ahead and request.settled != 1)
    elif request.phase == DECODE:
        unknown = int64(engine.late and request.settled == 0)
    give_back(world, tables, e, slot, computed_tokens(world, slot) + planned, goes_on, unknown)
    if request.phase == DECODE:
        request.generated = decoding_progress(world, slot)
        _leave_decode(world, tables, e, slot)
        request.phase = PREFILL
    else:
        engine.num_prefilling -= 1
        engine.pending_prefill_tokens -= tokens_to_prefill(world, slot)
        engine.prefill_context -= request.computed
    request.computed = 0
    request.loaded = 0
    request.chunk = 0
    request.preemptions += 1
    _remove_running(world, e, i)
    return slot


# -- the beginning of an iteration -------------------------------------------------------------------------------------


@compiled
def _victim(world: World, e: int) -> int:
    """Entry of the running list that gives way: the least urgent one, or the last."""
    count = int64(world.engines[e].num_running)
    order = world.cluster[0].order
    if order != PRIORITY and order != EDF:
        return count - 1
    worst = int64(0)
    for i in range(1, count):
        if less_urgent(world, int64(world.running[e, i]), int64(world.running[e, worst])):
            worst = int64(i)
    return worst


@compiled
def _prefill_threshold(world: World, e: int) -> int:
    """Longest prefill chunk: vLLM's long_prefill_token_threshold, which a request alone in its engine is spared."""
    engine, threshold = world.engines[e], int64(world.cluster[0].long_prefill_threshold)
    if threshold == 0:
        return NEVER
    waiting = count_known(world, e) if engine.ahead else int64(engine.num_waiting)
    return threshold if engine.num_running + engine.num_parting + waiting > 1 else NEVER


@inlined
def _schedule_running_fast(world: World, tables: Tables, e: int, budget: int, threshold: int) -> int:
    """Schedules every running request if all get what they want; returns the budget left, or -1 to walk instead."""
    engine = world.engines[e]
    block_size = tables.kinds[engine.kind].block_size
    decoding = engine.num_running - engine.num_prefilling
    left = budget - decoding
    if left < 0:
        return int64(-1)
    needed = int64(world.residues[e, -engine.tick % block_size])
    for i in range(decoding, engine.num_running):
        slot = int64(world.running[e, i])
        request = world.requests[slot]
        if request.phase != PREFILL or left == 0:
            return int64(-1)
        chunk = min(tokens_to_prefill(world, slot), threshold, left)
        request.chunk = chunk
        left -= chunk
        computed = int64(request.computed)
        needed += blocks_for(computed + chunk, block_size) - blocks_for(computed, block_size)
    if engine.used_blocks + needed > engine.capacity_blocks:
        return int64(-1)
    take_blocks(world, e, needed)
    if engine.num_sharing > 0:
        for i in range(decoding):
            slot = int64(world.running[e, i])
            if world.requests[slot].sharing:
                unknown = engine.ahead and world.requests[slot].settled != 1
                cache_chunk(world, tables, e, slot, engine.tick + world.requests[slot].offset + 1 - unknown)
    for i in range(decoding, engine.num_running):
        slot = int64(world.running[e, i])
        request = world.requests[slot]
        request.computed += request.chunk
        cache_chunk(world, tables, e, slot, int64(request.computed))
    if tables.kinds[engine.kind].async_scheduling and world.cluster[0].prefix_caching:
        for i in range(decoding):
            world.requests[world.running[e, i]].settled = 0
    engine.walked = 0
    engine.step_decodes = decoding
    return left


@compiled
def _preempt(world: World, tables: Tables, e: int, i: int) -> int:
    """Sends entry `i` of the running list back to the queue; returns the tokens this iteration had given it."""
    slot = int64(world.running[e, i])
    planned = int64(world.requests[slot].chunk)
    drop_running(world, tables, e, i, planned, int64(1))
    put_back(world, e, slot)
    world.engines[e].preemptions += 1
    move_up(world, e, i)
    return planned


@compiled
def stand_still(world: World, tables: Tables, e: int, i: int) -> None:
    """A decoding request that the coming tick gives no token: its counters shift by one."""
    engine = world.engines[e]
    block_size = tables.kinds[engine.kind].block_size
    request = world.requests[world.running[e, i]]
    world.residues[e, request.offset % block_size] -= 1
    request.offset -= 1
    request.settled = 1
    if request.sharing:
        cache_chunk(world, tables, e, int64(world.running[e, i]), engine.tick + request.offset + 1)
    world.residues[e, request.offset % block_size] += 1
    engine.decode_context -= 1
    world.finish_tick[e, i] += 1


@compiled
def _settle_walk(world: World, tables: Tables, e: int) -> int:
    """Books what a walk gave to whom; returns the summed context of decoding requests that go on."""
    engine = world.engines[e]
    context = int64(0)
    going_on = 0
    for j in range(engine.num_running):
        slot = int64(world.running[e, j])
        request = world.requests[slot]
        if request.phase == PREFILL:
            request.computed += request.chunk
        elif request.chunk == 0:
            stand_still(world, tables, e, int64(j))
        else:
            request.settled = 0
            context += computed_tokens(world, slot)
            going_on += 1
    find_next_finish(world, e)
    engine.walked = 1
    engine.step_decodes = going_on
    return context


@compiled
def _schedule_running_walk(
    world: World, tables: Tables, e: int, budget: int, threshold: int, now: int
) -> tuple[int, bool]:
    """Walks over the running list as vLLM does. Returns the budget left and whether anything was preempted."""
    engine = world.engines[e]
    block_size = tables.kinds[engine.kind].block_size
    for i in range(engine.num_running):
        world.requests[world.running[e, i]].chunk = 0
    preempted = False
    alive = True
    i = int64(0)
    while alive and i < engine.num_running and budget > 0:
        slot = int64(world.running[e, i])
        request = world.requests[slot]
        computed = computed_tokens(world, slot)
        wanted = int64(1) if request.phase == DECODE else min(tokens_to_prefill(world, slot), threshold)
        chunk = min(wanted, budget)
        needed = blocks_for(computed + chunk, block_size) - blocks_for(computed, block_size)
        while alive and engine.used_blocks + needed > engine.capacity_blocks:
            preempted = True
            victim = _victim(world, e)
            gone = parting_victim(world, e, victim)
            if gone >= 0:
                preempt_parting(world, tables, e, gone, now)
                continue
            alive = victim != i
            budget += _preempt(world, tables, e, victim)
            if victim < i:
                i -= 1
        if alive:
            request.chunk = chunk
            take_blocks(world, e, needed)
            if request.phase == PREFILL:
                cache_chunk(world, tables, e, slot, computed + chunk)
            elif request.sharing:
                unknown = engine.ahead and request.settled != 1
                cache_chunk(world, tables, e, slot, computed + chunk - unknown)
            budget -= chunk
            i += 1
    return budget, preempted


@compiled
def begin_prefill(
    world: World,
    tables: Tables,
    e: int,
    slot: int,
    now: int,
    cached: int,
    loaded: int,
    brought: int,
    chunk: int,
) -> None:
    """Gives a request its first chunk, behind what the prefix cache has of it or what it brought along.

    Of the cached tokens the last `loaded` come from the host and need blocks of their own.
    """
    engine, request = world.engines[e], world.requests[slot]
    engine.prefill_context += brought
    if cached > 0:
        take_hit(world, tables, e, slot)
        engine.cached_tokens += cached
        engine.pending_prefill_tokens -= cached
        engine.prefill_context += cached
    take_blocks(world, e, blocks_for(brought + loaded + chunk, tables.kinds[engine.kind].block_size))
    request.phase = PREFILL
    request.chunk = chunk
    request.computed = cached + brought + chunk
    cache_chunk(world, tables, e, slot, int64(request.computed))
    if request.first_scheduled_ps < 0:
        request.first_scheduled_ps = now
        request.cached = cached


@compiled
def _admit_waiting(world: World, tables: Tables, e: int, now: int, budget: int, threshold: int) -> int:
    """Moves waiting requests into the batch while budget, sequence limit and blocks last; returns the budget left."""
    engine, cluster = world.engines[e], world.cluster[0]
    block_size = tables.kinds[engine.kind].block_size
    most_running = tables.kinds[engine.kind].max_num_seqs - engine.num_kept - engine.num_parting
    while budget > 0 and engine.num_waiting > 0 and engine.num_running < most_running:
        slot = known_head_of(world, e) if engine.ahead else head_of(world, e, now)
        if slot < 0:
            break
        brought = int64(world.requests[slot].computed)  # KV that came from another engine
        hit, of_these_free, loaded = int64(0), int64(0), int64(0)
        if brought == 0:
            hit, of_these_free = find_hit(world, tables, e, slot)
        if engine.host_blocks > 0 and brought == 0:
            landed = int64(world.requests[slot].loaded)
            there = find_on_host(world, tables, e, slot, hit)
            if there > max(hit, landed):
                start_load(world, tables, e, slot, max(hit, landed), there, now)
                continue
            loaded = max(landed - hit, int64(0)) * block_size
        cached = hit * block_size + loaded
        tokens = tokens_to_prefill(world, slot) - cached
        wanted = min(tokens, threshold)
        if wanted > budget and not cluster.chunked_prefill:
            break
        chunk = min(wanted, budget)
        must_fit = tokens if cluster.reserve_full_prompt else chunk
        needed = blocks_for(brought + loaded + must_fit, block_size) + of_these_free
        if engine.used_blocks + needed > engine.capacity_blocks:
            break
        unlink(world, e, slot)
        begin_prefill(world, tables, e, slot, now, cached, loaded, brought, chunk)
        world.running[e, engine.num_running] = slot
        world.finish_tick[e, engine.num_running] = NEVER
        engine.num_running += 1
        engine.num_prefilling += 1
        budget -= chunk
    return budget


@compiled
def prefill_work(world: World, e: int) -> tuple[int, int, int, int]:
    """Tokens and (query, key) pairs of this iteration's prefill chunks, whose tokens are no longer pending.

    Returns those of all chunks together, and the largest of each.
    """
    engine = world.engines[e]
    tokens, pairs = int64(0), int64(0)
    most_tokens, most_pairs = int64(0), int64(0)
    unseen = engine.num_prefilling
    i = engine.num_running - 1
    while unseen > 0:
        request = world.requests[world.running[e, i]]
        if request.phase == PREFILL:
            unseen -= 1
            chunk = int64(request.chunk)
            work = chunk * (request.computed - chunk) + chunk * (chunk + 1) // 2
            tokens += chunk
            pairs += work
            most_tokens = max(most_tokens, chunk)
            most_pairs = max(most_pairs, work)
        i -= 1
    engine.pending_prefill_tokens -= tokens
    engine.prefill_context += tokens
    engine.prefilled_tokens += tokens
    return tokens, pairs, most_tokens, most_pairs


@inlined
def prefill_iteration_ps(
    tables: Tables, kind: int, scheduled: int, tokens: int, pairs: int, most_tokens: int, most_pairs: int
) -> int:
    """Duration of an iteration of `scheduled` tokens with the prefill work of `prefill_work`, reading KV left out."""
    stages = tables.kinds[kind].stages
    batch, work = scheduled, pairs
    if stages > 1:
        batch = max(blocks_for(scheduled, stages), most_tokens)
        work = max(blocks_for(pairs, stages), most_pairs)
    return (
        tables.mixed_ps[kind, batch]
        + tables.kinds[kind].sequence_ps * (scheduled - tokens)
        + tables.kinds[kind].attn_fs * work // 1000
    )


@inlined
def _pick_tokens(world: World, tables: Tables, e: int, now: int) -> tuple[int, int]:
    """Decides what the coming iteration computes. Returns its tokens and the context its decoding requests read.

    A pass that only preempts schedules nothing and takes no time; vLLM then begins the next one at once. One that finds
    nothing to do ahead of time is made again when all is known.
    """
    engine = world.engines[e]
    full_budget = tables.kinds[engine.kind].max_batched_tokens
    while True:
        threshold = _prefill_threshold(world, e)
        preempted = False
        context = int64(engine.decode_context)
        budget = _schedule_running_fast(world, tables, e, full_budget, threshold)
        if budget < 0:
            budget, preempted = _schedule_running_walk(world, tables, e, full_budget, threshold, now)
            if preempted and budget == full_budget:
                know_all(world, tables, e, now)
                continue
            context = _settle_walk(world, tables, e)
        if engine.num_waiting > 0 and not preempted:
            budget = _admit_waiting(world, tables, e, now, budget, threshold)
        if budget == full_budget and engine.ahead:
            know_all(world, tables, e, now)
            continue
        return full_budget - budget, context


@compiled
def takes_steps(world: World, e: int) -> bool:
    """Whether an engine may begin an iteration."""
    engine = world.engines[e]
    status = engine.status
    return not engine.hold and status in (ACTIVE, SPECULATIVE, DRAINING)


@compiled
def _queue_may_move(world: World, tables: Tables, e: int) -> bool:
    """Whether a waiting request may be admitted by the mere passing of time.

    Because another becomes next, or because what is being decoded is the beginning of what waits, or because it is not
    known yet that there is room.
    """
    engine = world.engines[e]
    if engine.num_waiting == 0:
        return False
    if tables.kinds[engine.kind].async_scheduling:
        return True
    if world.cluster[0].order != DPA and engine.num_sharing == 0:
        return False
    return engine.num_running < tables.kinds[engine.kind].max_num_seqs


@inlined
def schedule(world: World, tables: Tables, e: int, now: int) -> None:
    """Begins an iteration at `now` if there is anything to run, or says when to look again if nothing has room."""
    engine = world.engines[e]
    engine.ahead = int(engine.step_end_ps >= 0 and tables.kinds[engine.kind].async_scheduling)
    if not engine.ahead:
        engine.late = 0
    engine.step_end_ps = -1
    engine.begin_ps = NEVER
    engine.steady = 0
    if engine.num_running + engine.num_waiting == 0 or not takes_steps(world, e):
        know_all(world, tables, e, now)
        return
    scheduled, context = _pick_tokens(world, tables, e, now)
    let_parting_go(world, tables, e, now)
    engine.late = engine.ahead
    if scheduled == 0:
        engine.begin_ps = next_change(world, e, now)
        return
    kind = engine.kind
    engine.prefills = 0
    if engine.num_prefilling == 0:
        engine.steady = 0 if engine.walked or _queue_may_move(world, tables, e) else 1
        duration = tables.decode_ps[kind, scheduled]
    else:
        tokens, pairs, most_tokens, most_pairs = prefill_work(world, e)
        if tokens == 0:
            duration = tables.decode_ps[kind, scheduled]
        else:
            duration = prefill_iteration_ps(
                tables, int64(kind), scheduled, tokens, pairs, most_tokens, most_pairs
            )
            engine.prefills = 1
            engine.prefill_ps += duration + tables.kinds[kind].kv_ps * context
    duration += tables.kinds[kind].kv_ps * context
    engine.tick += 1
    engine.decode_context += engine.num_running - engine.num_prefilling
    engine.steps += 1
    engine.busy_ps += duration
    engine.step_end_ps = now + duration


# -- the end of an iteration -------------------------------------------------------------------------------------------


@compiled
def _end_prefills(world: World, tables: Tables, e: int, now: int) -> bool:
    """Gives a first (or next) token to requests whose prefill is done. Returns whether one of them is finished."""
    engine = world.engines[e]
    decoding = int64(engine.num_running - engine.num_prefilling)
    any_done = False
    unseen = engine.num_prefilling
    i = engine.num_running - 1
    while unseen > 0:
        slot = int64(world.running[e, i])
        request = world.requests[slot]
        if request.phase == PREFILL:
            unseen -= 1
            if tokens_to_prefill(world, slot) == 0:
                request.generated += 1
                engine.generated_tokens += 1
                engine.num_prefilling -= 1
                if request.first_token_ps < 0:
                    end_first_token(world, tables, e, slot, now, decoding)
                if request.generated >= request.output or engine.role == PREFILLS:
                    engine.prefill_context -= request.computed
                    world.finish_tick[e, i] = engine.tick
                    any_done = True
                else:
                    enter_decode(world, tables, e, int64(i))
        i -= 1
    return any_done


@inlined
def _let_finished_go(world: World, tables: Tables, e: int, now: int) -> None:
    """Takes requests that have all their tokens off the running list."""
    engine = world.engines[e]
    kept = 0
    last = int64(-1)
    earliest = NEVER
    for i in range(engine.num_running):
        slot = int64(world.running[e, i])
        finish = world.finish_tick[e, i]
        if finish <= engine.tick:
            if engine.role == PREFILLS and world.requests[slot].generated < world.requests[slot].output:
                send_off(world, tables, e, slot, now)
                continue
            if tables.kinds[engine.kind].async_scheduling:
                world.requests[slot].computed = computed_tokens(world, slot)
                if world.requests[slot].phase == DECODE:
                    _leave_decode(world, tables, e, slot)
                last = part(world, e, slot, int64(kept), last)
                continue
            give_back(world, tables, e, slot, computed_tokens(world, slot), int64(0), int64(0))
            if world.requests[slot].phase == DECODE:
                _leave_decode(world, tables, e, slot)
            end_answer(world, tables, e, slot, now)
        else:
            world.running[e, kept] = slot
            world.finish_tick[e, kept] = finish
            earliest = min(earliest, finish)
            kept += 1
    engine.num_running = kept
    engine.next_finish_tick = earliest


@compiled
def let_migrating_go(world: World, tables: Tables, e: int) -> None:
    """Takes requests that are to migrate off the running list; no iteration is in flight.

    They keep their blocks and their places in the batch: the last of their KV is yet to be copied.
    """
    engine = world.engines[e]
    i = engine.num_running - 1
    while engine.num_leaving > 0:
        slot = int64(world.running[e, i])
        request = world.requests[slot]
        if request.target > 0:
            request.computed = engine.tick + request.offset
            request.generated = request.computed - request.prompt + 1
            if request.sharing:
                cache_chunk(world, tables, e, slot, int64(request.computed))
            _leave_decode(world, tables, e, slot)
            _remove_running(world, e, int64(i))
            request.phase = TRANSIT
            request.chunk = 0
            engine.num_kept += 1
        i -= 1
    find_next_finish(world, e)


@inlined
def complete(world: World, tables: Tables, e: int, now: int) -> None:
    """Ends the iteration in flight: tokens come out, finished requests leave, and so do those that migrate."""
    engine = world.engines[e]
    engine.generated_tokens += engine.step_decodes
    leaving = False
    if engine.num_prefilling > 0:
        leaving = _end_prefills(world, tables, e, now)
    if leaving or engine.next_finish_tick <= engine.tick:
        _let_finished_go(world, tables, e, now)
    if engine.num_leaving > 0:
        let_migrating_go(world, tables, e)
