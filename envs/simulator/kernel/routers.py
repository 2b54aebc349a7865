"""The built-in routers: which engine of its endpoint a request goes to."""

from __future__ import annotations

import numpy as np

from serving_gym.envs.simulator.kernel.compiled import compiled, entry, inlined, int64
from serving_gym.envs.simulator.kernel.runs import catch_up
from serving_gym.envs.simulator.kernel.state import (
    ACTIVE,
    AFFINITY,
    HOLD,
    ROUND_ROBIN,
    SPECULATIVE,
    WEIGHTED,
    Tables,
    World,
)


@entry
def may_take(world: World, tables: Tables, e: int, most_tokens: int) -> bool:
    """Whether an engine takes new requests and could hold one that grows to `most_tokens`."""
    engine = world.engines[e]
    if engine.status != ACTIVE and engine.status != SPECULATIVE:
        return False
    return most_tokens <= engine.capacity_blocks * tables.kinds[engine.kind].block_size


@compiled
def _width_wanted(world: World, tables: Tables, endpoint: int, most_tokens: int, urgent: bool) -> int:
    """AFFINITY: the widest engines serve urgent requests, the narrower ones the rest, if there are any.

    Returns the width to choose, or the negated width to avoid, or 0 where all fitting engines are as wide.
    """
    widest, narrowest = int64(0), int64(np.iinfo(np.int32).max)
    for e in range(int64(world.endpoints[endpoint].first), int64(world.endpoints[endpoint].last)):
        if may_take(world, tables, e, most_tokens):
            widest = max(widest, int64(world.engines[e].width))
            narrowest = min(narrowest, int64(world.engines[e].width))
    if widest <= narrowest:
        return int64(0)
    return widest if urgent else -widest


@compiled
def _next_in_turn(world: World, tables: Tables, number: int, most_tokens: int) -> int:
    """ROUND_ROBIN: the next engine of the endpoint that can take the request, or -1."""
    endpoint = world.endpoints[number]
    num_engines = int64(endpoint.last) - endpoint.first
    for turn in range(num_engines):
        place = int64((endpoint.turn + turn) % num_engines)
        if may_take(world, tables, endpoint.first + place, most_tokens):
            endpoint.turn = (place + 1) % num_engines
            return int64(endpoint.first + place)
    return int64(-1)


@compiled
def _lowest_that_may(world: World, tables: Tables, endpoint: int, width: int, most_tokens: int) -> int:
    """The first engine with the lowest load, or -1. A negative width is one to avoid, zero admits all."""
    best, lowest = int64(-1), np.inf
    for e in range(int64(world.endpoints[endpoint].first), int64(world.endpoints[endpoint].last)):
        if world.load[e] < lowest and may_take(world, tables, e, most_tokens):
            engine_width = world.engines[e].width
            if width == 0 or (width > 0 and engine_width == width) or (width < 0 and engine_width != -width):
                best, lowest = int64(e), world.load[e]
    return best


@inlined
def _lowest(world: World, tables: Tables, endpoint: int, width: int, most_tokens: int) -> int:
    """As `_lowest_that_may`, but first looks at loads alone: the least loaded engine nearly always may."""
    best, lowest = int64(-1), np.inf
    for e in range(int64(world.endpoints[endpoint].first), int64(world.endpoints[endpoint].last)):
        if world.load[e] < lowest:
            best, lowest = int64(e), world.load[e]
    if width == 0 and best >= 0 and may_take(world, tables, best, most_tokens):
        return best
    return _lowest_that_may(world, tables, endpoint, width, most_tokens)


@compiled
def _as_shared_out(world: World, tables: Tables, number: int, most_tokens: int) -> int:
    """WEIGHTED: the engine of an endpoint that is owed most, among those with a share that can take the request, or -1.

    Each is owed its share of every request that it could have taken (smooth weighted round robin), so that after any
    number of requests it has had its share of them to within one or two.
    """
    first, last = int64(world.endpoints[number].first), int64(world.endpoints[number].last)
    total = 0.0
    for e in range(first, last):
        if world.shares[number, e] > 0.0 and may_take(world, tables, e, most_tokens):
            total += world.shares[number, e]
    best = int64(-1)
    for e in range(first, last):
        if world.shares[number, e] > 0.0 and may_take(world, tables, e, most_tokens):
            world.credit[number, e] += world.shares[number, e] / total
            if best < 0 or world.credit[number, e] > world.credit[number, best]:
                best = int64(e)
    if best >= 0:
        world.credit[number, best] -= 1.0
    return best


@inlined
def route(world: World, tables: Tables, slot: int, most_tokens: int) -> int:
    """The built-in router's engine for a request, or -1 (none can take it, or the router holds).

    WEIGHTED falls back on the lowest load where no engine with a share can take it. An engine that only prefills holds
    what is computed there and the first token, whatever the answer grows to elsewhere.

    An engine that has not caught up shows less context than it has. If it looks best it catches up, and the choice is
    made again: what wins in the end has its true load, and the others have at least theirs.
    """
    router = world.cluster[0].router
    now = world.cluster[0].now_ps
    endpoint = int64(world.requests[slot].endpoint)
    if router == HOLD:
        return int64(-1)
    if world.endpoints[endpoint].max_prompt_tokens > 0:
        most_tokens = int64(world.requests[slot].prompt) + world.requests[slot].generated + 1
    if router == ROUND_ROBIN:
        return _next_in_turn(world, tables, endpoint, most_tokens)
    if router == WEIGHTED:
        e = _as_shared_out(world, tables, endpoint, most_tokens)
        if e >= 0:
            return e
    width = int64(0)
    if router == AFFINITY:
        width = _width_wanted(world, tables, endpoint, most_tokens, world.requests[slot].level == 0)
    while True:
        e = _lowest(world, tables, endpoint, width, most_tokens)
        if e < 0 or world.engines[e].run_left == 0 or world.engines[e].step_end_ps > now:
            return e
        catch_up(world, tables, e, now)


@compiled
def _endpoint_of(world: World, e: int) -> int:
    """The endpoint whose new requests an engine takes."""
    number = int64(0)
    while not (world.endpoints[number].first <= e and e < world.endpoints[number].last):
        number += 1
    return number


@compiled
def route_decode(world: World, tables: Tables, prefilled_by: int, most_tokens: int) -> int:
    """The least loaded engine that decodes what an engine of its endpoint has prefilled, or -1."""
    endpoint = world.endpoints[_endpoint_of(world, prefilled_by)]
    now = world.cluster[0].now_ps
    best, lowest = int64(-1), np.inf
    for e in range(int64(endpoint.first_decode), int64(endpoint.last_decode)):
        catch_up(world, tables, e, now)
        if world.load[e] < lowest and may_take(world, tables, e, most_tokens):
            best, lowest = int64(e), world.load[e]
    return best
