"""The data plane: arrivals, routing, and many engines under one clock. Compiled; SimPy decides when it stops."""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.aborts import end_overdue, next_overdue
from serving_gym.envs.simulator.kernel.accounting import (
    book_arrival,
    book_failure,
    book_refusal,
    latency_cost,
)
from serving_gym.envs.simulator.kernel.blocks import flush_cache
from serving_gym.envs.simulator.kernel.compiled import compiled, entry, inlined, int64
from serving_gym.envs.simulator.kernel.engine import decoding_progress, drop_running
from serving_gym.envs.simulator.kernel.observe import show_engines
from serving_gym.envs.simulator.kernel.queues import (
    enqueue,
    head_of,
    put_back,
    swapped_head,
    take_slot,
    tokens_to_prefill,
    unlink,
)
from serving_gym.envs.simulator.kernel.returns import clients_react, let_return, next_return
from serving_gym.envs.simulator.kernel.routers import may_take, route, route_decode
from serving_gym.envs.simulator.kernel.runs import catch_up, interrupt, kick, plan_run, show_load, step
from serving_gym.envs.simulator.kernel.sessions import (
    came_at,
    look_ahead,
    next_limit,
    pass_on,
    row_of,
    set_limits,
)
from serving_gym.envs.simulator.kernel.state import (
    ACTIVE,
    DRAINING,
    NEED_EXTENTS,
    NEED_LOG,
    NEED_SLOTS,
    NEVER,
    NOTIFIED,
    PAUSED,
    REACHED,
    SPECULATIVE,
    TRIGGERED,
    Tables,
    Traffic,
    World,
)
from serving_gym.envs.simulator.kernel.transit import land, take_off

__all__ = [
    "advance",
    "decoding_progress",
    "dispatch_pool",
    "fail_running",
    "flush_cache",
    "go_on",
    "hand_over",
    "is_idle",
    "kick",
    "lacks_extents",
    "latency_cost",
    "limit_length",
    "may_take",
    "most_tokens",
    "needs_room",
    "new_request",
    "next_arrival",
    "pool_running",
    "pool_waiting",
    "send",
    "show_engines",
    "step_engines",
    "take_stock",
]


_EXTENTS_A_REQUEST = 8  # records that a request takes at most beside its chain's

# -- arrivals ----------------------------------------------------------------------------------------------------------


@compiled
def most_tokens(world: World, slot: int) -> int:
    """Tokens a request may grow to, as its client declared."""
    request = world.requests[slot]
    return int64(request.prompt) + request.max_output


@compiled
def limit_length(world: World, slot: int) -> bool:
    """Ends a new request's answer where its endpoint's limit is reached; False: its prompt leaves no room for one.

    Source: vLLM's `max_model_len`, with a declared cap beyond it lowered to what the prompt leaves.
    """
    request = world.requests[slot]
    endpoint = world.endpoints[request.endpoint]
    room = endpoint.max_request_tokens - request.prompt
    if room < 1 or 0 < endpoint.max_prompt_tokens < request.prompt:
        return False
    if request.max_output > room:
        request.max_output = room
        request.output = min(int64(request.output), room)
    return True


@inlined
def hand_over(world: World, tables: Tables, slot: int, e: int) -> None:
    """Puts an unqueued request into an engine's queue."""
    catch_up(world, tables, e, world.cluster[0].now_ps)
    world.requests[slot].loaded = 0
    enqueue(world, e, slot)
    interrupt(world, e)
    show_load(world, tables, e)


@compiled
def new_request(world: World, traffic: Traffic, tables: Tables, k: int) -> int:
    """Fills a slot with the k-th request to arrive."""
    slot = take_slot(world)
    request = world.requests[slot]
    index = row_of(world, k)
    request.arrival_ps = came_at(world, traffic, k)
    request.first_scheduled_ps = -1
    request.first_token_ps = -1
    request.index = world.cluster[0].first_index + index
    request.prompt = traffic.prompt[index]
    request.output = traffic.output[index]
    request.max_output = traffic.max_output[index]
    request.generated = 0
    request.computed = 0
    request.chunk = 0
    request.level = traffic.level[index]
    request.class_id = traffic.class_id[index]
    request.endpoint = traffic.endpoint[index]
    request.deadline_ps = request.arrival_ps + tables.classes[request.class_id].ttft_slo_ps
    request.engine = -1
    request.preemptions = 0
    request.cached = 0
    request.holds = -1
    request.held_blocks = 0
    request.sharing = 0
    request.own_extents = -1
    request.loaded = 0
    request.loads = 0
    return slot


