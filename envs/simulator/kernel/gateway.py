"""The gateway of a fleet in several regions: which region a request goes to, and what waits until there is room.

As SageServe has it (sections 6.1 and 6.2). An interactive request goes to the first region, in its order of
preference, whose effective memory utilisation is under a threshold, else to the least utilised; there to the instance
with the fewest tokens left to process. One that is not interactive stands in the queue manager's line of its
endpoint. At every signal each endpoint looks at its utilisation: below a threshold one request of its model is pulled
to it, the oldest first, below a lower one two (where asked, as often as its instances have completed requests since);
the least utilised endpoint pulls first. Utilisation is what was read at the last signal. Requests to another region
arrive there after the network latency.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.aborts import book_overdue, end_overdue, next_overdue
from serving_gym.envs.simulator.kernel.accounting import book_arrival, book_refusal, latency_cost
from serving_gym.envs.simulator.kernel.compiled import compiled, entry, int64
from serving_gym.envs.simulator.kernel.queues import enqueue, is_tracked, track, unlink, untrack
from serving_gym.envs.simulator.kernel.returns import clients_react, let_return, next_return
from serving_gym.envs.simulator.kernel.routers import may_take
from serving_gym.envs.simulator.kernel.runs import catch_up, interrupt, kick, show_load
from serving_gym.envs.simulator.kernel.sessions import (
    drop_alarm,
    look_ahead,
    next_limit,
    pass_on,
    row_of,
    set_limits,
)
from serving_gym.envs.simulator.kernel.state import (
    ACTIVE,
    FINISHED,
    LIMITS,
    REACHED,
    TRANSIT,
    WAITING,
    Tables,
    Traffic,
    World,
    rows_of,
)
from serving_gym.envs.simulator.kernel.world import (
    hand_over,
    limit_length,
    most_tokens,
    needs_room,
    new_request,
    next_arrival,
    show_engines,
    step_engines,
    take_stock,
)

# Which requests an instance is for: `envs.autoscaling.state.Pool`.
MIXED, INTERACTIVE, BATCH = range(3)

GATE_DTYPE = np.dtype(
    [
        ("next_signal_ps", np.int64),
        ("signal_period_ps", np.int64),
        ("overdue_ps", np.int64),  # age from which a request leaves the line without a signal
        ("aged_ps", np.int64),  # age from which it is as urgent as any
        ("threshold", np.float64),  # utilisation under which a region is taken by preference
        ("logged", np.int64),  # entries of the log that have been counted in `completed`
        ("holds", np.int32),  # 1: there is a queue manager
        (
            "by_completion",
            np.int32,
        ),  # 1: a signal grants as often as requests have completed since the last one
        ("flush", np.int32),  # 1: whatever stands in line leaves it at the next signal
        (
            "first_on_way",
            np.int32,
        ),  # requests on their way to another region, the next to arrive first; -1: none
        ("last_on_way", np.int32),
    ],
    align=True,
)

# One row an endpoint.
LINE_DTYPE = np.dtype(
    [
        ("one_below", np.float64),  # utilisation below which a signal releases `batch` requests ...
        ("two_below", np.float64),  # ... or twice as many
        ("batch", np.int64),
        (
            "interactive_use",
            np.float64,
        ),  # utilisation of instances that take interactive requests, at the signal ...
        ("batch_use", np.float64),  # ... and of those that take the others; infinite where there is none
        ("tokens", np.int64),  # of those in line: prompts and predicted answers
        ("grant", np.int64),  # requests that its signal may still pull
        ("completed", np.int64),  # requests that its instances have completed since the last signal
        ("count", np.int32),  # requests in line
        ("first", np.int32),  # the oldest; -1: none
        ("last", np.int32),
        ("model", np.int32),
    ],
    align=True,
)


class Gate(NamedTuple):
    """A gateway. P endpoints, those without places included, E places, C classes, N requests of the present piece."""

    gate: NDArray[np.void]  # (1,) GATE_DTYPE
    lines: NDArray[np.void]  # (P,) LINE_DTYPE
    pools: NDArray[np.int32]  # (E,) which requests each place is for
    preference: NDArray[np.int32]  # (P, P) endpoints with places that serve a request, in order; then -1
    delay_ps: NDArray[
        np.int64
    ]  # (P, P) network latency from where a request comes from to where it is served
    last_on_way: NDArray[
        np.int32
    ]  # (P, P) the request that set out last from one to the other; -1: none on its way
    interactive: NDArray[np.int8]  # (C,)
    predicted: NDArray[np.int32]  # (N,) predicted output lengths


def new_gate(
    model: NDArray[np.int32],
    num_places: int,
    preference: NDArray[np.int32],
    delay_ps: NDArray[np.int64],
    interactive: NDArray[np.int8],
    signal_period_ps: int,
    overdue_ps: int,
    aged_ps: int,
    threshold: float,
    holds: bool,
    by_completion: bool = False,
) -> Gate:
    """A gateway at time zero, its lines empty and its release thresholds zero.

    Args:
        model: (P,) number of the model of each endpoint.
        num_places: Places of the fleet.
        preference: See `Gate`, as the next two.
        delay_ps: See `Gate`.
        interactive: See `Gate`.
        signal_period_ps: Between two signals.
        overdue_ps: Age from which a request leaves the line without a signal.
        aged_ps: Age from which it is as urgent as any.
        threshold: Utilisation under which a region is taken by preference.
        holds: Whether there is a queue manager.
        by_completion: Whether a signal grants as often as requests have completed since the last one, at least once.
    """
    gate = rows_of(
        GATE_DTYPE,
        next_signal_ps=np.zeros(1, np.int64),
        signal_period_ps=signal_period_ps,
        overdue_ps=overdue_ps,
        aged_ps=aged_ps,
        threshold=threshold,
        logged=0,
        holds=holds,
        by_completion=by_completion,
        flush=0,
        first_on_way=-1,
        last_on_way=-1,
    )
    lines = np.zeros(len(model), LINE_DTYPE)
    lines["first"] = lines["last"] = -1
    lines["model"] = model
    lines["interactive_use"] = lines["batch_use"] = np.inf
    return Gate(
        gate,
        lines,
        np.zeros(num_places, np.int32),
        np.ascontiguousarray(preference, np.int32),
        np.ascontiguousarray(delay_ps, np.int64),
        np.full(delay_ps.shape, -1, np.int32),
        np.ascontiguousarray(interactive, np.int8),
        np.zeros(0, np.int32),
    )


def fork_gate(gate: Gate) -> Gate:
    """A copy that shares nothing that changes."""
    return gate._replace(
        gate=gate.gate.copy(),
        lines=gate.lines.copy(),
        pools=gate.pools.copy(),
        last_on_way=gate.last_on_way.copy(),
    )


# -- where a request goes ----------------------------------------------------------------------------------------------


@compiled
def _takes(gate: Gate, e: int, interactive: bool) -> bool:
    """Whether an instance is for such requests."""
    return gate.pools[e] == MIXED or (gate.pools[e] == INTERACTIVE) == interactive


@compiled
def _least_loaded(world: World, tables: Tables, gate: Gate, number: int, most: int, interactive: bool) -> int:
    """The instance of an endpoint with the fewest tokens left to process that can take a request, or -1.

    As the built-in routers do, one that looks best catches up before it is believed.
    """
    now = world.cluster[0].now_ps
    while True:
        best, lowest = int64(-1), np.inf
        for e in range(int64(world.endpoints[number].first), int64(world.endpoints[number].last)):
            if world.load[e] < lowest and _takes(gate, e, interactive) and may_take(world, tables, e, most):
                best, lowest = int64(e), world.load[e]
        if best < 0 or world.engines[best].run_left == 0 or world.engines[best].step_end_ps > now:
            return best
        catch_up(world, tables, best, now)


@compiled
def _choose(world: World, tables: Tables, gate: Gate, slot: int) -> int:
    """The instance that a request goes to by region and load, or -1 where none can take it."""
    request = world.requests[slot]
    most = most_tokens(world, slot)
    interactive = gate.interactive[request.class_id] == 1
    best, least = int64(-1), np.inf
    for turn in range(gate.preference.shape[1]):
        number = int64(gate.preference[request.endpoint, turn])
        if number < 0:
            break
        line = gate.lines[number]
        use = line.interactive_use if interactive else line.batch_use
        if best >= 0 and use >= least:
            continue
        e = _least_loaded(world, tables, gate, number, most, interactive)
        if e >= 0 and use < gate.gate[0].threshold:
            return e
        if e >= 0:
            best, least = e, use
    return best


@compiled
def _endpoint_at(world: World, e: int) -> int:
    """The endpoint that a place belongs to."""
    number = int64(0)
    while not (world.endpoints[number].first <= e and e < world.endpoints[number].last):
        number += 1
    return number


@compiled
def _arrives_behind(world: World, gate: Gate, arrives_ps: int, last: int) -> int:
    """The request on its way that one arrives next after, or -1: it arrives first.

    Looked for from both ends of the stretch that it stands in: between `last`, which set out last on the same way and
    so arrives no later (-1: none is on that way), and the last of all.
    """
    behind = int64(gate.gate[0].last_on_way)
    if behind < 0 or world.requests[behind].arrives_ps <= arrives_ps:
        return behind
    before = int64(gate.gate[0].first_on_way) if last < 0 else int64(last)
    if world.requests[before].arrives_ps > arrives_ps:
        return int64(-1)
    while True:
        after = int64(world.requests[before].next)
        if world.requests[after].arrives_ps > arrives_ps:
            return before
        before = after
        behind = int64(world.requests[behind].prev)
        if world.requests[behind].arrives_ps <= arrives_ps:
            return behind


@compiled
def _set_out(world: World, gate: Gate, slot: int, e: int, number: int) -> None:
    """Puts a request to an instance of an endpoint among those on their way, in the order in which they arrive."""
    board, request = gate.gate[0], world.requests[slot]
    request.phase = TRANSIT
    request.engine = -1
    request.target = e + 1
    request.arrives_ps = world.cluster[0].now_ps + gate.delay_ps[request.endpoint, number]
    last = int64(gate.last_on_way[request.endpoint, number])
    before = _arrives_behind(world, gate, int64(request.arrives_ps), last)
    gate.last_on_way[request.endpoint, number] = slot
    after = int64(board.first_on_way) if before < 0 else int64(world.requests[before].next)
    request.prev, request.next = before, after
    if before < 0:
        board.first_on_way = slot
    else:
        world.requests[before].next = slot
    if after < 0:
        board.last_on_way = slot
    else:
        world.requests[after].prev = slot


@compiled
def _send(world: World, tables: Tables, gate: Gate, slot: int, e: int) -> None:
    """Sends a request that stands nowhere to an instance, or to the pool (-1)."""
    if e < 0:
        enqueue(world, int64(len(world.engines)), slot)
        return
    number = _endpoint_at(world, e)
    if gate.delay_ps[world.requests[slot].endpoint, number] > 0:
        _set_out(world, gate, slot, e, number)
    else:
        hand_over(world, tables, slot, e)
        kick(world, e)


@compiled
def _arrive_there(world: World, tables: Tables, gate: Gate) -> None:
    """Lets the next request on its way arrive; where its instance cannot take it any more, it is sent anew."""
    board = gate.gate[0]
    slot = int64(board.first_on_way)
    request = world.requests[slot]
    board.first_on_way = request.next
    if request.next < 0:
        board.last_on_way = -1
    else:
        world.requests[request.next].prev = -1
    e = int64(request.target) - 1
    request.target = 0
    number = _endpoint_at(world, e)
    if gate.last_on_way[request.endpoint, number] == slot:
        gate.last_on_way[request.endpoint, number] = -1
    if may_take(world, tables, e, most_tokens(world, slot)):
        hand_over(world, tables, slot, e)
        kick(world, e)
    else:
        _send(world, tables, gate, slot, _choose(world, tables, gate, slot))


# -- the queue manager -------------------------------------------------------------------------------------------------


@compiled
def _join_line(world: World, gate: Gate, slot: int) -> None:
    """Puts a request at the end of the line of its endpoint."""
    request = world.requests[slot]
    line = gate.lines[request.endpoint]
    request.phase = WAITING
    request.engine = -1
    request.next = -1
    request.prev = line.last
    if line.last < 0:
        line.first = slot
    else:
        world.requests[line.last].next = slot
    line.last = slot
    untrack(world, slot)
    line.count += 1
    line.tokens += int64(request.prompt) + request.predicted


@compiled
def _leave_line(world: World, gate: Gate, number: int) -> int:
    """Takes the oldest request out of a line; an old one becomes as urgent as any."""
    line = gate.lines[number]
    slot = int64(line.first)
    request = world.requests[slot]
    line.first = request.next
    if request.next < 0:
        line.last = -1
    else:
        world.requests[request.next].prev = -1
    track(world, slot)
    line.count -= 1
    line.tokens -= int64(request.prompt) + request.predicted
    age_ps = world.cluster[0].now_ps - request.arrival_ps
    if age_ps > gate.gate[0].aged_ps or age_ps >= gate.gate[0].overdue_ps:
        request.level = 0
    return slot


@compiled
def _oldest_line(world: World, gate: Gate, model: int) -> int:
    """The line whose first request is the oldest of a model's, or -1."""
    best = int64(-1)
    for number in range(len(gate.lines)):
        line = gate.lines[number]
        if line.model != model or line.count == 0:
            continue
        first_ps = world.requests[line.first].arrival_ps
        if best < 0 or first_ps < world.requests[gate.lines[best].first].arrival_ps:
            best = int64(number)
    return best


