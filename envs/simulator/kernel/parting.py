"""Asynchronous scheduling: requests that are over, while the iteration is put together that does not know it yet.

They have left the running list, but have their blocks and their places in the batch until that is done, and may even
give way in it, as vLLM lets them. They stand in a list of their own, in the order of the running list.
"""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.blocks import give_back
from serving_gym.envs.simulator.kernel.compiled import compiled, int64
from serving_gym.envs.simulator.kernel.returns import end_answer
from serving_gym.envs.simulator.kernel.state import DECODE, EDF, PRIORITY, Tables, World


@compiled
def part(world: World, e: int, slot: int, before: int, last: int) -> int:
    """Puts a request that is over behind the last one who is parting, or first (-1); returns its slot.

    Its computed tokens are up to date; `before` is how many that go on stand before it in the running list.
    """
    engine, request = world.engines[e], world.requests[slot]
    request.offset = before
    request.next = -1
    if last < 0:
        engine.first_parting = slot
    else:
        world.requests[last].next = slot
    engine.num_parting += 1
    return slot


@compiled
def let_parting_go(world: World, tables: Tables, e: int, now: int) -> None:
    """Frees the blocks and places of those who are over."""
    engine = world.engines[e]
    slot = int64(engine.first_parting)
    for _ in range(engine.num_parting):
        following = int64(world.requests[slot].next)
        give_back(world, tables, e, slot, int64(world.requests[slot].computed), int64(0), int64(0))
        end_answer(world, tables, e, slot, now)
        slot = following
    engine.num_parting = 0


@compiled
def know_all(world: World, tables: Tables, e: int, now: int) -> None:
    """Waits for the last iteration to end before the next one is put together."""
    let_parting_go(world, tables, e, now)
    world.engines[e].ahead = world.engines[e].late = 0


@compiled
def less_urgent(world: World, slot: int, other: int) -> bool:
    """Whether one request gives way before another: the higher (priority, arrival), or the later deadline."""
    a, b = world.requests[slot], world.requests[other]
    a_key, b_key = int64(a.level), int64(b.level)
    if world.cluster[0].order == EDF:
        a_key, b_key = int64(a.deadline_ps), int64(b.deadline_ps)
    return (a_key, a.arrival_ps, a.index) > (b_key, b.arrival_ps, b.index)


@compiled
def parting_victim(world: World, e: int, victim: int) -> int:
    """Slot of a parting request that gives way before entry `victim` of the running list, or -1."""
    order = world.cluster[0].order
    worst, found = int64(world.running[e, victim]), int64(-1)
    slot = int64(world.engines[e].first_parting)
    for _ in range(world.engines[e].num_parting):
        behind = world.requests[slot].offset > victim
        if order in (PRIORITY, EDF):
            behind = less_urgent(world, slot, worst)
        if behind:
            worst = found = slot
        slot = int64(world.requests[slot].next)
    return found


@compiled
def preempt_parting(world: World, tables: Tables, e: int, slot: int, now: int) -> None:
    """Lets a parting request give way, whose last token is not known yet."""
    engine, request = world.engines[e], world.requests[slot]
    before = int64(-1)
    other = int64(engine.first_parting)
    while other != slot:
        before, other = other, int64(world.requests[other].next)
    if before < 0:
        engine.first_parting = request.next
    else:
        world.requests[before].next = request.next
    engine.num_parting -= 1
    engine.preemptions += 1
    request.preemptions += 1
    unknown = int64(engine.late) if request.phase == DECODE else int64(0)
    give_back(world, tables, e, slot, int64(request.computed), int64(0), unknown)
    end_answer(world, tables, e, slot, now)


@compiled
def move_up(world: World, e: int, i: int) -> None:
    """Lets those who are parting move up behind entry `i` of the running list, which is no longer there."""
    slot = int64(world.engines[e].first_parting)
    for _ in range(world.engines[e].num_parting):
        world.requests[slot].offset -= world.requests[slot].offset > i
        slot = int64(world.requests[slot].next)