@inlined
def _ingest(world: World, traffic: Traffic, tables: Tables, k: int) -> int:
    """Lets the k-th request arrive. Returns the engine it went to if that stands idle, or -1."""
    slot = new_request(world, traffic, tables, k)
    if not limit_length(world, slot):
        book_refusal(world, slot)
        return int64(-1)
    book_arrival(world, tables, slot)
    if world.alarms.shape[1] > 0:
        set_limits(world, traffic, slot, row_of(world, k))
    e = route(world, tables, slot, most_tokens(world, slot))
    if e < 0:
        enqueue(world, len(world.engines), slot)
        return int64(-1)
    hand_over(world, tables, slot, e)
    return e if world.engines[e].step_end_ps < 0 else int64(-1)


@entry
def lacks_extents(world: World, num_requests: int) -> bool:
    """Prefix caching: whether records may run out while so many requests are come or go, and others decode on."""
    cluster = world.cluster[0]
    if cluster.prefix_caching == 0:
        return False
    return min(cluster.num_free_extents, cluster.num_free_holds) < (
        2 * num_requests + cluster.num_sharing + 2
    ) * (4 * cluster.longest_chain + _EXTENTS_A_REQUEST)


@compiled
def _most_changes(world: World, tables: Tables, e: int) -> int:
    """Requests that one step of an engine may admit or let go."""
    engine = world.engines[e]
    return engine.num_running + min(int64(engine.num_waiting), tables.kinds[engine.kind].max_num_seqs)


@compiled
def needs_room(world: World, arriving: int) -> int:
    """Whether arrays must grow before the `arriving`-th request of an instant may arrive.

    The log has room for all requests in flight.
    """
    cluster = world.cluster[0]
    if cluster.free_head < 0:
        return NEED_SLOTS
    if cluster.log_length + cluster.num_in_flight + 1 > len(world.log):
        return NEED_LOG
    return NEED_EXTENTS if lacks_extents(world, arriving) else REACHED


@compiled
def _triggered(world: World, traffic: Traffic, last: int) -> bool:
    """Whether a request that arrived together with the one of number `last` asks for a decision."""
    i = last
    while i >= 0 and came_at(world, traffic, i) == came_at(world, traffic, last):
        if traffic.trigger[row_of(world, i)] == 1:
            return True
        i -= 1
    return False


# -- the clock ---------------------------------------------------------------------------------------------------------


@compiled
def _done_or_held(world: World, e: int) -> bool:
    """Whether an engine that was asked to tell has nothing left to run or send, or stands still as told."""
    engine = world.engines[e]
    if engine.notify == 0 or engine.step_end_ps >= 0:
        return False
    at_work = engine.num_running + engine.num_waiting
    if engine.notify == 1:
        at_work += engine.num_kept
    return engine.hold == 1 or (at_work == 0 and engine.first_transit < 0)


@compiled
def _next_due(world: World) -> int:
    """The engine that is due first, the lowest in case of a tie."""
    first, due = int64(0), world.due_ps[0]
    for e in range(1, len(world.due_ps)):
        if world.due_ps[e] < due:
            first, due = int64(e), world.due_ps[e]
    return first


@compiled
def _clients_send(world: World, traffic: Traffic) -> bool:
    """Closed loop: clients whose last request has ended send the next one now. Returns whether any did."""
    cluster = world.cluster[0]
    if cluster.num_clients == 0:
        return False
    sent = False
    last = min(cluster.next_arrival + cluster.num_clients - cluster.num_in_flight, len(traffic.arrival_ps))
    for index in range(cluster.next_arrival, last):
        traffic.arrival_ps[index] = cluster.now_ps
        sent = True
    return sent


@compiled
def _end_load(world: World, tables: Tables, e: int) -> None:
    """Lets a request whose KV has been loaded from the host wait in front of the others; in the pool, if e is gone."""
    if not takes_requests_on(world, e):
        enqueue(world, len(world.engines), take_off(world, tables, e))
        return
    slot = land(world, e)
    world.requests[slot].loads = 0
    catch_up(world, tables, e, world.cluster[0].now_ps)
    put_back(world, e, slot)
    interrupt(world, e)
    show_load(world, tables, e)
    kick(world, e)


@compiled
def takes_requests_on(world: World, e: int) -> bool:
    """Whether an engine goes on with the requests that it has."""
    status = world.engines[e].status
    return status in (ACTIVE, SPECULATIVE, DRAINING, PAUSED)


@compiled
def _deliver(world: World, tables: Tables, e: int) -> None:
    """Lets the KV that an engine has sent arrive: its request goes to a decode engine, or is computed again.

    KV from the host arrives at the engine itself.
    """
    if world.requests[world.engines[e].first_transit].loads:
        _end_load(world, tables, e)
        return
    slot = take_off(world, tables, e)
    kick(world, e)  # it may have waited for the blocks
    target = route_decode(world, tables, e, most_tokens(world, slot))
    if target < 0:
        world.requests[slot].computed = 0
        enqueue(world, len(world.engines), slot)
    else:
        hand_over(world, tables, slot, target)
        kick(world, target)


