"""Tokens on their way from an engine to its clients, and what the clients see.

What lies between the two (HTTP, tokenisation, streaming: `Tables.fronts`) delays every token of a request alike. An
engine begins as soon as a request is sent to it, and the whole delay follows its tokens: what clients measure is the
same as if a part of it had come before. Answers count, in metrics, rewards and observations, when clients have them.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.accounting import book_finish, book_first_token
from serving_gym.envs.simulator.kernel.compiled import compiled, inlined, int64
from serving_gym.envs.simulator.kernel.heaps import pop, push
from serving_gym.envs.simulator.kernel.state import (
    FIRST_TOKEN,
    FREE,
    LAST_TOKEN,
    LEAST_REQUESTS,
    NEVER,
    RETURNING,
    Tables,
    World,
)


@inlined
def _lag_ps(world: World, tables: Tables, e: int, slot: int, decoding: int) -> int:
    """From a token's end in an engine to its client, while `decoding` requests decode beside its first token."""
    engine, request = world.engines[e], world.requests[slot]
    front = tables.fronts[engine.kind]
    lag_ps = front.fixed_ps + front.token_ps * request.prompt + front.request_ps * decoding
    if front.iterations > 0.0 and request.first_scheduled_ps > request.arrival_ps:
        step_ps = tables.decode_ps[engine.kind, max(decoding, 1)]
        step_ps += tables.kinds[engine.kind].kv_ps * engine.decode_context
        lag_ps += int64(front.iterations * step_ps)
    return int64(lag_ps * world.cluster[0].front_factor)


@inlined
def _send_back(world: World, slot: int, due_ps: int, which: int) -> None:
    cluster = world.cluster[0]
    push(world.returns, int64(cluster.num_returns), due_ps, int64(world.requests[slot].index), slot, which)
    cluster.num_returns += 1


@inlined
def end_first_token(world: World, tables: Tables, e: int, slot: int, now: int, decoding: int) -> None:
    """An engine has computed a request's first token, while `decoding` others decoded."""
    if len(world.returns) == 0:
        book_first_token(world, tables, slot, now)
        return
    request = world.requests[slot]
    request.lag_ps = _lag_ps(world, tables, e, slot, decoding)
    request.first_token_ps = now + request.lag_ps
    _send_back(world, slot, int64(request.first_token_ps), int64(FIRST_TOKEN))


@inlined
def end_answer(world: World, tables: Tables, e: int, slot: int, now: int) -> None:
    """An engine has computed a request's last token, and the request has left it."""
    if len(world.returns) == 0:
        book_finish(world, tables, slot, now)
        return
    request = world.requests[slot]
    request.phase = RETURNING
    request.generated = request.output
    engine = world.engines[e]
    request.prev, request.next = -1, engine.first_returning
    if engine.first_returning >= 0:
        world.requests[engine.first_returning].prev = slot
    engine.first_returning = slot
    engine.num_returning += 1
    _send_back(world, slot, now + int64(request.lag_ps), int64(LAST_TOKEN))


@inlined
def stop_returning(world: World, slot: int) -> None:
    """Takes a request off the list of those whose answers are on the way."""
    request = world.requests[slot]
    engine = world.engines[request.engine]
    if request.prev < 0:
        engine.first_returning = request.next
    else:
        world.requests[request.prev].next = request.next
    if request.next >= 0:
        world.requests[request.next].prev = request.prev
    engine.num_returning -= 1
    engine.changes += 1


@inlined
def next_return(world: World) -> int:
    """When the next token comes to its client, or NEVER."""
    if len(world.returns) == 0 or world.cluster[0].num_returns == 0:
        return NEVER
    return int64(world.returns[0].due_ps)


@compiled
def _let_return(world: World, tables: Tables, now: int) -> None:
    cluster = world.cluster[0]
    while cluster.num_returns > 0 and world.returns[0].due_ps <= now:
        due_ps, slot = int64(world.returns[0].due_ps), int64(world.returns[0].slot)
        index, which = int64(world.returns[0].row), int64(world.returns[0].limit)
        pop(world.returns, int64(cluster.num_returns))
        cluster.num_returns -= 1
        request = world.requests[slot]
        if request.phase == FREE or request.index != index:  # its client has hung up
            continue
        e = int64(request.engine)
        if which == FIRST_TOKEN:
            book_first_token(world, tables, slot, due_ps)
            if e >= 0:
                world.engines[e].changes += 1
        else:
            stop_returning(world, slot)
            if cluster.router == LEAST_REQUESTS:
                world.load[e] -= 1.0
            book_finish(world, tables, slot, due_ps)


@inlined
def let_return(world: World, tables: Tables, now: int) -> None:
    """Gives clients the tokens that have come by `now`, in the order in which they come."""
    if next_return(world) <= now:
        _let_return(world, tables, now)


@inlined
def clients_react(world: World) -> bool:
    """Whether what is sent next depends on what clients have."""
    return len(world.returns) > 0 and (len(world.turns) > 0 or world.cluster[0].num_clients > 0)


@inlined
def has_first_token(world: World, slot: int) -> bool:
    """Whether a request's client has its first token."""
    first_ps = world.requests[slot].first_token_ps
    return first_ps >= 0 and first_ps <= world.cluster[0].now_ps
