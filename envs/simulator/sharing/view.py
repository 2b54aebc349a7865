"""What Python sees of a shared world: rows of nodes, instances and requests, written in one call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.compiled import entry
from serving_gym.envs.simulator.sharing.arrays import (
    EMPTY,
    NEVER,
    PS_PER_S,
    RUNNING,
    SharingTables,
    SharingWorld,
)
from serving_gym.envs.simulator.sharing.iterations import is_runnable
from serving_gym.envs.simulator.sharing.memory import node_of


@entry
def show(
    world: SharingWorld,
    tables: SharingTables,
    max_output: NDArray[np.int32],
    nodes: NDArray[np.void],
    instances: NDArray[np.void],
    runnable: NDArray[np.bool_],
    requests: NDArray[np.void],
) -> None:
    """Writes the rows of `envs.interface.sharing`.

    Args:
        world: The world.
        tables: What things take.
        max_output: (R,), what clients declared, tokens.
        nodes: (N,) NODE_DTYPE.
        instances: (S,) INSTANCE_DTYPE, zero.
        runnable: (S,), which instances have an iteration to run.
        requests: (requests in the system,) REQUEST_DTYPE.
    """
    now = world.clock[0].now_ps
    for n in range(len(nodes)):
        row, node = nodes[n], world.nodes[n]
        row.kind, row.num_instances = node.kind, node.num_instances
        row.memory_bytes, row.held_bytes = node.memory, node.held
        row.at_work, row.prefilling = node.at_work, node.prefilling
        row.due_s = (node.due_ps if node.at_work >= 0 else now) / PS_PER_S
        row.busy_s = (node.busy_ps + (now - node.begun_ps if node.at_work >= 0 else 0)) / PS_PER_S
        used_ps = now - node.used_since_ps if node.used_since_ps < NEVER else 0
        row.used_s = (node.used_ps + used_ps) / PS_PER_S
    for i in range(len(instances)):
        here, instance = instances[i], world.instances[i]
        runnable[i] = is_runnable(world, tables, i)
        here.status, here.model, here.node = instance.status, instance.model, -1
        here.operation_due_s = now / PS_PER_S
        if instance.status == EMPTY:
            continue
        here.node = node_of(tables, i)
        here.num_running, here.num_waiting = instance.num_running, instance.num_waiting
        here.weights_bytes, here.kv_bytes = instance.weights, instance.kv
        here.kv_target_bytes, here.kv_used_tokens = instance.target, instance.context_tokens
        if instance.due_ps < NEVER:
            here.operation_due_s = instance.due_ps / PS_PER_S
        if instance.idle_ps < NEVER:
            here.idle_s = (now - instance.idle_ps) / PS_PER_S
    count = 0
    for r in range(world.clock[0].next_arrival):
        known = world.requests[r]
        if known.phase > RUNNING:
            continue
        line = requests[count]
        count += 1
        line.index, line.model, line.instance = r, tables.model[r], known.instance
        line.phase, line.evictions = known.phase, known.evictions
        line.input_tokens, line.generated_tokens = tables.input_tokens[r], known.generated
        line.max_output_tokens = max_output[r]
        line.arrival_s = tables.arrival_ps[r] / PS_PER_S
        line.first_token_s = known.first_token_ps / PS_PER_S if known.first_token_ps >= 0 else -1.0
        line.ttft_slo_s = tables.ttft_ps[r] / PS_PER_S
        line.tpot_slo_s = tables.tpot_ps[r] / PS_PER_S