@compiled
def _most_used(world: World, tables: Tables, e: int) -> int:
    """A bound on the blocks in use until the engine is next due: every request of a run may begin one more."""
    engine = world.engines[e]
    if engine.run_left == 0:
        return int64(engine.used_blocks)
    begun = engine.run_left // tables.kinds[engine.kind].block_size + 1
    return int64(engine.used_blocks) + begun * engine.num_running


@compiled
def _sum_use(world: World, tables: Tables, gate: Gate, number: int, exact: bool) -> None:
    """Writes down KV in use over KV there is, of an endpoint's instances in service; a bound on it if not exact."""
    used_interactive, all_interactive, used_batch, all_batch = 0.0, 0.0, 0.0, 0.0
    for e in range(int64(world.endpoints[number].first), int64(world.endpoints[number].last)):
        engine = world.engines[e]
        if engine.status != ACTIVE:
            continue
        if exact:
            catch_up(world, tables, int64(e), int64(world.cluster[0].now_ps))
        blocks = int64(engine.used_blocks) if exact else _most_used(world, tables, int64(e))
        block_size = tables.kinds[engine.kind].block_size
        used, available = blocks * block_size, engine.capacity_blocks * block_size
        if gate.pools[e] != BATCH:
            used_interactive += used
            all_interactive += available
        if gate.pools[e] != INTERACTIVE:
            used_batch += used
            all_batch += available
    line = gate.lines[number]
    line.interactive_use = used_interactive / all_interactive if all_interactive > 0.0 else np.inf
    line.batch_use = used_batch / all_batch if all_batch > 0.0 else np.inf


