"""What is found out once, from the training split: workload types, capacities, and the past."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.deployment.config import BY_KMEANS, DeploymentConfig
from serving_gym.envs.deployment.profiling import WorkloadType, profile
from serving_gym.envs.deployment.state import DeploymentSetting
from serving_gym.envs.deployment.workload_types import WorkloadTypes, count_by_span, find_types
from serving_gym.envs.machines.cluster import ReplicaKind
from serving_gym.envs.simulator.fleet.build import context_tokens
from serving_gym.envs.workload.predictions import predict_lengths
from serving_gym.envs.workload.registry import WorkloadSource
from serving_gym.envs.workload.schema import Workload

PAST_SEED = 0


class Typing:
    """Tells workload types apart.

    Args:
        config: What the environment is made of.
        source: Its workload.
    """

    def __init__(self, config: DeploymentConfig, source: WorkloadSource) -> None:
        self.config = config
        self.past = _past(config, source)
        self.longest_prompt_tokens = source.max_input_tokens
        self.longest_tokens = source.max_input_tokens + source.max_output_tokens
        self.sample = self.past.head(config.past_requests)
        self.types: WorkloadTypes | None = None
        if config.types == BY_KMEANS:
            self.types = find_types(self.sample.input_tokens, self.sample.output_tokens, config.num_types)
        self.num_types = len(source.classes) if self.types is None else len(self.types)

    def classify(self, workload: Workload, seed: int, error_factor: float = 1.0) -> NDArray[np.int64]:
        """(N,), type of each request as recognised on its arrival.

        Args:
            workload: Requests.
            seed: Of the errors of predictions.
            error_factor: Factor on them.
        """
        if self.types is None:
            return workload.class_id.astype(np.int64)
        predicted = predict_lengths(self.config.prediction.with_errors(error_factor), workload, seed)
        return self.types.classify(workload.input_tokens, predicted)

    def lengths(self) -> tuple[WorkloadType, ...]:
        """Lengths of past requests by the type they were told to be of; a type without any has the lengths of all."""
        past = self.sample
        labels = self.classify(past, PAST_SEED)
        rows = [labels == j for j in range(self.num_types)]
        return tuple(
            WorkloadType(
                past.input_tokens[row if row.any() else slice(None)].astype(np.int64),
                past.output_tokens[row if row.any() else slice(None)].astype(np.int64),
            )
            for row in rows
        )


def _past(config: DeploymentConfig, source: WorkloadSource) -> Workload:
    """A long training episode."""
    wanted = math.ceil(source.rate_rps * config.span_s * config.past_spans)
    spec = replace(config.workload, num_requests=max(config.past_requests, wanted))
    return WorkloadSource(spec).sample(PAST_SEED, "train")


def make_setting(
    config: DeploymentConfig, typing: Typing, kinds: tuple[ReplicaKind, ...]
) -> DeploymentSetting:
    """What policies know.

    Args:
        config: What the environment is made of.
        typing: Tells types apart.
        kinds: Kinds of replicas that fit.
    """
    lengths = typing.lengths()
    longest = context_tokens(config.cluster.replica)
    table = profile(
        config.cluster.replica,
        kinds,
        lengths,
        config.span_s,
        config.profiling,
        config.cluster.scheduling,
        config.profiling_precision,
    )
    return DeploymentSetting(
        cluster=config.cluster.cluster,
        model=config.cluster.model,
        table=table,
        mean_tokens=np.array([(of.input_tokens.mean(), of.output_tokens.mean()) for of in lengths]),
        past=count_by_span(
            typing.past.arrival_s, typing.classify(typing.past, PAST_SEED), typing.num_types, config.span_s
        ),
        types=lengths,
        replica=config.cluster.replica,
        scheduling=config.cluster.scheduling,
        longest_tokens=min(typing.longest_tokens, longest),
        longest_prompt_tokens=min(typing.longest_prompt_tokens, longest - 1),
    )
