"""Runs: iterations of pure decode that repeat until a request ends, a block is missing or someone interferes.

With D decoding requests and context C in the iteration in flight, the j-th further one lasts b + g*j, where
b = decode_ps[D] + kv_ps*C and g = kv_ps*D, so that k of them last k*b + g*k*(k+1)/2: a run is crossed without stepping
through it, and its end is known when it begins. Nothing an engine does before that end concerns anyone else, so engines
are looked at only when they are due; between, one that is asked for its state catches up first.
"""

from __future__ import annotations

import numpy as np

from serving_gym.envs.simulator.kernel.before_v1 import schedule_before_v1, spare_blocks
from serving_gym.envs.simulator.kernel.blocks import take_blocks
from serving_gym.envs.simulator.kernel.compiled import compiled, inlined, int64
from serving_gym.envs.simulator.kernel.engine import cache_decoded, complete, schedule, takes_steps
from serving_gym.envs.simulator.kernel.state import ACTIVE, LEAST_REQUESTS, SPECULATIVE, V1, Tables, World


@compiled
def _span_ps(world: World, tables: Tables, e: int, count: int) -> int:
    """Duration of the next `count` iterations of a run."""
    engine = world.engines[e]
    context = engine.decode_context - engine.num_running  # read by the iteration in flight
    base = tables.decode_ps[engine.kind, engine.num_running] + tables.kinds[engine.kind].kv_ps * context
    growth = tables.kinds[engine.kind].kv_ps * engine.num_running
    return count * base + growth * (count * (count + 1) // 2)


@compiled
def _blocks_over(world: World, tables: Tables, e: int, count: int) -> int:
    """KV blocks that the next `count` iterations of a run take."""
    engine = world.engines[e]
    block_size = tables.kinds[engine.kind].block_size
    needed = count // block_size * engine.num_running
    residue = -engine.tick % block_size
    for _ in range(count % block_size):
        needed += world.residues[e, residue]
        residue = residue - 1 if residue > 0 else block_size - 1
    return needed


@compiled
def _affordable(world: World, tables: Tables, e: int, most: int) -> int:
    """Length of a run, at most `most` further iterations, for which there are blocks."""
    engine = world.engines[e]
    free = engine.capacity_blocks - engine.used_blocks
    block_size = tables.kinds[engine.kind].block_size
    before_v1 = tables.kinds[engine.kind].scheduler != V1
    if (most // block_size + 1) * engine.num_running + before_v1 <= free:
        return most
    fits, too_many = int64(0), most + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        needed = _blocks_over(world, tables, e, middle)
        if before_v1:
            needed += spare_blocks(world, tables, e, engine.tick + middle - 1)
        if needed <= free:
            fits = middle
        else:
            too_many = middle
    return fits


@compiled
def _due(world: World, e: int) -> int:
    """When an engine is due that has no run before it: at the end of its iteration, or when it tries to begin one."""
    engine = world.engines[e]
    return int64(engine.step_end_ps) if engine.step_end_ps >= 0 else int64(engine.begin_ps)


@inlined
def show_load(world: World, tables: Tables, e: int) -> None:
    """Writes down what the router minimises: requests, or tokens to prefill and resident, over the engine's speed."""
    engine = world.engines[e]
    if engine.status != ACTIVE and engine.status != SPECULATIVE:
        world.load[e] = np.inf
    elif world.cluster[0].router == LEAST_REQUESTS:
        world.load[e] = engine.num_running + engine.num_waiting + engine.num_returning
    else:
        tokens = engine.pending_prefill_tokens + engine.prefill_context + engine.decode_context
        world.load[e] = tokens / tables.kinds[engine.kind].speed


@inlined
def plan_run(world: World, tables: Tables, e: int) -> None:
    """Works out how long the iteration in flight repeats itself, and so when the engine is due."""
    engine = world.engines[e]
    engine.run_left = 0
    world.due_ps[e] = _due(world, e)
    show_load(world, tables, e)
    if (
        engine.step_end_ps >= 0
        and engine.steady
        and takes_steps(world, e)
        and engine.next_finish_tick > engine.tick
    ):
        count = _affordable(world, tables, e, engine.next_finish_tick - engine.tick)
        engine.run_left = count
        world.due_ps[e] += _span_ps(world, tables, e, count)


@compiled
def _cross(world: World, tables: Tables, e: int, count: int) -> None:
    """Crosses `count` iterations of a run; the last of them is then in flight."""
    engine = world.engines[e]
    duration = _span_ps(world, tables, e, count)
    tokens = count * engine.num_running
    take_blocks(world, e, _blocks_over(world, tables, e, count))
    engine.tick += count
    engine.decode_context += tokens
    engine.generated_tokens += tokens
    engine.steps += count
    engine.busy_ps += duration
    engine.step_end_ps += duration
    engine.run_left -= count
    engine.late = int(tables.kinds[engine.kind].async_scheduling)
    if engine.num_sharing > 0:
        cache_decoded(world, tables, e)


@inlined
def catch_up(world: World, tables: Tables, e: int, now: int) -> None:
    """Begins the iterations of a run that begin by `now`; the engine is not due before."""
    engine = world.engines[e]
    if engine.run_left == 0 or engine.step_end_ps > now:
        return
    elapsed = now - engine.step_end_ps
    growth = np.float64(tables.kinds[engine.kind].kv_ps * engine.num_running)
    half = np.float64(_span_ps(world, tables, e, int64(1))) - 0.5 * growth
    ended = int64(2.0 * elapsed / (half + np.sqrt(half * half + 2.0 * growth * elapsed)))
    while _span_ps(world, tables, e, ended) > elapsed:
        ended -= 1
    while _span_ps(world, tables, e, ended + 1) <= elapsed:
        ended += 1
    _cross(world, tables, e, min(ended + 1, engine.run_left))
    show_load(world, tables, e)


@compiled
def interrupt(world: World, e: int) -> None:
    """Ends a run with the iteration in flight: something has changed. The engine has caught up."""
    engine = world.engines[e]
    engine.steady = 0
    engine.run_left = 0
    engine.changes += 1
    world.due_ps[e] = _due(world, e)


@inlined
def step(world: World, tables: Tables, e: int) -> None:
    """Crosses the run in flight to its end, where the engine is due, and begins the next iteration."""
    engine = world.engines[e]
    now = world.cluster[0].now_ps
    if engine.step_end_ps >= 0:
        if engine.run_left > 0:
            _cross(world, tables, e, engine.run_left)
        complete(world, tables, e, now)
    engine.changes += 1
    if tables.kinds[engine.kind].scheduler == V1:
        schedule(world, tables, e, now)
    else:
        schedule_before_v1(world, tables, e, now)
    plan_run(world, tables, e)


@compiled
def kick(world: World, e: int) -> None:
    """Makes an engine that stands idle with something to do due at this instant."""
    engine = world.engines[e]
    if engine.step_end_ps < 0 and engine.num_running + engine.num_waiting > 0:
        engine.begin_ps = world.cluster[0].now_ps
        world.due_ps[e] = _due(world, e)
