"""What becomes of requests, booked class by class: counts, latencies, SLOs met, and the running latency cost.

The latency cost of a request rises by 1/TTFT_SLO a second until its first token and by 1/(TPOT_SLO * (output - 1)) a
second from there to its last, so that it ends at TTFT/TTFT_SLO + TPOT/TPOT_SLO. Its running integral over all requests
is kept as two sums, of weights and of weight times start. Beside it stands the sum of the squares of TTFT/TTFT_SLO, in
which a tail weighs more, with one sum more.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.compiled import compiled, entry, int64
from serving_gym.envs.simulator.kernel.queues import release_slot
from serving_gym.envs.simulator.kernel.sessions import answer_ended
from serving_gym.envs.simulator.kernel.state import (
    ABORTED,
    FAILED,
    FINISHED,
    PS_PER_S,
    REFUSED,
    S_ABORTED,
    S_ARRIVED,
    S_ARRIVED_TOKENS,
    S_DECODE_CLOSED,
    S_DECODE_W,
    S_DECODE_WS,
    S_FAILED,
    S_FINISHED,
    S_FIRST,
    S_GENERATED,
    S_GOOD,
    S_REFUSED,
    S_SQUARE_CLOSED,
    S_SQUARE_W,
    S_SQUARE_WS,
    S_SQUARE_WSS,
    S_TPOT_MET,
    S_TPOT_SUM,
    S_TTFT_MET,
    S_TTFT_SUM,
    S_WAIT_CLOSED,
    S_WAIT_W,
    S_WAIT_WS,
    TIMED_OUT,
    TOO_LONG,
    Tables,
    World,
)


@compiled
def _write_log(world: World, slot: int, now: int, outcome: int) -> None:
    """Appends a request's fate to the log, which always has room for all requests in flight, and frees its slot."""
    cluster, request = world.cluster[0], world.requests[slot]
    entry = world.log[cluster.log_length]
    entry.arrival_ps = request.arrival_ps
    entry.first_scheduled_ps = request.first_scheduled_ps
    entry.first_token_ps = request.first_token_ps
    entry.finish_ps = now
    entry.index = request.index
    entry.generated = request.generated
    entry.preemptions = request.preemptions
    entry.cached = request.cached
    entry.class_id = request.class_id
    entry.endpoint = request.endpoint
    entry.engine = request.engine
    entry.outcome = outcome
    cluster.log_length += 1
    if len(world.turns) > 0 and outcome == FINISHED:
        answer_ended(world, int64(request.index), now)
    release_slot(world, slot)


@compiled
def _wait_cost_rate(world: World, tables: Tables, slot: int) -> float:
    """Cost per second of a request before its first token."""
    return PS_PER_S / tables.classes[world.requests[slot].class_id].ttft_slo_ps


@compiled
def _decode_cost_rate(world: World, tables: Tables, slot: int) -> float:
    """Cost per second of a request between first and last token; it has more than one."""
    request = world.requests[slot]
    return PS_PER_S / tables.classes[request.class_id].tpot_slo_ps / (request.output - 1)


@compiled
def _count_waiting(world: World, tables: Tables, slot: int, sign: int) -> None:
    """Adds a request without a first token to the sums of those, or takes it away."""
    stats = world.stats[world.requests[slot].class_id]
    weight = _wait_cost_rate(world, tables, slot)
    arrival_s = world.requests[slot].arrival_ps / PS_PER_S
    stats[S_WAIT_W] += sign * weight
    stats[S_WAIT_WS] += sign * (weight * arrival_s)
    stats[S_SQUARE_W] += sign * (weight * weight)
    stats[S_SQUARE_WS] += sign * (weight * weight * arrival_s)
    stats[S_SQUARE_WSS] += sign * (weight * weight * arrival_s * arrival_s)


@compiled
def _stop_waiting(world: World, tables: Tables, slot: int, now: int) -> None:
    """Closes the waiting cost of a request that got its first token or failed."""
    request = world.requests[slot]
    cost = _wait_cost_rate(world, tables, slot) * ((now - request.arrival_ps) / PS_PER_S)
    _count_waiting(world, tables, slot, int64(-1))
    world.stats[request.class_id, S_WAIT_CLOSED] += cost
    world.stats[request.class_id, S_SQUARE_CLOSED] += cost * cost


@compiled
def _stop_decoding(world: World, tables: Tables, slot: int, now: int) -> None:
    """Closes the decoding cost of a request that finished or failed."""
    request = world.requests[slot]
    c = request.class_id
    weight = _decode_cost_rate(world, tables, slot)
    world.stats[c, S_DECODE_W] -= weight
    world.stats[c, S_DECODE_WS] -= weight * (request.first_token_ps / PS_PER_S)
    world.stats[c, S_DECODE_CLOSED] += weight * ((now - request.first_token_ps) / PS_PER_S)


@compiled
def book_arrival(world: World, tables: Tables, slot: int) -> None:
    """Books a request that has arrived and is not refused."""
    request = world.requests[slot]
    c = request.class_id
    world.stats[c, S_ARRIVED] += 1
    world.stats[c, S_ARRIVED_TOKENS] += request.prompt
    _count_waiting(world, tables, slot, int64(1))


