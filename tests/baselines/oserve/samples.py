"""Workload types and demands that several tests use."""

from __future__ import annotations

import numpy as np

from serving_gym.envs.deployment.profiling import CapacityTable, WorkloadType
from serving_gym.envs.interface.fleet import ReplicaSpec

ENGINE = ReplicaSpec("opt-66b", "H100", engine="vllm-0.15")
# Short or long inputs and outputs, in the order of Table 1: SILO, LILO, SISO, LISO.
MEANS = ((200, 400), (1200, 400), (200, 50), (1200, 50))


def lengths(prompt: int, answer: int, spread: float = 0.5, count: int = 300) -> WorkloadType:
    """Lengths spread evenly about their means."""
    draws = np.random.default_rng(prompt + answer).uniform(1 - spread, 1 + spread, (2, count))
    inputs, outputs = (
        np.rint(mean * row).astype(np.int64) for mean, row in zip((prompt, answer), draws, strict=True)
    )
    return WorkloadType(inputs, outputs)


def demand_for(table: CapacityTable, gpus: int, seed: int) -> np.ndarray:
    """A random mix at about what a cluster can serve."""
    random = np.random.default_rng(seed)
    mix = random.dirichlet(np.ones(table.num_types))
    per_gpu = (table.per_span / np.array([[kind.num_gpus] for kind in table.kinds])).max(axis=0)
    return mix * gpus / (mix / per_gpu).sum() * random.uniform(0.6, 1.1)
