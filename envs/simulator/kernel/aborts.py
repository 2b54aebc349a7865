"""Clients that hang up, as vLLM's `Scheduler.finish_requests` lets them go."""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.accounting import book_abort
from serving_gym.envs.simulator.kernel.compiled import compiled, entry, int64
from serving_gym.envs.simulator.kernel.engine import drop_running, find_next_finish
from serving_gym.envs.simulator.kernel.queues import tokens_to_prefill, unlink
from serving_gym.envs.simulator.kernel.runs import catch_up, interrupt, show_load
from serving_gym.envs.simulator.kernel.state import DECODE, WAITING, Tables, World


@compiled
def _abort_running(world: World, tables: Tables, e: int, slot: int) -> None:
    """Takes a request out of the batch; the iteration in flight goes on and lasts as long, but gives it no token."""
    engine, request = world.engines[e], world.requests[slot]
    if engine.step_end_ps >= 0 and request.phase == DECODE and (engine.walked == 0 or request.chunk > 0):
        engine.step_decodes -= 1
    i = int64(0)
    while world.running[e, i] != slot:
        i += 1
    drop_running(world, tables, e, i, int64(0), int64(0))
    request.preemptions -= 1  # it was not preempted
    find_next_finish(world, e)


@entry
def abort(world: World, tables: Tables, slot: int) -> None:
    """Lets a request go whose client has hung up, wherever it stands. Its KV is free at once."""
    e, now = int64(world.requests[slot].engine), world.cluster[0].now_ps
    if e < 0:
        unlink(world, int64(len(world.engines)), slot)
    else:
        catch_up(world, tables, e, now)
        if world.requests[slot].phase == WAITING:
            unlink(world, e, slot)
            world.engines[e].pending_prefill_tokens -= tokens_to_prefill(world, slot)
        else:
            _abort_running(world, tables, e, slot)
        interrupt(world, e)
        show_load(world, tables, e)
    book_abort(world, tables, slot, now)