@inlined
def step_engines(world: World, traffic: Traffic, tables: Tables, until: int, noticed: bool) -> int:
    """Steps engines in the order in which they are due: to `until`, the first notice, or a client's next request.

    Returns REACHED, NOTIFIED or NEED_EXTENTS. The order makes logs and sums of floats independent of how time is
    sliced.
    """
    cluster = world.cluster[0]
    while True:
        e = _next_due(world)
        due = world.due_ps[e]
        if due > (cluster.now_ps if noticed else until):
            break
        sends = e >= len(world.engines)
        if sends:
            e -= len(world.engines)
        if lacks_extents(world, _most_changes(world, tables, e)):
            return NEED_EXTENTS
        cluster.now_ps = due
        calls = cluster.num_calls
        if sends:
            _deliver(world, tables, e)
        else:
            step(world, tables, e)
        noticed |= _done_or_held(world, e)
        if clients_react(world):
            until = min(until, max(next_return(world), int64(cluster.now_ps)))
        if not noticed and _clients_send(world, traffic):
            return REACHED
        if cluster.num_calls > calls:  # an answer has ended that others have waited for
            look_ahead(world, traffic)
            until = min(until, max(next_arrival(world, traffic), int64(cluster.now_ps)))
    if noticed:
        return NOTIFIED
    cluster.now_ps = until
    return REACHED


@compiled
def take_stock(world: World, tables: Tables) -> bool:
    """Plans every engine's run anew, as the control plane may have acted. Returns whether one has something to tell."""
    noticed = False
    for e in range(len(world.engines)):
        plan_run(world, tables, e)
        noticed |= _done_or_held(world, e)
    return noticed


@compiled
def _kick_all(world: World) -> None:
    for e in range(len(world.engines)):
        kick(world, e)


@inlined
def _let_arrive(world: World, traffic: Traffic, tables: Tables, now: int) -> int:
    """Lets the requests of one instant arrive and idle engines begin. Returns REACHED, or why the clock must stop."""
    cluster = world.cluster[0]
    first = cluster.next_arrival
    # If there was no room for all of the instant, an engine that got work then has yet to begin.
    several = first > 0 and came_at(world, traffic, first - 1) == now
    idle = int64(-1)
    let_return(world, tables, now)
    while next_arrival(world, traffic) == now:
        needs = needs_room(world, cluster.next_arrival - first)
        if needs != REACHED:
            return needs
        e = _ingest(world, traffic, tables, cluster.next_arrival)
        pass_on(world, traffic)
        several |= idle >= 0 and e >= 0
        idle = max(idle, e)
    if several:
        _kick_all(world)
    elif idle >= 0:
        kick(world, idle)
    if cluster.stop_on_trigger and _triggered(world, traffic, cluster.next_arrival - 1):
        cluster.triggered = 1
    return REACHED


@compiled
def end_all_overdue(world: World, tables: Tables) -> bool:
    """Ends requests whose time limits have run out, while there are records to. Returns whether one has news."""
    noticed = False
    while not lacks_extents(world, int64(1)):
        slot = next_overdue(world)
        if slot < 0:
            break
        e = end_overdue(world, tables, slot)
        noticed |= e >= 0 and _done_or_held(world, e)
    return noticed


@compiled
def next_arrival(world: World, traffic: Traffic) -> int:
    """Time of the next arrival, or NEVER."""
    if world.cluster[0].next_arrival < len(traffic.arrival_ps):
        return came_at(world, traffic, world.cluster[0].next_arrival)
    return NEVER


@entry
def advance(world: World, traffic: Traffic, tables: Tables, until: int) -> int:
    """Moves the world to `until`, or to the first thing the control plane must see. Returns why it stopped.

    At one instant iterations end and busy engines begin the next ones, then requests arrive (all of that instant), then
    idle engines begin.
    """
    if lacks_extents(world, int64(0)):
        return NEED_EXTENTS
    return go_on(world, traffic, tables, until, take_stock(world, tables))


