"""The saturation rule of llm-d's workload-variant autoscaler (its document `saturation-analyzer`).

A replica is saturated at a KV usage of 0.80 or a queue of 5. Over the others spare KV and spare queue are averaged: too
little of either asks for a replica more; one fewer is safe where, with their whole load on one replica fewer, enough of
both is left. Variants (here: kinds of GPU) of a model differ in cost: the cheapest grows, the most expensive shrinks.
A variant with replicas on their way does not grow, and one that has not reached its target keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.autoscaler import Autoscaler, to_count, victims
from serving_gym.baselines.policy import Configured, Constants, tunable
from serving_gym.calibration.fields import check_positive, check_within
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState
from serving_gym.envs.interface.scaling import Endpoint, Operation, ScaleChange

_ROUNDING = 1e-9  # of spare KV, which is a difference of decimal fractions


@dataclass(frozen=True)
class SaturationConfig(Constants):
    """Constants of `SaturationPolicy`. Source of all: the default of llm-d's workload-variant autoscaler.

    Attributes:
        kv_threshold: KV usage from which a replica is saturated.
        queue_threshold: Waiting requests from which it is.
        kv_spare: Mean spare KV usage that is to be left.
        queue_spare: Mean spare queue that is to be left.
        interval_s: Between two decisions, seconds (`GLOBAL_OPT_INTERVAL`).
    """

    kv_threshold: float = tunable(0.80, 0.5, 0.98)
    queue_threshold: float = 5.0
    kv_spare: float = tunable(0.10, 0.0, 0.45)
    queue_spare: float = 3.0
    interval_s: float = 60.0

    def __post_init__(self) -> None:
        check_within(self, "(0, 1]", "kv_threshold")
        check_positive(self, "interval_s")
        if not 0 <= self.kv_spare < self.kv_threshold:
            raise ValueError(f"kv_spare must lie between 0 and kv_threshold, got {self.kv_spare}")
        if not 0 <= self.queue_spare < self.queue_threshold:
            raise ValueError(f"queue_spare must lie between 0 and queue_threshold, got {self.queue_spare}")


@dataclass(frozen=True)
class Saturation:
    """What the analysis of a model's replicas says.

    Attributes:
        grow: Whether a replica more is asked for.
        may_shrink: Whether one fewer is safe.
    """

    grow: bool
    may_shrink: bool


def analyse(rows: NDArray[np.void], config: SaturationConfig) -> Saturation:
    """Analyses replicas that report.

    Where all are saturated there is no spare: one more is asked for.

    Args:
        rows: (I,) INSTANCE_DTYPE, those that run.
        config: Thresholds.
    """
    if not len(rows):
        return Saturation(False, False)
    kv = rows["kv_used_tokens"] / np.maximum(rows["kv_capacity_tokens"], 1)
    queue = rows["num_waiting"].astype(np.float64)
    free = (kv < config.kv_threshold) & (queue < config.queue_threshold)
    count = int(free.sum())
    if not count:
        return Saturation(True, False)
    grow = _too_little(float(kv[free].mean()), float(queue[free].mean()), config)
    may_shrink = count >= 2 and not _too_little(
        float(kv[free].sum()) / (count - 1), float(queue[free].sum()) / (count - 1), config
    )
    return Saturation(grow, may_shrink)


def _too_little(kv: float, queue: float, config: SaturationConfig) -> bool:
    spare_kv, spare_queue = config.kv_threshold - kv, config.queue_threshold - queue
    return spare_kv < config.kv_spare - _ROUNDING or spare_queue < config.queue_spare - _ROUNDING


class SaturationPolicy(Autoscaler, Configured[SaturationConfig]):
    """The rule, for every endpoint over its variants."""

    name = "llm_d_saturation"

    @property
    def period_s(self) -> float:
        """Time between decisions."""
        return self.config.interval_s

    def begin(self) -> None:
        """No variant has a target."""
        self._targets: dict[tuple[Endpoint, int], int] = {}

    def decide(self, state: AutoscalingState) -> Iterable[ScaleChange]:
        """At most one replica more or fewer of a model, besides targets that have not been reached."""
        for endpoint in state.endpoints:
            if len(endpoint.present) < self.spec.min_instances:
                yield from to_count(self.spec, endpoint, self.spec.min_instances)
            else:
                yield from self._rule(endpoint)

    def _rule(self, endpoint: EndpointState) -> Iterable[ScaleChange]:
        found = analyse(endpoint.running, self.config)
        present = np.bincount(endpoint.present["gpu"], minlength=len(self.spec.gpus))
        open_variants = []
        for gpu in self._variants(endpoint):
            if self._reached(endpoint, gpu, int(present[gpu])):
                open_variants.append(gpu)
            else:
                yield from self._towards(
                    endpoint, gpu, self._targets[endpoint.endpoint, gpu] - int(present[gpu])
                )
        total, cost = int(present.sum()), self.spec.gpu_usd_per_h
        if found.grow and total < self.spec.max_instances:
            coming = set(endpoint.starting["gpu"].tolist())
            may = [gpu for gpu in open_variants if gpu not in coming]
            if may:
                gpu = min(may, key=lambda variant: (cost[variant], self.spec.gpus[variant]))
                self._targets[endpoint.endpoint, gpu] = int(present[gpu]) + 1
                yield from self._towards(endpoint, gpu, 1)
        elif found.may_shrink and not found.grow and total > self.spec.min_instances:
            may = [gpu for gpu in open_variants if present[gpu] > 0]
            if may:
                gpu = max(may, key=lambda variant: (cost[variant], self.spec.gpus[variant]))
                self._targets[endpoint.endpoint, gpu] = int(present[gpu]) - 1
                yield from self._towards(endpoint, gpu, -1)

    def _towards(self, endpoint: EndpointState, gpu: int, change: int) -> Iterable[ScaleChange]:
        if change > 0:
            yield ScaleChange(endpoint.endpoint, Operation.START, change, gpu=gpu)
        else:
            places = victims(endpoint, -change, endpoint.present[endpoint.present["gpu"] == gpu])
            yield ScaleChange(endpoint.endpoint, Operation.STOP, -change, places, gpu=gpu)

    def _variants(self, endpoint: EndpointState) -> list[int]:
        runs = self.spec.capacity_tps[self.spec.models.index(endpoint.endpoint.model)] > 0
        return [int(gpu) for gpu in np.flatnonzero(runs)]

    def _reached(self, endpoint: EndpointState, gpu: int, present: int) -> bool:
        """Whether a variant has reached its target, if it has one; starting instances count."""
        target = self._targets.get((endpoint.endpoint, gpu))
        if target is not None and target == present:
            del self._targets[endpoint.endpoint, gpu]
            target = None
        return target is None
