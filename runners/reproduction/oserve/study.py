"""What stands for the paper's models, requests and profiles.

From the paper: the models, H100 GPUs in machines of eight, the four types and mixes of Tables 1 and 2, spans of a
minute.

Ours, because the paper does not publish it: lengths (`envs.workload.type_mix`: Azure's services of 2023, cut into the
four types of Table 1) and iteration times (kernels of `calibration` under the overheads of vLLM 0.15). Capacities are
profiled with these lengths, before any outcome was looked at.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from serving_gym.calibration.models import get_model
from serving_gym.envs.deployment.profiling import CapacityTable, WorkloadType, profile_capacities
from serving_gym.envs.machines.cluster import Cluster, replica_kinds
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.workload.type_mix import TypeMix, length_pools
from serving_gym.runners.reproduction.claims import claim_of
from serving_gym.runners.reproduction.parts import TRACE_MODEL_LEN

PAPER = "oserve"
make_claim = partial(claim_of, PAPER)
GPUS_PER_MACHINE = 8
ENGINE = "vllm-0.15"


@lru_cache(maxsize=32)
def capacities(model: str, machines: int, method: str = "measured") -> CapacityTable:
    """Capacities of every kind of replica of a model for the four types of Table 1, as published or corrected."""
    spec = DeploymentSpec(model=model, num_machines=machines, max_model_len=TRACE_MODEL_LEN, engine=ENGINE)
    types = [
        WorkloadType(prompts.astype(np.int64), answers.astype(np.int64))
        for prompts, answers in length_pools(TypeMix.code_share)
    ]
    kinds = replica_kinds(get_model(model), cluster_of(machines), spec.max_pp)
    return profile_capacities(spec.replica, kinds, types, method=method)


def cluster_of(machines: int) -> Cluster:
    """So many machines of section 6.1."""
    return Cluster(machines, GPUS_PER_MACHINE)