@compiled
def go_on(world: World, traffic: Traffic, tables: Tables, until: int, noticed: bool) -> int:
    """`advance` where the control plane has not acted since the world last stood still; `noticed`: one has news."""
    cluster = world.cluster[0]
    if lacks_extents(world, int64(0)):
        return NEED_EXTENTS
    reason = REACHED
    while reason == REACHED:
        _clients_send(world, traffic)
        if len(world.turns) > 0:
            look_ahead(world, traffic)
        limit = int64(cluster.now_ps)
        if not cluster.triggered:
            limit = min(next_arrival(world, traffic), next_limit(world), until)
            if clients_react(world):
                limit = min(limit, max(next_return(world), int64(cluster.now_ps)))
        reason = step_engines(world, traffic, tables, limit, noticed)
        if clients_react(world) and next_return(world) <= cluster.now_ps:
            let_return(world, tables, int64(cluster.now_ps))
            if reason == REACHED:  # what they send next may come before anything else
                continue
        if reason == REACHED and cluster.triggered:
            cluster.triggered = 0
            reason = TRIGGERED
        upcoming = next_arrival(world, traffic)
        if next_limit(world) <= min(upcoming, until):
            if reason == REACHED:
                let_return(world, tables, int64(cluster.now_ps))
                noticed |= end_all_overdue(world, tables)
                if lacks_extents(world, int64(1)):
                    reason = NEED_EXTENTS
            continue
        if upcoming > until:
            break
        if reason == REACHED:
            reason = _let_arrive(world, traffic, tables, upcoming)
    for e in range(len(world.engines)):
        catch_up(world, tables, e, cluster.now_ps)
    let_return(world, tables, int64(cluster.now_ps))
    show_engines(world, tables)
    cluster.latency_cost = latency_cost(world)
    return reason


# -- what the control plane does with requests -------------------------------------------------------------------------


@entry
def dispatch_pool(world: World, tables: Tables) -> None:
    """Offers every pooled request to the router again, in order, and lets engines see what has changed for them."""
    num_engines = len(world.engines)
    for e in range(num_engines):
        show_load(world, tables, e)
    for level in range(world.queues.shape[1]):
        slot = int64(world.queues[num_engines, level, 0])
        while slot >= 0:
            following = int64(world.requests[slot].next)
            e = route(world, tables, slot, most_tokens(world, slot))
            if e >= 0:
                unlink(world, num_engines, slot)
                hand_over(world, tables, slot, e)
            slot = following
    for e in range(num_engines):
        interrupt(world, e)
    _kick_all(world)


@entry
def send(world: World, tables: Tables, slot: int, e: int) -> None:
    """Moves a pooled request to an engine of the caller's choice and starts it if it is idle."""
    unlink(world, len(world.engines), slot)
    hand_over(world, tables, slot, e)
    kick(world, e)


@entry
def pool_waiting(world: World, e: int) -> None:
    """Sends an engine's waiting requests to the pool."""
    while world.engines[e].num_waiting > 0:
        slot = head_of(world, e, world.cluster[0].now_ps)
        if slot < 0:
            slot = swapped_head(world, e)
        unlink(world, e, slot)
        world.engines[e].pending_prefill_tokens -= tokens_to_prefill(world, slot)
        world.requests[slot].computed = 0  # what it brought along or has on the host stays behind
        enqueue(world, len(world.engines), slot)


@compiled
def _break_off(world: World, e: int) -> None:
    """Abandons the iteration in flight of an engine whose requests are gone."""
    engine = world.engines[e]
    if engine.step_end_ps >= 0:
        undone = engine.step_end_ps - world.cluster[0].now_ps
        engine.busy_ps -= undone
        engine.prefill_ps -= undone * engine.prefills
    engine.step_end_ps = -1
    engine.next_finish_tick = NEVER
    interrupt(world, e)


@entry
def pool_running(world: World, tables: Tables, e: int) -> None:
    """Drops the KV of an engine's running requests and sends them to the pool, to be recomputed elsewhere."""
    while world.engines[e].first_transit >= 0:
        slot = take_off(world, tables, e)
        world.requests[slot].computed = 0
        enqueue(world, len(world.engines), slot)
    while world.engines[e].num_running > 0:
        slot = drop_running(world, tables, e, world.engines[e].num_running - 1, int64(0), int64(1))
        enqueue(world, len(world.engines), slot)
    _break_off(world, e)


@entry
def fail_running(world: World, tables: Tables, e: int) -> None:
    """Loses an engine's running requests: their clients get an error."""
    while world.engines[e].first_transit >= 0:
        slot = take_off(world, tables, e)
        book_failure(world, tables, slot, world.cluster[0].now_ps)
    while world.engines[e].num_running > 0:
        slot = drop_running(world, tables, e, world.engines[e].num_running - 1, int64(0), int64(0))
        book_failure(world, tables, slot, world.cluster[0].now_ps)
    _break_off(world, e)


@entry
def is_idle(world: World, traffic: Traffic) -> bool:
    """Whether every request of the workload has arrived and left, but those that wait for an answer in vain."""
    if world.cluster[0].num_in_flight > 0:
        return False
    if len(world.turns) > 0:
        look_ahead(world, traffic)
        return next_arrival(world, traffic) == NEVER
    return world.cluster[0].next_arrival >= len(traffic.arrival_ps)
