"""What an engine shows of itself: the kernel's records without what only the simulator knows."""

from __future__ import annotations

from serving_gym.envs.simulator.kernel.compiled import entry
from serving_gym.envs.simulator.kernel.state import PS_PER_S, Tables, World


@entry
def show_engines(world: World, tables: Tables) -> None:
    """Fills `World.shown` from the kernel's engines."""
    now = world.cluster[0].now_ps
    for e in range(len(world.engines)):
        engine, row = world.engines[e], world.shown[e]
        row.status = engine.status
        row.first_gpu = engine.first_gpu
        row.width = engine.width
        row.num_running = engine.num_running
        row.num_prefilling = engine.num_prefilling
        row.num_waiting = engine.num_waiting
        row.pending_prefill_tokens = engine.pending_prefill_tokens
        row.context_tokens = engine.decode_context
        row.kv_used_blocks = engine.used_blocks
        row.kv_capacity_blocks = engine.capacity_blocks
        row.kv_capacity_tokens = engine.capacity_blocks * tables.kinds[engine.kind].block_size
        row.preemptions = engine.preemptions
        row.generated_tokens = engine.generated_tokens
        row.prefilled_tokens = engine.prefilled_tokens
        ahead_ps = max(engine.step_end_ps - now, 0)  # the iteration in flight was booked when it began
        row.busy_s = (engine.busy_ps - ahead_ps) / PS_PER_S
