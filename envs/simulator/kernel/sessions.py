"""Sessions: requests that arrive some time after the answers that they wait for, and time limits of requests.

Without sessions the k-th request to arrive is row k of the workload. With them `World.turns` says which row it is and
when it came, and of the next one, `cluster.next_arrival`, which it is as things stand: the earliest of the rows that
wait for nothing, which are sorted, and of those whose answers have ended, which stand in a heap.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.compiled import compiled, inlined, int64
from serving_gym.envs.simulator.kernel.heaps import pop, push
from serving_gym.envs.simulator.kernel.state import (
    ARRIVALS,
    LIMITS,
    NEVER,
    UNTIL_END,
    UNTIL_FIRST_TOKEN,
    Traffic,
    World,
)

# -- heaps of alarms ---------------------------------------------------------------------------------------------------


@compiled
def _change_count(world: World, heap: int, by: int) -> int:
    """Changes the number of alarms in a heap, and returns what it was."""
    cluster = world.cluster[0]
    before = int64(cluster.num_calls) if heap == ARRIVALS else int64(cluster.num_limits)
    if heap == ARRIVALS:
        cluster.num_calls += by
    else:
        cluster.num_limits += by
    return before


@compiled
def set_alarm(world: World, heap: int, due_ps: int, row: int, slot: int, limit: int) -> None:
    """Adds an alarm to a heap, which has room for all of the workload."""
    push(world.alarms[heap], _change_count(world, heap, int64(1)), due_ps, row, slot, limit)


@compiled
def drop_alarm(world: World, heap: int) -> None:
    """Takes the first alarm out of a heap."""
    pop(world.alarms[heap], _change_count(world, heap, int64(-1)))


@inlined
def next_limit(world: World) -> int:
    """When the next time limit runs out, or NEVER."""
    if world.alarms.shape[1] == 0 or world.cluster[0].num_limits == 0:
        return NEVER
    return int64(world.alarms[LIMITS, 0].due_ps)


@compiled
def set_limits(world: World, traffic: Traffic, slot: int, row: int) -> None:
    """Starts the time limits of a request that has arrived; their alarms name it by its index."""
    index = int64(world.requests[slot].index)
    arrival_ps, limit_ps = world.requests[slot].arrival_ps, world.cluster[0].time_limit_ps
    patience_ps = traffic.patience_ps[row] if len(traffic.patience_ps) > 0 else NEVER
    if patience_ps < limit_ps:
        set_alarm(world, int64(LIMITS), arrival_ps + patience_ps, index, slot, int64(UNTIL_FIRST_TOKEN))
    if limit_ps < NEVER:
        set_alarm(world, int64(LIMITS), arrival_ps + limit_ps, index, slot, int64(UNTIL_END))


# -- who arrives when --------------------------------------------------------------------------------------------------


@inlined
def row_of(world: World, k: int) -> int:
    """Row of the workload of the k-th request to arrive."""
    return int64(world.turns[k].came_row) if len(world.turns) > 0 else int64(k)


@inlined
def came_at(world: World, traffic: Traffic, k: int) -> int:
    """When the k-th request arrived, or is to as things stand; NEVER: nobody knows yet."""
    return int64(world.turns[k].came_ps) if len(world.turns) > 0 else int64(traffic.arrival_ps[k])


@compiled
def look_ahead(world: World, traffic: Traffic) -> None:
    """Finds out who arrives next, as things stand."""
    cluster = world.cluster[0]
    k, count = int64(cluster.next_arrival), int64(len(world.turns))
    if k >= count:
        return
    came_ps, row = NEVER, count
    if cluster.next_root < count:
        row = int64(cluster.next_root)
        came_ps = int64(traffic.arrival_ps[row])
    if cluster.num_calls > 0:
        alarm = world.alarms[ARRIVALS, 0]
        if alarm.due_ps < came_ps or (alarm.due_ps == came_ps and alarm.row < row):
            came_ps, row = int64(alarm.due_ps), int64(alarm.row)
    world.turns[k].came_ps, world.turns[k].came_row = came_ps, row


@compiled
def _pass_on(world: World, traffic: Traffic) -> None:
    """The next request in a session has arrived: finds out who is next."""
    cluster = world.cluster[0]
    if world.turns[world.turns[cluster.next_arrival].came_row].delay_ps < 0:
        cluster.next_root += 1
        while cluster.next_root < len(world.turns) and world.turns[cluster.next_root].delay_ps >= 0:
            cluster.next_root += 1
    else:
        drop_alarm(world, int64(ARRIVALS))
    cluster.next_arrival += 1
    look_ahead(world, traffic)


@inlined
def pass_on(world: World, traffic: Traffic) -> None:
    """The next request has arrived."""
    if len(world.turns) > 0:
        _pass_on(world, traffic)
    else:
        world.cluster[0].next_arrival += 1


@compiled
def answer_ended(world: World, row: int, now: int) -> None:
    """Lets those arrive, after their delay, that have waited for this answer last."""
    for i in range(world.turns[row].first_child, world.turns[row].last_child):
        child = int64(world.children[i])
        world.turns[child].unmet -= 1
        if world.turns[child].unmet == 0:
            due_ps = now + int64(world.turns[child].delay_ps)
            set_alarm(world, int64(ARRIVALS), due_ps, child, int64(-1), int64(0))
