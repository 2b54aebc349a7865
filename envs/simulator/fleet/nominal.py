"""What one knows of a simulated fleet's engines beforehand."""

from __future__ import annotations

import numpy as np

from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.kernel.state import PS_PER_S


def nominal_engines(simulator: FleetSimulator) -> NominalEngines:
    """What is known of a fleet's places before they serve anything."""
    fleet, tables = simulator.fleet, simulator.tables
    kinds = np.array([fleet.kind(place) for place in range(len(fleet.places))])
    budget = tables.kinds["max_batched_tokens"][kinds]
    block_size = tables.kinds["block_size"][kinds]
    return NominalEngines(
        models=tuple(group.replica.model for group in fleet.places),
        regions=tuple(group.region for group in fleet.places),
        gpus=tuple(group.replica.gpu for group in fleet.places),
        num_gpus=np.array([group.replica.num_gpus for group in fleet.places], np.int64),
        block_size=block_size,
        kv_capacity_tokens=np.array(fleet.blocks, np.int64) * block_size,
        max_num_seqs=tables.kinds["max_num_seqs"][kinds],
        max_num_batched_tokens=budget,
        prefill_s_per_token=tables.mixed_ps[kinds, budget] / (budget * PS_PER_S),
        decode_s=tables.decode_ps[kinds] / PS_PER_S,
        kv_s_per_token=tables.kinds["kv_ps"][kinds] / PS_PER_S,
    )
