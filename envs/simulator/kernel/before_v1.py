"""vLLM's scheduler before V1 (0.3 to 0.6), in its default mode without chunked prefill.

An iteration computes whole prompts or decodes, never both, and prompts come first. What a decoding request needs is one
free block, whether or not it takes it. Where there is none, the last one gives way: it stands first in the queue and is
computed again, or its KV is swapped to host memory. While any is swapped out no prompt is computed. Copies between GPU
and host are made before the iteration that decides on them computes, which waits for them.

Source: `_schedule_default` in vllm/core/scheduler.py and vllm/core/block_manager_v1.py of vLLM 0.6.0. Two departures:
where the host has no room the request that gives way fails, and not the whole engine; a request that could never be
swapped in again fails, where vLLM waits for ever if it is the watermark that it would not leave.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.accounting import book_failure, book_turned_away
from serving_gym.envs.simulator.kernel.blocks import blocks_for, take_blocks
from serving_gym.envs.simulator.kernel.compiled import compiled, inlined, int64
from serving_gym.envs.simulator.kernel.engine import (
    begin_prefill,
    computed_tokens,
    drop_running,
    enter_decode,
    find_next_finish,
    prefill_iteration_ps,
    prefill_work,
    stand_still,
    takes_steps,
)
from serving_gym.envs.simulator.kernel.queues import (
    enqueue,
    put_back,
    swapped_head,
    tokens_to_prefill,
    unlink,
)
from serving_gym.envs.simulator.kernel.state import NEVER, V0, Tables, World

_WATERMARK = 100  # of so many blocks one is to stay free when a request is admitted or swapped in


@compiled
def _takes_block(world: World, tables: Tables, e: int, i: int, tick: int) -> bool:
    """Whether entry `i` of the running list, which decodes, takes a new block in the iteration after so many ticks."""
    computed = tick + world.requests[world.running[e, i]].offset
    return computed % tables.kinds[world.engines[e].kind].block_size == 0


@compiled
def spare_blocks(world: World, tables: Tables, e: int, tick: int) -> int:
    """Blocks that must be free beside those that decoding takes: one, unless the last request takes one itself."""
    return int64(not _takes_block(world, tables, e, int64(world.engines[e].num_running) - 1, tick))


@compiled
def _fits(world: World, e: int, blocks: int) -> bool:
    """Whether blocks can be had now without falling below the watermark."""
    engine = world.engines[e]
    return engine.capacity_blocks - engine.used_blocks - blocks >= engine.total_blocks // _WATERMARK


@compiled
def _never_fits(world: World, e: int, blocks: int) -> bool:
    """Whether blocks could not be had in an empty engine."""
    engine = world.engines[e]
    return engine.total_blocks - blocks < engine.total_blocks // _WATERMARK


@compiled
def _take_from_queue(world: World, e: int, slot: int) -> None:
    """Takes a request out of the queue, whose tokens are no longer pending."""
    unlink(world, e, slot)
    world.engines[e].pending_prefill_tokens -= tokens_to_prefill(world, slot)


@compiled
def _turn_away(world: World, tables: Tables, e: int, slot: int, now: int) -> None:
    """Ends a waiting request that can never run."""
    _take_from_queue(world, e, slot)
    if world.requests[slot].first_token_ps < 0:
        book_turned_away(world, tables, slot, now)
    else:
        book_failure(world, tables, slot, now)


@compiled
def _most_running(world: World, tables: Tables, e: int) -> int:
    """Most requests that the running list may hold."""
    return tables.kinds[world.engines[e].kind].max_num_seqs - world.engines[e].num_kept


@compiled
def _admit(world: World, tables: Tables, e: int, now: int) -> int:
    """Moves waiting requests into the batch, their prompts whole; returns the tokens to compute."""
    engine = world.engines[e]
    kind = tables.kinds[engine.kind]
    admitted = int64(0)
    while True:
        slot = int64(world.queues[e, 0, 0])
        if slot < 0:
            break
        tokens = tokens_to_prefill(world, slot)
        blocks = blocks_for(tokens, kind.block_size)
        if tokens > kind.max_batched_tokens or _never_fits(world, e, blocks):
            _turn_away(world, tables, e, slot, now)
            continue
        if not _fits(world, e, blocks) or admitted + tokens > kind.max_batched_tokens:
            break
        if engine.num_running >= _most_running(world, tables, e):
            break
        unlink(world, e, slot)
        begin_prefill(world, tables, e, slot, now, int64(0), int64(0), int64(0), tokens)
        world.running[e, engine.num_running] = slot
        world.finish_tick[e, engine.num_running] = NEVER
        engine.num_running += 1
        engine.num_prefilling += 1
        admitted += tokens
    return admitted


@compiled
def _preempt_last(world: World, tables: Tables, e: int, now: int) -> int:
    """Lets the last running request give way; returns the blocks that are swapped out."""
    engine = world.engines[e]
    kind = tables.kinds[engine.kind]
    last = int64(engine.num_running) - 1
    computed = computed_tokens(world, int64(world.running[e, last]))
    slot = drop_running(world, tables, e, last, int64(0), int64(1))
    engine.preemptions += 1
    if kind.scheduler == V0:
        put_back(world, e, slot)
        return int64(0)
    blocks = blocks_for(computed, kind.block_size)
    if engine.host_used + blocks > kind.swap_blocks:
        book_failure(world, tables, slot, now)
        return int64(0)
    request = world.requests[slot]
    request.computed = computed
    request.loads = 1
    request.loaded = blocks
    engine.host_used += blocks
    enqueue(world, e, slot)
    return blocks


@compiled
def _give_tokens(world: World, tables: Tables, e: int, now: int) -> tuple[bool, int]:
    """Lets running requests decode, in order. Returns whether any was preempted, and the blocks swapped out."""
    engine = world.engines[e]
    block_size = tables.kinds[engine.kind].block_size
    if engine.num_running == 0:
        return False, int64(0)
    needed = int64(world.residues[e, -engine.tick % block_size])
    spare = spare_blocks(world, tables, e, int64(engine.tick))
    if engine.used_blocks + needed + spare <= engine.capacity_blocks:
        take_blocks(world, e, needed)
        return False, int64(0)
    swapped = int64(0)
    i = int64(0)
    while i < engine.num_running:
        if engine.used_blocks < engine.capacity_blocks:
            take_blocks(world, e, int64(_takes_block(world, tables, e, i, int64(engine.tick))))
            i += 1
        else:
            swapped += _preempt_last(world, tables, e, now)
    find_next_finish(world, e)
    return True, swapped


@compiled
def _swap_in(world: World, tables: Tables, e: int, now: int) -> int:
    """Moves requests that were swapped out back into the batch, where they decode; returns the blocks swapped in."""
    engine = world.engines[e]
    kind = tables.kinds[engine.kind]
    most_running = min(_most_running(world, tables, e), kind.max_batched_tokens)
    swapped = int64(0)
    while True:
        slot = swapped_head(world, e)
        if slot < 0:
            break
        request = world.requests[slot]
        blocks = int64(request.loaded)
        if _never_fits(world, e, blocks + 1):
            _turn_away(world, tables, e, slot, now)
            continue
        if not _fits(world, e, blocks + 1) or engine.num_running >= most_running:
            break
        _take_from_queue(world, e, slot)
        take_blocks(world, e, blocks_for(int64(request.computed) + 1, kind.block_size))
        world.running[e, engine.num_running] = slot
        engine.num_running += 1
        engine.prefill_context += request.computed
        enter_decode(world, tables, e, int64(engine.num_running) - 1)
        swapped += blocks
    engine.loaded_blocks += swapped
    return swapped


@compiled
def _prefill_ps(world: World, tables: Tables, e: int) -> int:
    """Settles an iteration that computes prompts, during which who decodes stands still; returns its duration."""
    engine = world.engines[e]
    for i in range(engine.num_running - engine.num_prefilling):
        world.requests[world.running[e, i]].chunk = 0
        stand_still(world, tables, e, int64(i))
    find_next_finish(world, e)
    tokens, pairs, most_tokens, most_pairs = prefill_work(world, e)
    duration = prefill_iteration_ps(
        tables, int64(engine.kind), tokens, tokens, pairs, most_tokens, most_pairs
    )
    engine.walked = 1
    engine.step_decodes = 0
    engine.prefills = 1
    engine.prefill_ps += duration
    return int64(duration)


@compiled
def _decode_ps(world: World, tables: Tables, e: int, swapped: int) -> int:
    """Settles an iteration in which all running requests decode; returns its duration, that of copies included."""
    engine = world.engines[e]
    kind, running = int64(engine.kind), int64(engine.num_running)
    engine.walked = 0
    engine.step_decodes = running
    duration = tables.kinds[kind].load_ps * swapped
    if running > 0:
        duration += tables.decode_ps[kind, running] + tables.kinds[kind].kv_ps * engine.decode_context
    return int64(duration)


@compiled
def _pick(world: World, tables: Tables, e: int, now: int) -> int:
    """Decides what the coming iteration does; returns its duration, or -1 if there is nothing that it could do.

    One that only copies takes its time; a pass that only drops requests takes none, and the next one follows at once.
    """
    engine = world.engines[e]
    while True:
        if swapped_head(world, e) < 0 and _admit(world, tables, e, now) > 0:
            return _prefill_ps(world, tables, e)
        waiting = engine.num_waiting
        preempted, swapped = _give_tokens(world, tables, e, now)
        if not preempted:
            swapped = _swap_in(world, tables, e, now)
        if engine.num_running > 0 or swapped > 0:
            # Blocks get fewer while requests decode, so that whoever has no room now has none until something changes.
            engine.steady = int(not preempted and engine.num_waiting == waiting)
            return _decode_ps(world, tables, e, swapped)
        if not preempted and engine.num_waiting == waiting:
            return int64(-1)


@inlined
def schedule_before_v1(world: World, tables: Tables, e: int, now: int) -> None:
    """Begins an iteration at `now` if there is anything to run."""
    engine = world.engines[e]
    engine.step_end_ps = -1
    engine.begin_ps = NEVER
    engine.steady = 0
    engine.prefills = 0
    if engine.num_running + engine.num_waiting == 0 or not takes_steps(world, e):
        return
    duration = _pick(world, tables, e, now)
    if duration < 0:
        return
    engine.tick += 1
    engine.decode_context += engine.num_running - engine.num_prefilling
    engine.steps += 1
    engine.busy_ps += duration
    engine.step_end_ps = now + duration