@compiled
def _read_use(world: World, tables: Tables, gate: Gate) -> None:
    """Reads every endpoint's utilisation, as exactly as it matters.

    It is compared with the thresholds, and with that of the model's other endpoints where requests wait in line or none
    of them is under its threshold. A bound costs less than to let every engine catch up.
    """
    for number in range(len(gate.lines)):
        line = gate.lines[number]
        several = gate.preference.shape[1] > 1 and gate.preference[number, 1] >= 0
        waiting = _oldest_line(world, gate, int64(line.model)) >= 0
        if not several and not waiting:
            continue
        exact = several and waiting
        if not exact:
            _sum_use(world, tables, gate, int64(number), exact)
            lowest = min(gate.gate[0].threshold, line.two_below) if waiting else gate.gate[0].threshold
            exact = line.interactive_use >= lowest or line.batch_use >= lowest
        if exact:
            _sum_use(world, tables, gate, int64(number), exact)


@compiled
def _release_overdue(world: World, tables: Tables, gate: Gate) -> None:
    """Lets those leave that are about to miss their deadline, or all, by region and load as interactive ones."""
    board = gate.gate[0]
    for number in range(len(gate.lines)):
        line = gate.lines[number]
        while line.count > 0:
            age_ps = world.cluster[0].now_ps - world.requests[line.first].arrival_ps
            if board.flush == 0 and age_ps < board.overdue_ps:
                break
            slot = _leave_line(world, gate, int64(number))
            _send(world, tables, gate, slot, _choose(world, tables, gate, slot))


