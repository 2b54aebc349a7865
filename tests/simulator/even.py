"""Fleets in which every iteration takes 10 ms, so that times can be worked out by hand."""

from __future__ import annotations

import numpy as np

from serving_gym.envs.simulator.fleet.simulator import FleetSimulator

MS = 1_000_000_000  # picoseconds
ITERATION_MS = 10


def make_even(simulator: FleetSimulator) -> None:
    """Lets all iterations of a simulator that was just reset take 10 ms."""
    kinds = simulator.tables.kinds.copy()
    for name in ("kv_ps", "attn_fs", "sequence_ps"):
        kinds[name] = 0
    simulator.tables = simulator.tables._replace(
        decode_ps=np.full_like(simulator.tables.decode_ps, ITERATION_MS * MS),
        mixed_ps=np.full_like(simulator.tables.mixed_ps, ITERATION_MS * MS),
        kinds=kinds,
    )


def advance(simulator: FleetSimulator, until_ms: float) -> None:
    """Lets time pass, counted in ms."""
    simulator.advance_ps(round(until_ms * MS))
