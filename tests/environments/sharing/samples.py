"""Small shared clusters and workloads."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_gym.envs.interface.slo import LengthSLO
from serving_gym.envs.machines.shared_nodes import NodeSpec, SharingSpec
from serving_gym.envs.simulator.sharing.build import ManagerSpec
from serving_gym.envs.simulator.sharing.simulator import SharingSimulator
from serving_gym.envs.workload.schema import Workload

PROMISE = LengthSLO(2.0, 0.25, 1 / 512)
MODELS = ("llama-3.2-3b#0", "llama-2-7b#1", "llama-2-7b#2", "llama-2-13b#3", "llama-3.2-3b#4")
CPU, GPU = NodeSpec("cpu", "Xeon-32c-AMX", 1, 64.0), NodeSpec("gpu", "A100-80GB", 2, 44.0)
SMALL = SharingSpec(nodes=(CPU, GPU), slots_per_node=4, max_num_seqs=6, engine="vllm-0.6", front_end="none")


def some_requests(
    seed: int,
    num: int = 40,
    span_s: float = 25.0,
    models: tuple[str, ...] = MODELS,
    most_output: int = 60,
) -> Workload:
    """Requests at whole tenths of a second, so that things happen at once; one prompt is longer than models allow."""
    rng = np.random.default_rng(seed)
    inputs = rng.integers(1, 2500, num)
    inputs[num // 2] = 4096
    arrival_s = np.sort(np.round(rng.uniform(0, span_s, num), 1))
    return Workload(
        arrival_s=arrival_s,
        input_tokens=inputs,
        output_tokens=rng.integers(1, most_output, num),
        max_output_tokens=np.full(num, 1000),
        model_id=rng.integers(0, len(models), num),
        models=models,
    )


def simulator_of(
    workload: Workload, spec: SharingSpec = SMALL, manager: ManagerSpec | None = None, **kwargs: Any
) -> SharingSimulator:
    """A simulator at the beginning of a workload."""
    simulator = SharingSimulator(spec, (PROMISE,), workload.models, manager, 30.0, **kwargs)
    simulator.reset(workload)
    return simulator