@compiled
def _count_completions(world: World, gate: Gate) -> None:
    """Counts the requests that have completed since the last count, by the endpoint that served them."""
    board = gate.gate[0]
    for row in range(board.logged, int64(world.cluster[0].log_length)):
        left = world.log[row]
        if left.outcome == FINISHED and left.engine >= 0:
            gate.lines[_endpoint_at(world, int64(left.engine))].completed += 1
    board.logged = int64(world.cluster[0].log_length)


@entry
def count_completions(world: World, gate: Gate) -> None:
    """Counts what has completed before the log is emptied."""
    _count_completions(world, gate)
    gate.gate[0].logged = 0


@compiled
def _release(world: World, tables: Tables, gate: Gate) -> None:
    """Lets the least utilised endpoint pull what its signal grants it, then the next one."""
    for number in range(len(gate.lines)):
        line = gate.lines[number]
        line.grant = 0
        if line.batch_use < line.two_below:
            line.grant = 2 * line.batch
        elif line.batch_use < line.one_below:
            line.grant = line.batch
        if gate.gate[0].by_completion == 1:
            line.grant *= max(line.completed, int64(1))
            line.completed = 0
    while True:
        chosen = int64(-1)
        for number in range(len(gate.lines)):
            if gate.lines[number].grant > 0 and (
                chosen < 0 or gate.lines[number].batch_use < gate.lines[chosen].batch_use
            ):
                chosen = int64(number)
        if chosen < 0:
            return
        while gate.lines[chosen].grant > 0:
            gate.lines[chosen].grant -= 1
            source = _oldest_line(world, gate, int64(gate.lines[chosen].model))
            if source < 0:
                gate.lines[chosen].grant = 0
                break
            slot = int64(gate.lines[source].first)
            interactive = gate.interactive[world.requests[slot].class_id] == 1
            e = _least_loaded(world, tables, gate, chosen, most_tokens(world, slot), interactive)
            if e < 0 or gate.delay_ps[world.requests[slot].endpoint, chosen] < 0:
                gate.lines[chosen].grant = 0
                break
            _leave_line(world, gate, source)
            _send(world, tables, gate, slot, e)


