"""The Horizontal Pod Autoscaler of Kubernetes (autoscaling/v2), on a metric of vLLM.

Its documented algorithm: every sync period desired = ceil(present x metric / target), unless the ratio lies within the
tolerance of 1. A metric of pods is a mean over them; of pods that report none (starting ones) scaling out assumes 0,
scaling in the target, and a change that this would turn round is not made. An external metric, as KEDA provides it, is
a sum over the target. Then `behavior`: of the recommendations in the stabilisation window the largest counts for
scaling in, the smallest for scaling out; policies limit how many come and go within a period, and of several the one
that allows most counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.autoscaler import EndpointAutoscaler, bounded, default_gpu
from serving_gym.baselines.policy import Constants, tunable
from serving_gym.calibration.fields import check_not_negative, check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState
from serving_gym.envs.interface.scaling import Endpoint

METRICS = ("waiting", "kv", "rate")
_TARGETS = {"waiting": 5.0, "kv": 0.8, "rate": 0.7}
_ROUNDING = 1e-9  # of a ratio that should be whole


@dataclass(frozen=True)
class HorizontalConfig(Constants):
    """Constants of `HorizontalPolicy`.

    Attributes:
        metric: "waiting": requests that wait, at instances and at the gateway, in all (an external metric); "kv": mean
            KV usage (a metric of pods); "rate": prompt tokens/s of all requests that came lately, in what an instance
            is benchmarked at (an external metric).
        target: Waiting requests an instance, KV usage, or share of what an instance is benchmarked at; None: 5, 0.8 and
            0.7. Source: production-stack's example trigger for waiting requests; ours for the others.
        rate_window_s: Over which the rate is taken, by metric "rate" alone. Source: ours.
        sync_s: Between two looks. Source: Kubernetes (15 s).
        tolerance: Of the ratio of metric to target. Source: Kubernetes (0.1).
        in_stabilization_s: Stabilisation window of scaling in. Source: Kubernetes (300 s).
        out_stabilization_s: Of scaling out. Source: Kubernetes (0 s).
        out_percent: Most that come within `out_period_s`, percent of those present. Source: Kubernetes (100).
        out_pods: ... in number. Source: Kubernetes (4).
        out_period_s: Source: Kubernetes (15 s).
        in_percent: Most that go within `in_period_s`, percent. Source: Kubernetes (100).
        in_period_s: Source: Kubernetes (15 s).
        in_pods: ... in number, where that allows more. Source: Kubernetes (no such policy, 0).
    """

    metric: str = "waiting"
    target: float | None = None
    rate_window_s: float = 300.0
    sync_s: float = 15.0
    tolerance: float = tunable(0.1, 0.0, 0.5)
    in_stabilization_s: float = tunable(300.0, 15.0, 3600.0, log=True)
    out_stabilization_s: float = 0.0
    out_percent: float = 100.0
    out_pods: int = 4
    out_period_s: float = 15.0
    in_percent: float = 100.0
    in_period_s: float = 15.0
    in_pods: int = 0

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, METRICS)
        check_positive(self, "target", "rate_window_s", "sync_s", "out_period_s", "in_period_s")
        check_not_negative(
            self,
            "tolerance",
            "in_stabilization_s",
            "out_stabilization_s",
            "out_percent",
            "out_pods",
            "in_percent",
            "in_pods",
        )

    @property
    def target_value(self) -> float:
        """The target of the metric."""
        return self.target if self.target is not None else _TARGETS[self.metric]


@dataclass(frozen=True)
class WaitingConfig(HorizontalConfig):
    """Constants of `HorizontalPolicy` on waiting requests, with their target in sight of a tuner."""

    metric: str = "waiting"
    target: float | None = tunable(5.0, 0.2, 200.0, log=True)


@dataclass(frozen=True)
class KVConfig(HorizontalConfig):
    """Constants of `HorizontalPolicy` on KV usage, with its target in sight of a tuner."""

    metric: str = "kv"
    target: float | None = tunable(0.8, 0.1, 0.95)


@dataclass(frozen=True)
class RateConfig(HorizontalConfig):
    """Constants of `HorizontalPolicy` on the rate of prompt tokens, with its target in sight of a tuner."""

    metric: str = "rate"
    target: float | None = tunable(0.7, 0.1, 3.0, log=True)
    rate_window_s: float = tunable(300.0, 15.0, 600.0, log=True)


def replicas_for_external(total: float, target: float, ready: int, tolerance: float) -> int:
    """Replicas for a metric of all of them together, with a target for each.

    Args:
        total: The metric.
        target: For each replica.
        ready: Replicas that there are.
        tolerance: Of the ratio.
    """
    if ready and abs(total / (target * ready) - 1) <= tolerance:
        return ready
    return math.ceil(total / target - _ROUNDING)


def replicas_for_pods(values: NDArray[np.float64], missing: int, target: float, tolerance: float) -> int:
    """Replicas for a metric that each of them reports.

    Args:
        values: (R,), of those that report; at least one.
        missing: How many do not.
        target: Mean that is wanted.
        tolerance: Of the ratio.
    """
    present = len(values) + missing
    ratio = float(values.mean()) / target
    if not missing:
        return present if abs(ratio - 1) <= tolerance else math.ceil(ratio * present - _ROUNDING)
    assumed = target if ratio < 1 else 0.0
    cautious = float(values.sum() + assumed * missing) / present / target
    turned = (ratio < 1 < cautious) or (ratio > 1 > cautious)
    if turned or abs(cautious - 1) <= tolerance:
        return present
    wanted = math.ceil(cautious * present - _ROUNDING)
    contrary = (cautious < 1 and wanted > present) or (cautious > 1 and wanted < present)
    return present if contrary else wanted


@dataclass
class Behavior:
    """Stabilisation and policies of one scale target: what it recommended and did lately.

    The first time the replicas that there are enter as a recommendation, so that nothing is taken away before a whole
    window has passed (Kubernetes' `recordInitialRecommendation`).

    Attributes:
        config: Windows and policies.
    """

    config: HorizontalConfig
    _recommended: list[tuple[float, int]] = field(default_factory=list)
    _changed: list[tuple[float, int]] = field(default_factory=list)
    _began: bool = False

    def apply(self, now_s: float, present: int, recommended: int) -> int:
        """Replicas that a recommendation leads to now."""
        if not self._began:
            self._began = True
            self._recommended.append((now_s, present))
        stable = self._stabilized(now_s, present, recommended)
        wanted = min(stable, self._ceiling(now_s, present)) if stable > present else stable
        wanted = max(wanted, self._floor(now_s, present)) if stable < present else wanted
        if wanted != present:
            self._changed.append((now_s, wanted - present))
        return wanted

    def _stabilized(self, now_s: float, present: int, recommended: int) -> int:
        config = self.config
        self._recommended.append((now_s, recommended))
        longest = max(config.in_stabilization_s, config.out_stabilization_s)
        self._recommended = [(at_s, count) for at_s, count in self._recommended if at_s > now_s - longest]
        up = [count for at_s, count in self._recommended if at_s > now_s - config.out_stabilization_s]
        down = [count for at_s, count in self._recommended if at_s > now_s - config.in_stabilization_s]
        lowest, highest = min([*up, recommended]), max([*down, recommended])
        return max(min(present, highest), lowest)

    def _before(self, now_s: float, present: int, period_s: float) -> int:
        """Replicas at the beginning of a period."""
        return present - sum(change for at_s, change in self._changed if at_s > now_s - period_s)

    def _ceiling(self, now_s: float, present: int) -> int:
        before = self._before(now_s, present, self.config.out_period_s)
        by_percent = math.ceil(before * (1 + self.config.out_percent / 100))
        return max(present, before + self.config.out_pods, by_percent)

    def _floor(self, now_s: float, present: int) -> int:
        before = self._before(now_s, present, self.config.in_period_s)
        by_percent = math.floor(before * (1 - self.config.in_percent / 100))
        return min(present, before - self.config.in_pods, by_percent)


class HorizontalPolicy(EndpointAutoscaler):
    """The Horizontal Pod Autoscaler.

    Args:
        config: Its constants.
    """

    def __init__(self, config: HorizontalConfig | None = None) -> None:
        self.config = config or HorizontalConfig()
        self.name = f"hpa_{self.config.metric}"
        self.period_s = self.config.sync_s

    def begin(self) -> None:
        """Forgets recommendations and changes."""
        self._behaviors: dict[Endpoint, Behavior] = {}
        self._synced_s: dict[Endpoint, float] = {}

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """What the controller sets at its next sync; in between, what there is."""
        present = len(endpoint.present)
        since_s = state.now_s - self._synced_s.get(endpoint.endpoint, -math.inf)
        if since_s < self.config.sync_s - _ROUNDING:
            return present
        self._synced_s[endpoint.endpoint] = state.now_s
        behavior = self._behaviors.setdefault(endpoint.endpoint, Behavior(self.config))
        recommended = bounded(self.spec, self.recommended(endpoint))
        return behavior.apply(state.now_s, present, recommended)

    def recommended(self, endpoint: EndpointState) -> int:
        """Replicas by the metric alone."""
        config, rows = self.config, endpoint.running
        present = len(endpoint.present)
        if config.metric == "waiting":
            total = float(endpoint.instances["num_waiting"].sum()) + endpoint.num_held
            return replicas_for_external(total, config.target_value, present, config.tolerance)
        if config.metric == "rate" and len(endpoint.recent):
            return replicas_for_external(self._rate(endpoint), config.target_value, present, config.tolerance)
        if config.metric == "rate" or not len(rows):
            return present  # nobody reports the metric
        usage = rows["kv_used_tokens"] / np.maximum(rows["kv_capacity_tokens"], 1)
        return replicas_for_pods(usage, present - len(rows), config.target_value, config.tolerance)

    def _rate(self, endpoint: EndpointState) -> float:
        """Prompt tokens/s of all requests that came lately, in instances."""
        recent = endpoint.recent
        rows = recent.last(self.config.rate_window_s)
        tokens = float(rows["input_tokens"].sum() + rows["niw_input_tokens"].sum())
        model = endpoint.endpoint.model
        capacity = self.spec.capacity_tps[self.spec.models.index(model), default_gpu(self.spec, model)]
        return tokens / (len(rows) * recent.bin_s) / float(capacity)


class CombinedHorizontal:
    """Of several recommendations the largest counts, as the HPA does it with several metrics.

    Args:
        config: Windows and policies.
    """

    def __init__(self, config: HorizontalConfig) -> None:
        self.behavior = Behavior(config)

    def apply(self, now_s: float, present: int, recommendations: Sequence[int]) -> int:
        """Replicas that recommendations lead to now."""
        return self.behavior.apply(now_s, present, max(recommendations))
