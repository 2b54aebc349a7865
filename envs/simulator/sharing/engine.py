"""From one event to the next.

What is due at one instant happens in this order: operations end, by slot; iterations end, by node; requests arrive;
those that have waited too long are refused; idle instances are unloaded; whoever manages memory looks at what has
changed; held requests are offered; idle nodes begin iterations, by node.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.compiled import compiled, entry
from serving_gym.envs.simulator.sharing.arrays import (
    AFTER_RELEASE,
    ASK,
    END,
    ITERATION,
    NEVER,
    NO_MORE,
    NOT_ASKED,
    OF_FINISHED,
    OF_OPERATION,
    PLACEMENT,
    REACHED,
    SERVING,
    SHORTAGE,
    SharingTables,
    SharingWorld,
)
from serving_gym.envs.simulator.sharing.iterations import (
    begin_iteration,
    choose,
    chosen_by_policy,
    end_iteration,
    is_stuck,
    missing_blocks,
    num_runnable,
    recompute_last,
)
from serving_gym.envs.simulator.sharing.manager import fit_node, has_place, relieve
from serving_gym.envs.simulator.sharing.memory import begin_unload, end_operation, node_of
from serving_gym.envs.simulator.sharing.requests import book_arrival, book_loss, hold, releases, take_out


@compiled
def _say(world: SharingWorld, event: int, n: int, i: int, r: int) -> int:
    """Notes why the world stands still."""
    clock = world.clock[0]
    clock.event, clock.event_node, clock.event_instance, clock.event_request = event, n, i, r
    return event


@compiled
def _arrive(world: SharingWorld, tables: SharingTables) -> None:
    """Requests that are due arrive; one whose prompt leaves no room for an answer is refused."""
    clock = world.clock[0]
    while (
        clock.next_arrival < len(tables.arrival_ps) and tables.arrival_ps[clock.next_arrival] <= clock.now_ps
    ):
        r = clock.next_arrival
        clock.next_arrival += 1
        world.requests[r].deadline_ps = tables.arrival_ps[r] + tables.ttft_ps[r]
        book_arrival(world, tables, r)
        if tables.input_tokens[r] >= tables.max_tokens[tables.model[r]]:
            book_loss(world, tables, r, True)
        else:
            hold(world, r)


@compiled
def _give_up(world: SharingWorld, tables: SharingTables) -> None:
    """Refuses requests that have been held for too long; the queue is in the order in which they were."""
    clock, patience = world.clock[0], tables.parameters[0].patience_ps
    while clock.held_head >= 0:
        r = clock.held_head
        if clock.now_ps - world.requests[r].held_since_ps < patience:
            return
        take_out(world, tables, r)
        book_loss(world, tables, r, True)


@compiled
def _happen(world: SharingWorld, tables: SharingTables) -> None:
    """All that is due now and asks nobody."""
    clock = world.clock[0]
    for i in range(len(world.instances)):
        if world.instances[i].due_ps <= clock.now_ps:
            end_operation(world, tables, i)
    for n in range(len(world.nodes)):
        if world.nodes[n].due_ps <= clock.now_ps:
            end_iteration(world, tables, n)
    _arrive(world, tables)
    _give_up(world, tables)
    for i in range(len(world.instances)):
        since_ps = world.instances[i].idle_ps  # NEVER where it does not serve, or has requests
        if since_ps < NEVER and clock.now_ps - since_ps >= clock.keep_alive_ps:
            begin_unload(world, tables, i)


@compiled
def _look_at_memory(world: SharingWorld, tables: SharingTables) -> int:
    """Tells the policy what has changed, one thing at a time, or lets the environment's manager see to it."""
    clock = world.clock[0]
    for i in range(len(world.instances)):
        instance = world.instances[i]
        if instance.operated:
            instance.operated = 0
            if clock.manages:
                return _say(world, OF_OPERATION, node_of(tables, i), i, -1)
            fit_node(world, tables, node_of(tables, i))
    for i in range(len(world.instances)):
        instance = world.instances[i]
        if instance.finished:
            instance.finished = 0
            if clock.manages:
                return _say(world, OF_FINISHED, node_of(tables, i), i, -1)
            fit_node(world, tables, node_of(tables, i))
    return REACHED


@compiled
def put_off(world: SharingWorld, tables: SharingTables, r: int) -> None:
    """A request whose turn it was is held: it and those of its model that wait already have their turn later."""
    now = world.clock[0].now_ps
    due, model = now + tables.parameters[0].retry_ps, tables.model[r]
    other = world.clock[0].held_head
    while other >= 0:
        request = world.requests[other]
        if tables.model[other] == model and request.offer_ps <= now and request.held_since_ps < now:
            request.offer_ps = due
        other = request.next
    world.requests[r].offer_ps = due


@compiled
def wait(world: SharingWorld, tables: SharingTables, r: int, retry: int) -> None:
    """Holds the offered request: `envs.interface.sharing.Retry`."""
    request = world.requests[r]
    request.retry, request.releases = retry, releases(world, tables.model[r])
    if retry == NO_MORE:
        request.offer_ps = NEVER
    else:
        put_off(world, tables, r)


