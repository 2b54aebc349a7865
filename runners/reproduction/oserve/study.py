"""What stands for the paper's models, requests and profiles.

From the paper: the models, H100 GPUs in machines of eight, the four types and mixes of Tables 1 and 2, spans of a
minute.

Ours, because the paper does not publish it: lengths (`envs.workload.type_mix`: Azure's services of 2023, cut into the
four types of Table 1) and iteration times (kernels of `calibration` under the overheads of vLLM 0.15). Capacities are
profiled with these lengths, before any outcome was looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from serving_gym.calibration.models import get_model
from serving_gym.envs.deployment.profiling import CapacityTable, WorkloadType, profile_capacities
from serving_gym.envs.machines.cluster import Cluster, replica_kinds
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.workload.type_mix import TypeMix, length_pools
from serving_gym.runners.reproduction.choices import make_choices
from serving_gym.runners.reproduction.claims import claim_of
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.oserve.choices import MODEL, OServeChoices
from serving_gym.runners.reproduction.parts import TRACE_MODEL_LEN, seeds_of

PAPER = "oserve"
make_claim = partial(claim_of, PAPER)
GPUS_PER_MACHINE = 8
ENGINE = "vllm-0.15"


@dataclass(frozen=True)
class Study:
    """What episodes are made from, of the words of the command.

    Attributes:
        choices: What the paper leaves open.
        seeds: Seeds whose figures are averaged.
        split: Part of the workload.
        requests: Of an episode; None: as the trace says.
        quick: Whether episodes are shorter.
    """

    choices: OServeChoices
    seeds: range
    split: str
    requests: int | None
    quick: bool


def study_of(config: ReproduceConfig) -> Study:
    """The study that the words of a command ask for."""
    choices = make_choices(OServeChoices, config.choices)
    return Study(choices, seeds_of(config), config.split, config.requests, config.quick)


def deployment_spec(
    choices: OServeChoices, model: str, machines: int, disaggregation: bool = False
) -> DeploymentSpec:
    """Machines, model and engine."""
    return DeploymentSpec(
        model=model,
        num_machines=machines,
        disaggregation=disaggregation,
        max_model_len=longest_tokens(choices, model) or TRACE_MODEL_LEN,
        max_num_batched_tokens=choices.token_budget,
        engine=ENGINE,
        front_end="none",
    )


def longest_tokens(choices: OServeChoices, model: str) -> int | None:
    """Longest request that is sent to a model, tokens; None: all are."""
    return get_model(model).max_model_len if choices.context == MODEL else None


def pools(choices: OServeChoices, model: str) -> list[WorkloadType]:
    """Lengths of the four types of Table 1."""
    return [
        WorkloadType(prompts.astype(np.int64), answers.astype(np.int64))
        for prompts, answers in length_pools(
            TypeMix.code_share, choices.long_answers, longest_tokens(choices, model)
        )
    ]


@lru_cache(maxsize=64)
def capacities(
    model: str, machines: int, method: str = "measured", choices: OServeChoices | None = None
) -> CapacityTable:
    """Capacities of every kind of replica of a model for the four types of Table 1, as published or corrected."""
    choices = choices or OServeChoices()
    spec = deployment_spec(choices, model, machines)
    kinds = replica_kinds(get_model(model), cluster_of(machines), spec.max_pp)
    return profile_capacities(
        spec.replica, kinds, pools(choices, model), method=method, scheduling=spec.scheduling
    )


def cluster_of(machines: int) -> Cluster:
    """So many machines of section 6.1."""
    return Cluster(machines, GPUS_PER_MACHINE)
