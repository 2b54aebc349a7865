"""What PreServe's scaler is compared with (section 5.3): Reactive, Proactive and Hybrid.

The text has a sentence for each and no number. Thresholds, and that one instance comes or goes at a time, are ours:
those of SageServe's reactive scaling (section 4), which looks at the same usage. PASS is in `pass_scaler`, Llumnix in
`baselines.llumnix.scaler`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from serving_gym.baselines.common.autoscaler import EndpointAutoscaler
from serving_gym.baselines.policy import Configured, Constants, tunable
from serving_gym.baselines.preserve.workload_predictor import (
    PERIOD_S,
    WorkloadPredictorConfig,
    predictors,
    window_number,
)
from serving_gym.calibration.fields import check_not_negative, check_positive
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState
from serving_gym.envs.interface.scaling import Endpoint


@dataclass(frozen=True)
class ComparatorConfig(Constants):
    """Constants of the comparators.

    Attributes:
        predictor: Of the workload predictor, for those that have one: the same as PreServe's.
        out_above_usage: Mean KV usage above which an instance is added. Source: ours.
        in_below_usage: ... below which one is isolated. Source: ours.
        cooldown_s: Between two reactions. Source: ours.
        period_s: Between two looks, seconds; None: as often as the environment asks. Source: ours, as PreServe.
    """

    predictor: WorkloadPredictorConfig = field(default_factory=WorkloadPredictorConfig)
    out_above_usage: float = tunable(0.7, 0.5, 0.95)
    in_below_usage: float = tunable(0.3, 0.05, 0.5)
    cooldown_s: float = 15.0
    period_s: float | None = PERIOD_S

    def __post_init__(self) -> None:
        if not 0 <= self.in_below_usage < self.out_above_usage:
            raise ValueError(
                f"in_below_usage must lie between 0 and out_above_usage ({self.out_above_usage}), "
                f"got {self.in_below_usage}"
            )
        check_not_negative(self, "cooldown_s")
        check_positive(self, "period_s")


class _Comparator(EndpointAutoscaler, Configured[ComparatorConfig]):
    """Shared parts: a reaction to KV usage, and the number that a forecast asks for."""

    @property
    def period_s(self) -> float | None:
        """Time between decisions."""
        return self.config.period_s

    def begin(self) -> None:
        """Forgets what was learned and done."""
        self._acted_s: dict[Endpoint, float] = {}
        self._window: dict[Endpoint, int] = {}
        self._forecast: dict[Endpoint, int | None] = {}
        self._predictors = predictors(self.spec, self.config.predictor)

    def reaction(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """Change by KV usage: -1, 0 or 1."""
        usage = endpoint.utilization()
        since_s = state.now_s - self._acted_s.get(endpoint.endpoint, -math.inf)
        if not math.isfinite(usage) or since_s < self.config.cooldown_s:
            return 0
        change = (usage > self.config.out_above_usage) - (usage < self.config.in_below_usage)
        if change:
            self._acted_s[endpoint.endpoint] = state.now_s
        return change

    def forecast(self, state: AutoscalingState, endpoint: EndpointState) -> int | None:
        """Instances for the next window, said when a window begins; None: nothing is known, or none begins."""
        window = window_number(state.now_s, self.config.predictor.window_s)
        if self._window.get(endpoint.endpoint, -1) >= window:
            return None
        self._window[endpoint.endpoint] = window
        self._forecast[endpoint.endpoint] = self._predictors[endpoint.endpoint].predict(endpoint).instances
        return self._forecast[endpoint.endpoint]


class PreServeReactivePolicy(_Comparator):
    """Reactive: "the current instance status (i.e., KV memory usage)" alone."""

    name = "preserve_reactive"

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """One more above the upper threshold, one fewer below the lower one."""
        return len(endpoint.present) + self.reaction(state, endpoint)


class PreServeProactivePolicy(_Comparator):
    """Proactive: the number that the forecast of the window asks for, and no correction."""

    name = "preserve_proactive"

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """Changes when a window begins."""
        wanted = self.forecast(state, endpoint)
        return len(endpoint.present) if wanted is None else wanted


class PreServeHybridPolicy(_Comparator):
    """Hybrid: the forecast when a window begins, corrected by reactions within it.

    A reaction does not take away what the forecast asked for.
    """

    name = "preserve_hybrid"

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """The window's number when it begins, reactions after."""
        present, wanted = len(endpoint.present), self.forecast(state, endpoint)
        if wanted is not None:
            return wanted
        floor, change = self._forecast.get(endpoint.endpoint) or 0, self.reaction(state, endpoint)
        return present + (change if change > 0 or present > floor else 0)
