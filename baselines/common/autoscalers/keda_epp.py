"""KEDA on signals of llm-d's endpoint picker (EPP), which took the place of its workload-variant autoscaler.

KEDA asks its triggers, leads between nothing and one replica itself, and leaves what is above to a Horizontal Pod
Autoscaler that it owns: each trigger is an external metric with a target for a replica (`AverageValue`), the largest
recommendation counts, and the HPA's behaviour follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.autoscaler import EndpointAutoscaler, bounded, default_gpu
from serving_gym.baselines.common.autoscalers.horizontal import (
    Behavior,
    HorizontalConfig,
    replicas_for_external,
)
from serving_gym.baselines.policy import Configured, Constants, tunable
from serving_gym.calibration.fields import check_not_negative, check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.autoscaling.state import AutoscalingSpec, AutoscalingState, EndpointState
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.scaling import Endpoint

SIGNALS = ("queue", "saturation", "tokens")
_QUEUE_FULL, _KV_FULL = 5, 0.8  # of llm-d's `utilization-detector`, from which an engine is saturated


@dataclass(frozen=True)
class KEDAEPPConfig(Constants):
    """Constants of `KEDAEPPPolicy`; sources: llm-d's guides `keda-epp` and `keda-epp-token-aware`, September 2026.

    Attributes:
        signal: "queue": waiting and running requests; "saturation": that of the pool and running requests; "tokens":
            seconds of prompts to prefill, and KV usage.
        queue_target: Waiting requests a replica (1).
        saturation_target: Saturation of the pool (0.7).
        running_target: Running requests a replica (16).
        backlog_target_s: Prompts to prefill, seconds a replica (1.5).
        kv_target: KV usage a replica (0.8).
        saturation_by_replica: Whether the saturation of the pool, a mean from 0 to about 1, is counted once a replica.
            As the guide's trigger is written (`max(...)` with `AverageValue`) it is not, and the signal never asks
            for more than two or three replicas: False.
        polling_s: Between two looks of KEDA where there is no replica. Source: KEDA (30 s); the guide has 15 s.
        cooldown_s: Without any demand, before the last replica goes, where none is allowed. Source: KEDA (300 s).
        period_s: Between two syncs of the HPA. Source: Kubernetes (15 s).
        tolerance: Of the ratio of a metric to its target. Source: Kubernetes (0.1).
        in_stabilization_s: Window of scaling in (300 s).
        out_percent: Most that come within `out_period_s`, percent of those present (100; "tokens": 0).
        out_pods: ... in number (0; "tokens": 1).
        out_period_s: (15 s; "tokens": 180 s.)
        in_percent: Most that go within `in_period_s`, percent (100; "tokens": 0).
        in_pods: ... in number (0; "tokens": 1).
        in_period_s: (15 s; "tokens": 300 s.)
    """

    signal: str = "queue"
    queue_target: float = tunable(1.0, 0.1, 50.0, log=True)
    saturation_target: float = tunable(0.7, 0.1, 1.0)
    running_target: float = tunable(16.0, 2.0, 256.0, log=True)
    backlog_target_s: float = tunable(1.5, 0.05, 20.0, log=True)
    kv_target: float = tunable(0.8, 0.1, 0.95)
    saturation_by_replica: bool = True
    polling_s: float = 30.0
    cooldown_s: float = 300.0
    period_s: float = 15.0
    tolerance: float = 0.1
    in_stabilization_s: float = tunable(300.0, 15.0, 3600.0, log=True)
    out_percent: float = 100.0
    out_pods: int = 0
    out_period_s: float = 15.0
    in_percent: float = 100.0
    in_pods: int = 0
    in_period_s: float = 15.0

    def __post_init__(self) -> None:
        check_choice("signal", self.signal, SIGNALS)
        check_positive(self, "queue_target", "saturation_target", "running_target", "backlog_target_s")
        check_positive(self, "kv_target", "polling_s", "period_s", "out_period_s", "in_period_s")
        check_not_negative(self, "cooldown_s", "tolerance", "in_stabilization_s")
        check_not_negative(self, "out_percent", "out_pods", "in_percent", "in_pods")

    def behavior(self) -> HorizontalConfig:
        """That of the HPA which KEDA owns."""
        names = (
            "tolerance",
            "in_stabilization_s",
            "out_percent",
            "out_pods",
            "out_period_s",
            "in_percent",
            "in_pods",
            "in_period_s",
        )
        return HorizontalConfig(**{name: getattr(self, name) for name in names})


def pool_saturation(rows: NDArray[np.void]) -> float:
    """Mean over engines of the larger of queue over 5 and KV usage over 0.8 (llm-d's `utilization-detector`).

    Args:
        rows: INSTANCE_DTYPE, of those that serve; none: 1, as in llm-d, where a pool without engines is full.
    """
    if not len(rows):
        return 1.0
    kv = rows["kv_used_tokens"] / np.maximum(rows["kv_capacity_tokens"], 1)
    return float(np.maximum(rows["num_waiting"] / _QUEUE_FULL, kv / _KV_FULL).mean())


class KEDAEPPPolicy(EndpointAutoscaler, Configured[KEDAEPPConfig]):
    """KEDA on signals of llm-d's endpoint picker.

    llm-d's documentation, "KEDA with EPP metrics", and the guides `keda-epp` and `keda-epp-token-aware` (2026). Where
    none are allowed (`min_instances` 0): with demand KEDA starts the first at its next poll; when all triggers
    have been 0 for `cooldown_s` it stops the last.

    Departures: EPP's flow control holds requests while engines are saturated, the gateway here while none can take
    them, so that requests waiting at engines count as its queue; prompts to prefill are whole, since what a prefix
    cache saves is known to the engines alone; what an engine prefills a second is its nominal speed, or where that is
    unknown what it is benchmarked at.
    """

    name = "keda_epp"

    def __init__(self, config: KEDAEPPConfig | None = None) -> None:
        super().__init__(config)
        self.period_s: float | None = self.config.period_s

    def reset(self, spec: PolicySpec | AutoscalingSpec, seed: int) -> None:
        """Forgets everything and takes the speeds of the setting's engines."""
        self._prefill_tps: dict[str, float] = {}
        if isinstance(spec, PolicySpec) and spec.engines is not None:
            for model, s_per_token in zip(spec.engines.models, spec.engines.prefill_s_per_token, strict=True):
                self._prefill_tps.setdefault(model, 1.0 / float(s_per_token))
        super().reset(spec, seed)

    def begin(self) -> None:
        """Forgets recommendations, changes and demand."""
        self._behaviors: dict[Endpoint, Behavior] = {}
        self._demanded_s: dict[Endpoint, float] = {}
        self._polled_s: dict[Endpoint, float] = {}

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """What KEDA or its HPA sets now."""
        key, present, now_s = endpoint.endpoint, len(endpoint.present), state.now_s
        metrics = self.metrics(state, endpoint)
        demanded = any(value > 0 for value, _ in metrics)
        if demanded or key not in self._demanded_s:
            self._demanded_s[key] = now_s
        if not present:
            return self._activated(key, now_s, demanded)
        if not self.spec.min_instances and now_s - self._demanded_s[key] >= self.config.cooldown_s:
            return 0
        wanted = [
            replicas_for_external(value, target, present, self.config.tolerance) for value, target in metrics
        ]
        behavior = self._behaviors.setdefault(key, Behavior(self.config.behavior()))
        recommended = max(bounded(self.spec, max(wanted)), 1)
        return behavior.apply(now_s, present, recommended)

    def _activated(self, key: Endpoint, now_s: float, demanded: bool) -> int:
        """Of no replicas: the first, or none."""
        if now_s - self._polled_s.get(key, -math.inf) < self.config.polling_s:
            return self.spec.min_instances
        self._polled_s[key] = now_s
        return max(int(demanded), self.spec.min_instances)

    def metrics(self, state: AutoscalingState, endpoint: EndpointState) -> list[tuple[float, float]]:
        """Triggers: their values, of all replicas together, and their targets for one."""
        config, rows = self.config, endpoint.instances
        if config.signal == "tokens":
            kv = rows["kv_used_tokens"] / np.maximum(rows["kv_capacity_tokens"], 1)
            return [
                (self._backlog_s(state, endpoint), config.backlog_target_s),
                (float(kv.sum()), config.kv_target),
            ]
        running = (float(rows["num_running"].sum()), config.running_target)
        if config.signal == "queue":
            queued = float(rows["num_waiting"].sum()) + endpoint.num_held
            return [(queued, config.queue_target), running]
        saturation = pool_saturation(endpoint.running)
        if config.saturation_by_replica:
            saturation *= len(endpoint.present)
        return [(saturation, config.saturation_target), running]

    def _backlog_s(self, state: AutoscalingState, endpoint: EndpointState) -> float:
        """Prompts that have been sent and not prefilled, in seconds of one engine."""
        flights, model = state.in_flight, endpoint.endpoint.model
        here = np.isin(flights["place"], endpoint.instances["place"])
        tokens = float(flights["input_tokens"][here & (flights["first_token_s"] < 0)].sum())
        tps = self._prefill_tps.get(model)
        if tps is None:
            tps = float(self.spec.capacity_tps[self.spec.models.index(model), default_gpu(self.spec, model)])
        return tokens / tps