@compiled
def _signal(world: World, tables: Tables, gate: Gate) -> None:
    """All endpoints signal."""
    gate.gate[0].next_signal_ps += gate.gate[0].signal_period_ps
    _read_use(world, tables, gate)
    if gate.gate[0].holds == 1:
        if gate.gate[0].by_completion == 1:
            _count_completions(world, gate)
        _release_overdue(world, tables, gate)
        _release(world, tables, gate)


# -- the clock ---------------------------------------------------------------------------------------------------------


@compiled
def _ingest(world: World, traffic: Traffic, tables: Tables, gate: Gate, k: int) -> None:
    """Lets the k-th request arrive at the gateway."""
    slot = new_request(world, traffic, tables, k)
    request = world.requests[slot]
    request.predicted = gate.predicted[row_of(world, k)]
    request.target = 0
    if not limit_length(world, slot):
        book_refusal(world, slot)
        return
    book_arrival(world, tables, slot)
    if world.alarms.shape[1] > 0:
        set_limits(world, traffic, slot, row_of(world, k))
    board = gate.gate[0]
    if board.holds == 1 and board.flush == 0 and gate.interactive[request.class_id] == 0:
        _join_line(world, gate, slot)
    else:
        _send(world, tables, gate, slot, _choose(world, tables, gate, slot))


@compiled
def _quit_line(world: World, gate: Gate, slot: int) -> None:
    """Takes a request out of the line that it stands in."""
    request = world.requests[slot]
    line = gate.lines[request.endpoint]
    if request.prev < 0:
        line.first = request.next
    else:
        world.requests[request.prev].next = request.next
    if request.next < 0:
        line.last = request.prev
    else:
        world.requests[request.next].prev = request.prev
    track(world, slot)
    line.count -= 1
    line.tokens -= int64(request.prompt) + request.predicted


