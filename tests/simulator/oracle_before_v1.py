"""vLLM's scheduler before V1 in plain Python, for the oracle's engines: one pass after another, block by block.

Written from `_schedule_default` of vllm/core/scheduler.py and from block_manager_v1.py of vLLM 0.6.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulator.oracle import Engine, Request


def begin(engine: Engine, now: int) -> None:
    """Begins an iteration of an engine, if there is anything to do."""
    while True:
        dropped, copied = False, 0
        if not engine.swapped:
            _schedule_prefills(engine, now)
        if not engine.scheduled:
            dropped, copied = _schedule_running(engine, now)
            if not dropped:
                copied = _schedule_swapped(engine, now)
        if engine.scheduled or copied:
            compute_ps = engine.duration_ps() if engine.scheduled else 0
            engine.start(now, compute_ps + copied * engine.kind.load_ps)
            return
        if not dropped:
            return


def _free(engine: Engine) -> int:
    return engine.capacity_blocks - engine.used_blocks


def _watermark(engine: Engine) -> int:
    return int(0.01 * engine.total_blocks)


def _fail(request: Request, now: int) -> None:
    request.finish_ps = now
    request.fate = "failed" if request.lag_ps >= 0 else "refused"


def _schedule_prefills(engine: Engine, now: int) -> None:
    """Lets waiting requests in, in order, until one does not fit; those that never will are turned away."""
    while engine.waiting:
        request = engine.waiting[0]
        blocks = engine.blocks_for(request.tokens)
        too_long = request.tokens > engine.kind.max_batched_tokens
        if too_long or engine.total_blocks - blocks < _watermark(engine):
            _fail(engine.waiting.pop(0), now)
            continue
        if (
            _free(engine) - blocks < _watermark(engine)
            or request.tokens > engine.budget()
            or engine.places_taken() >= engine.kind.max_num_seqs
        ):
            return
        engine.running.append(engine.waiting.pop(0))
        engine.allocate(request, request.tokens)
        engine.scheduled[request] = request.tokens
        if request.first_scheduled_ps < 0:
            request.first_scheduled_ps = now


def _schedule_running(engine: Engine, now: int) -> tuple[bool, int]:
    """Lets running requests decode. Returns whether any gave way, and how many blocks were swapped out."""
    queue, engine.running = engine.running, []
    dropped: list[Request] = []
    swapped_out: list[Request] = []
    failed = False
    while queue:
        request = queue.pop(0)
        while _free(engine) < 1:
            victim = queue.pop() if queue else request
            engine.preemptions += 1
            held, was = victim.blocks, victim.computed
            engine.running.append(victim)  # where `drop` expects it
            engine.drop(victim)
            if engine.settings.preemption == "recompute":
                dropped.append(victim)
            elif len(held) > _room_on_host(engine, swapped_out):
                failed = True
                _fail(victim, now)
            else:
                victim.computed = was
                swapped_out.append(victim)
            if victim is request:
                break
        else:
            engine.allocate(request, request.tokens)
            engine.scheduled[request] = 1
            engine.running.append(request)
    for request in dropped:
        engine.waiting.insert(0, request)
    engine.swapped += swapped_out
    return bool(dropped or swapped_out or failed), _blocks(swapped_out, engine)


def _room_on_host(engine: Engine, swapped_out: list[Request]) -> int:
    return engine.settings.swap_blocks - engine.swapped_blocks - _blocks(swapped_out, engine)


def _blocks(requests: list[Request], engine: Engine) -> int:
    return sum(engine.blocks_for(request.computed) for request in requests)


def _schedule_swapped(engine: Engine, now: int) -> int:
    """Lets swapped requests back in, in order, where they decode. Returns how many blocks were swapped in."""
    copied = 0
    while engine.swapped:
        request = engine.swapped[0]
        held = engine.blocks_for(request.computed)
        if engine.total_blocks - held - 1 < _watermark(engine):
            _fail(engine.swapped.pop(0), now)
            continue
        if (
            _free(engine) - held - 1 < _watermark(engine)
            or engine.budget() < 1
            or engine.places_taken() >= engine.kind.max_num_seqs
        ):
            break
        engine.running.append(engine.swapped.pop(0))
        engine.allocate(request, request.computed + 1)
        engine.scheduled[request] = 1
        request.decoding = True
        copied += held
    return copied
