"""Clients that hang up and time limits that run out, as vLLM's `Scheduler.finish_requests` lets requests go."""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.accounting import book_abort, book_timeout
from serving_gym.envs.simulator.kernel.compiled import compiled, entry, int64
from serving_gym.envs.simulator.kernel.engine import drop_running, find_next_finish
from serving_gym.envs.simulator.kernel.queues import tokens_to_prefill, unlink
from serving_gym.envs.simulator.kernel.returns import has_first_token, stop_returning
from serving_gym.envs.simulator.kernel.runs import catch_up, interrupt, kick, show_load
from serving_gym.envs.simulator.kernel.sessions import drop_alarm, next_limit, set_alarm
from serving_gym.envs.simulator.kernel.state import (
    DECODE,
    FREE,
    LIMITS,
    PS_PER_S,
    RETURNING,
    TRANSIT,
    UNTIL_END,
    UNTIL_FIRST_TOKEN,
    WAITING,
    Tables,
    World,
)

_ON_ITS_WAY_PS = PS_PER_S // 100  # how often a request is looked at again whose KV is on the way


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


@compiled
def let_go(world: World, tables: Tables, slot: int) -> int:
    """Takes a request out of where it stands; its KV is free at once. Returns its engine, or -1."""
    e, now = int64(world.requests[slot].engine), world.cluster[0].now_ps
    if e < 0:
        unlink(world, int64(len(world.engines)), slot)
    elif world.requests[slot].phase == RETURNING:
        stop_returning(world, slot)
        catch_up(world, tables, e, now)
        show_load(world, tables, e)
    else:
        catch_up(world, tables, e, now)
        if world.requests[slot].phase == WAITING:
            unlink(world, e, slot)
            world.engines[e].pending_prefill_tokens -= tokens_to_prefill(world, slot)
        else:
            _abort_running(world, tables, e, slot)
        interrupt(world, e)
        show_load(world, tables, e)
    return e


@entry
def abort(world: World, tables: Tables, slot: int) -> None:
    """Lets a request go whose client has hung up, wherever it stands."""
    let_go(world, tables, slot)
    book_abort(world, tables, slot, world.cluster[0].now_ps)


@compiled
def next_overdue(world: World) -> int:
    """The next request whose time limit has run out and that can be let go, or -1.

    One whose KV is on the way between engines is looked at again when that is over.
    """
    now = world.cluster[0].now_ps
    while next_limit(world) <= now:
        alarm = world.alarms[LIMITS, 0]
        index, slot, limit = int64(alarm.row), int64(alarm.slot), int64(alarm.limit)
        request = world.requests[slot]
        there = request.phase != FREE and request.index == index
        answered = has_first_token(world, slot) if limit == UNTIL_FIRST_TOKEN else request.phase == RETURNING
        if not there or answered:
            drop_alarm(world, int64(LIMITS))
        elif request.phase == TRANSIT or request.target > 0:
            drop_alarm(world, int64(LIMITS))
            set_alarm(world, int64(LIMITS), now + _ON_ITS_WAY_PS, index, slot, limit)
        else:
            return slot
    return int64(-1)


@compiled
def end_overdue(world: World, tables: Tables, slot: int) -> int:
    """Ends the request that `next_overdue` has found. Returns its engine, or -1."""
    limit = world.alarms[LIMITS, 0].limit
    drop_alarm(world, int64(LIMITS))
    e = let_go(world, tables, slot)
    book_overdue(world, tables, slot, int64(limit))
    if e >= 0:
        kick(world, e)
    return e


@compiled
def book_overdue(world: World, tables: Tables, slot: int, limit: int) -> None:
    """Books a request whose client has lost patience, or that its server has ended."""
    if limit == UNTIL_END:
        book_timeout(world, tables, slot, world.cluster[0].now_ps)
    else:
        book_abort(world, tables, slot, world.cluster[0].now_ps)