@compiled
def _end_overdue(world: World, tables: Tables, gate: Gate) -> None:
    """Ends requests whose time limits have run out. An engine that has news tells at its next event."""
    while True:
        slot = next_overdue(world)
        if slot < 0:
            return
        if is_tracked(world, slot):
            end_overdue(world, tables, slot)
        else:
            limit = int64(world.alarms[LIMITS, 0].limit)
            drop_alarm(world, int64(LIMITS))
            _quit_line(world, gate, slot)
            book_overdue(world, tables, slot, limit)


@compiled
def _next_at_gate(world: World, traffic: Traffic, gate: Gate) -> int:
    """When the gateway has next something to do."""
    board = gate.gate[0]
    due = min(int64(next_arrival(world, traffic)), int64(board.next_signal_ps), next_limit(world))
    if board.first_on_way >= 0:
        due = min(due, int64(world.requests[board.first_on_way].arrives_ps))
    if clients_react(world):
        due = min(due, max(next_return(world), int64(world.cluster[0].now_ps)))
    return due


@compiled
def _attend(world: World, traffic: Traffic, tables: Tables, gate: Gate, now: int) -> int:
    """Does all that is due at the gateway at this instant. Returns REACHED, or why the clock must stop."""
    board, cluster = gate.gate[0], world.cluster[0]
    let_return(world, tables, now)
    if board.next_signal_ps == now:
        _signal(world, tables, gate)
    while board.first_on_way >= 0 and world.requests[board.first_on_way].arrives_ps == now:
        _arrive_there(world, tables, gate)
    _end_overdue(world, tables, gate)
    first = int64(cluster.next_arrival)
    while next_arrival(world, traffic) == now:
        needs = needs_room(world, cluster.next_arrival - first)
        if needs != REACHED:
            return needs
        _ingest(world, traffic, tables, gate, cluster.next_arrival)
        pass_on(world, traffic)
    return REACHED


@entry
def advance_with_gate(world: World, traffic: Traffic, tables: Tables, gate: Gate, until: int) -> int:
    """Moves the world to `until`, or to the first thing the control plane must see. Returns why it stopped.

    At one instant iterations end and busy engines begin the next ones, then endpoints signal, requests from other
    regions arrive, new requests arrive, and idle engines begin.
    """
    noticed = take_stock(world, tables)
    cluster = world.cluster[0]
    reason = REACHED
    while reason == REACHED:
        if len(world.turns) > 0:
            look_ahead(world, traffic)
        due = _next_at_gate(world, traffic, gate)
        reason = step_engines(world, traffic, tables, min(due, until), noticed)
        due = _next_at_gate(world, traffic, gate)
        if due > until:
            break
        if reason == REACHED:
            reason = _attend(world, traffic, tables, gate, due)
    for e in range(len(world.engines)):
        catch_up(world, tables, int64(e), cluster.now_ps)
    let_return(world, tables, int64(cluster.now_ps))
    show_engines(world, tables)
    cluster.latency_cost = latency_cost(world)
    return reason


@entry
def dispatch_with_gate(world: World, tables: Tables, gate: Gate) -> None:
    """Offers every pooled request to the gateway again, in order, and lets engines see what has changed for them."""
    num_engines = int64(len(world.engines))
    for e in range(num_engines):
        show_load(world, tables, int64(e))
    for level in range(world.queues.shape[1]):
        slot = int64(world.queues[num_engines, level, 0])
        while slot >= 0:
            following = int64(world.requests[slot].next)
            e = _choose(world, tables, gate, slot)
            if e >= 0:
                unlink(world, num_engines, slot)
                _send(world, tables, gate, slot, e)
            slot = following
    for e in range(num_engines):
        interrupt(world, int64(e))
        kick(world, int64(e))


@entry
def pooled_by_endpoint(world: World, counts: NDArray[np.int64]) -> None:
    """Counts the requests in the pool by the endpoint they are for, (P,)."""
    counts[:] = 0
    for level in range(world.queues.shape[1]):
        slot = int64(world.queues[len(world.engines), level, 0])
        while slot >= 0:
            counts[world.requests[slot].endpoint] += 1
            slot = int64(world.requests[slot].next)