@compiled
def book_refusal(world: World, slot: int) -> None:
    """Books a request that is refused as it arrives, its prompt being too long, and frees its slot."""
    request = world.requests[slot]
    c = request.class_id
    world.stats[c, S_ARRIVED] += 1
    world.stats[c, S_ARRIVED_TOKENS] += request.prompt
    world.stats[c, S_REFUSED] += 1
    _write_log(world, slot, request.arrival_ps, int64(TOO_LONG))


@compiled
def book_first_token(world: World, tables: Tables, slot: int, now: int) -> None:
    """Books a request's first token."""
    request = world.requests[slot]
    request.first_token_ps = now
    c = request.class_id
    ttft_ps = now - request.arrival_ps
    world.stats[c, S_FIRST] += 1
    world.stats[c, S_TTFT_SUM] += ttft_ps / PS_PER_S
    if ttft_ps <= tables.classes[c].ttft_slo_ps:
        world.stats[c, S_TTFT_MET] += 1
    _stop_waiting(world, tables, slot, now)
    if request.output > 1:
        weight = _decode_cost_rate(world, tables, slot)
        world.stats[c, S_DECODE_W] += weight
        world.stats[c, S_DECODE_WS] += weight * (now / PS_PER_S)


@compiled
def book_finish(world: World, tables: Tables, slot: int, now: int) -> None:
    """Books a finished request and frees its slot."""
    request = world.requests[slot]
    c = request.class_id
    tpot_ps = (now - request.first_token_ps) / max(request.output - 1, 1)
    world.stats[c, S_FINISHED] += 1
    world.stats[c, S_GENERATED] += request.output
    world.stats[c, S_TPOT_SUM] += tpot_ps / PS_PER_S
    if tpot_ps <= tables.classes[c].tpot_slo_ps:
        world.stats[c, S_TPOT_MET] += 1
        if request.first_token_ps - request.arrival_ps <= tables.classes[c].ttft_slo_ps:
            world.stats[c, S_GOOD] += 1
    if request.output > 1:
        _stop_decoding(world, tables, slot, now)
    request.generated = request.output
    _write_log(world, slot, now, int64(FINISHED))


@compiled
def _stop_cost(world: World, tables: Tables, slot: int, now: int) -> None:
    """Closes the latency cost of a request that leaves unfinished."""
    request = world.requests[slot]
    if request.first_token_ps < 0 or request.first_token_ps > now:
        request.first_token_ps = -1
        _stop_waiting(world, tables, slot, now)
    elif request.output > 1:
        _stop_decoding(world, tables, slot, now)


@compiled
def book_failure(world: World, tables: Tables, slot: int, now: int) -> None:
    """Books a request whose client gets an error, and frees its slot."""
    world.stats[world.requests[slot].class_id, S_FAILED] += 1
    _stop_cost(world, tables, slot, now)
    _write_log(world, slot, now, int64(FAILED))


@compiled
def book_timeout(world: World, tables: Tables, slot: int, now: int) -> None:
    """Books a request that its server has ended as one that failed, and frees its slot."""
    world.stats[world.requests[slot].class_id, S_FAILED] += 1
    _stop_cost(world, tables, slot, now)
    _write_log(world, slot, now, int64(TIMED_OUT))


@compiled
def book_turned_away(world: World, tables: Tables, slot: int, now: int) -> None:
    """Books a request that its router refuses after it has arrived, and frees its slot."""
    world.stats[world.requests[slot].class_id, S_REFUSED] += 1
    _stop_cost(world, tables, slot, now)
    _write_log(world, slot, now, int64(REFUSED))


@compiled
def book_abort(world: World, tables: Tables, slot: int, now: int) -> None:
    """Books a request whose client has hung up as one that failed, and frees its slot."""
    world.stats[world.requests[slot].class_id, S_FAILED] += 1
    world.stats[world.requests[slot].class_id, S_ABORTED] += 1
    _stop_cost(world, tables, slot, now)
    _write_log(world, slot, now, int64(ABORTED))


@entry
def latency_cost(world: World) -> float:
    """Running integral of the SLO-weighted number in system: sum over requests of TTFT/SLO + TPOT/SLO up to now."""
    now_s = world.cluster[0].now_ps / PS_PER_S
    total = 0.0
    for c in range(len(world.stats)):
        stats = world.stats[c]
        total += stats[S_WAIT_CLOSED] + now_s * stats[S_WAIT_W] - stats[S_WAIT_WS]
        total += stats[S_DECODE_CLOSED] + now_s * stats[S_DECODE_W] - stats[S_DECODE_WS]
    return total


@compiled
def square_cost(world: World) -> float:
    """Sum over requests of (TTFT/SLO) squared, of those without a first token as if it came now."""
    now_s = world.cluster[0].now_ps / PS_PER_S
    total = 0.0
    for c in range(len(world.stats)):
        stats = world.stats[c]
        total += stats[S_SQUARE_CLOSED] + now_s * now_s * stats[S_SQUARE_W]
        total += stats[S_SQUARE_WSS] - 2.0 * now_s * stats[S_SQUARE_WS]
    return total
