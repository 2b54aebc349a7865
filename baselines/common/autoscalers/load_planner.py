"""Dynamo's planner in its default mode as of 1.6: static thresholds on KV in use and queued prompts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serving_gym.baselines.common.autoscaler import EndpointAutoscaler
from serving_gym.baselines.policy import Configured, Constants, tunable
from serving_gym.calibration.fields import check_positive
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState, InstanceStatus


@dataclass(frozen=True)
class LoadPlannerConfig(Constants):
    """Constants of `LoadPlannerPolicy`; sources: Dynamo 1.6, `planner/core/load_scaling.py`, `config/defaults.py`.

    Attributes:
        scale_up: Use of an engine above which one is added. `optimization_target`: throughput 1.0, latency 0.4.
        scale_down: Use of all engines below which one is taken away: throughput 0.6, latency 0.1.
        interval_s: Between two decisions, seconds. `load_adjustment_interval` (5).
    """

    scale_up: float = tunable(1.0, 0.05, 1.5)
    scale_down: float = tunable(0.6, 0.01, 1.0)
    interval_s: float = 5.0

    def __post_init__(self) -> None:
        check_positive(self, "scale_up", "scale_down", "interval_s")


class LoadPlannerPolicy(EndpointAutoscaler, Configured[LoadPlannerConfig]):
    """One engine more where one is used beyond a threshold, one fewer where all are below another.

    Use is (KV of running requests + tokens of queued ones) / KV capacity, of aggregated workers. While the number of
    engines is not what was last asked for, the planner only observes; with a `scale_down` above `scale_up` adding comes
    first.
    """

    name = "dynamo_load"

    @property
    def period_s(self) -> float:
        """Time between decisions."""
        return self.config.interval_s

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """Engines that there are, one more or one fewer."""
        present = len(endpoint.present)
        changing = endpoint.with_status(InstanceStatus.STARTING, InstanceStatus.DRAINING)
        rows = endpoint.running
        if len(changing) or not len(rows):
            return present
        tokens = rows["kv_used_tokens"] + rows["waiting_tokens"]
        use = tokens / np.maximum(rows["kv_capacity_tokens"], 1)
        if (use > self.config.scale_up).any():
            return present + 1
        if present > 1 and (use < self.config.scale_down).all():
            return present - 1
        return present