@compiled
def _is_worth_asking(world: SharingWorld, tables: SharingTables, r: int) -> bool:
    """Whether a request could have a place, by what the policy has said and, if it has not taken over, the manager."""
    clock, request = world.clock[0], world.requests[r]
    if request.retry == AFTER_RELEASE and request.releases == releases(world, tables.model[r]):
        return False
    return clock.manages or clock.decisions == 0 or has_place(world, tables, r)


@compiled
def _offer(world: SharingWorld, tables: SharingTables) -> int:
    """Offers the first held request whose turn it is, and which something could be done with."""
    clock = world.clock[0]
    if clock.next_offer_ps > clock.now_ps:
        return REACHED
    clock.next_offer_ps = NEVER
    r = clock.held_head
    while r >= 0:
        if world.requests[r].offer_ps <= clock.now_ps:
            if _is_worth_asking(world, tables, r):
                clock.next_offer_ps = clock.now_ps
                return _say(world, PLACEMENT, -1, -1, r)
            put_off(world, tables, r)
        clock.next_offer_ps = min(clock.next_offer_ps, world.requests[r].offer_ps)
        r = world.requests[r].next
    return REACHED


@compiled
def _resolve(world: SharingWorld, tables: SharingTables, i: int) -> int:
    """An instance has no room for what it is to run: the policy is asked, or the environment's manager sees to it."""
    clock, instance = world.clock[0], world.instances[i]
    if instance.shortage_ps <= clock.now_ps:
        instance.shortage_ps = clock.now_ps + tables.parameters[0].retry_ps
        if clock.manages:
            return _say(world, SHORTAGE, node_of(tables, i), i, -1)
        relieve(world, tables, i)
    if instance.status == SERVING:
        recompute_last(world, tables, i)
    return REACHED


@compiled
def _resolve_stuck(world: SharingWorld, tables: SharingTables, n: int) -> int:
    """Looks for instances of a node that cannot run anything of what they have."""
    width = tables.parameters[0].slots_per_node
    for i in range(n * width, (n + 1) * width):
        asked = world.instances[i].shortage_ps > world.clock[0].now_ps
        if not asked and is_stuck(world, tables, i) and _resolve(world, tables, i) == SHORTAGE:
            return SHORTAGE
    return REACHED


@compiled
def _dispatch(world: SharingWorld, tables: SharingTables, n: int) -> int:
    """Gives an idle node its next iteration. Returns what the policy is asked, or REACHED."""
    clock, node = world.clock[0], world.nodes[n]
    if _resolve_stuck(world, tables, n) == SHORTAGE:
        return SHORTAGE
    while node.at_work < 0:
        if clock.scheduler != ASK:
            i, r = choose(world, tables, n, clock.scheduler)
        elif node.asked == NOT_ASKED and num_runnable(world, tables, n) > 1:
            return _say(world, ITERATION, n, -1, -1)
        else:
            i, r = chosen_by_policy(world, tables, n)
        if i < 0:
            return REACHED
        if r >= 0 or missing_blocks(world, tables, i) <= 0:
            begin_iteration(world, tables, i, r)
        elif _resolve(world, tables, i) == SHORTAGE:
            return SHORTAGE
    return REACHED


@compiled
def _next_ps(world: SharingWorld, tables: SharingTables) -> int:
    """When something is next due."""
    clock, soonest = world.clock[0], NEVER
    if clock.next_arrival < len(tables.arrival_ps):
        soonest = min(soonest, tables.arrival_ps[clock.next_arrival])
    if clock.held_head >= 0:
        waited = world.requests[clock.held_head].held_since_ps
        soonest = min(soonest, waited + tables.parameters[0].patience_ps, clock.next_offer_ps)
    for n in range(len(world.nodes)):
        soonest = min(soonest, world.nodes[n].due_ps)
    for i in range(len(world.instances)):
        instance = world.instances[i]
        soonest = min(soonest, instance.due_ps)
        if instance.idle_ps < NEVER:
            soonest = min(soonest, instance.idle_ps + clock.keep_alive_ps)
        elif instance.shortage_ps > clock.now_ps and is_stuck(world, tables, i):
            soonest = min(soonest, instance.shortage_ps)
    return soonest


@entry
def advance(world: SharingWorld, tables: SharingTables, until_ps: int) -> int:
    """Lets time pass to the next event that asks the policy, the end of the episode, or `until_ps`.

    Returns which; what it is about stands in the clock.
    """
    clock = world.clock[0]
    while True:
        _happen(world, tables)
        event = _look_at_memory(world, tables)
        if event == REACHED:
            event = _offer(world, tables)
        n = 0
        while event == REACHED and n < len(world.nodes):
            if world.nodes[n].at_work < 0:
                event = _dispatch(world, tables, n)
            n += 1
        if event != REACHED:
            return event
        if clock.num_in_system == 0 and clock.next_arrival >= len(tables.arrival_ps):
            return _say(world, END, -1, -1, -1)
        following = max(_next_ps(world, tables), clock.now_ps)
        if following > until_ps:
            clock.now_ps = max(until_ps, clock.now_ps)
            clock.event = REACHED
            return REACHED
        clock.now_ps = following
