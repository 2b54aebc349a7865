"""SageServe's forecast-aware autoscaler: forecast, plan, and carry the plan out (sections 5, 6.3 and 6.4).

Every hour the load predictor forecasts each endpoint and the optimiser plans changes for all of them; in between the
strategy decides when a change is made. The paper starts machines of one kind; with several, what LT-U and LT-UA bring
in comes on the kind of which the plan wants most in addition, and LT-UA goes beyond the plan on the first kind that the
model runs on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.autoscaler import Autoscaler
from serving_gym.baselines.common.forecasting.registry import make_forecaster
from serving_gym.baselines.common.forecasting.series import FloatArray, SeriesForecaster
from serving_gym.baselines.policy import Configured
from serving_gym.baselines.sageserve.autoscaling_config import ORACLE, SageServeScalingConfig
from serving_gym.baselines.sageserve.capacity_plan import CapacityPlan, CapacityProblem, solve
from serving_gym.baselines.sageserve.deferral import by_utilization, by_utilization_and_gap, immediate
from serving_gym.baselines.sageserve.demand import buffer_tps, coming_tps, interactive_tps, present_tps
from serving_gym.baselines.sageserve.spot import Stock, bring_in, give_away
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState
from serving_gym.envs.interface.scaling import Endpoint, ScaleChange

_ROUNDING = 1e-9  # of a time that is a whole number of periods


@dataclass(frozen=True, eq=False)
class Plan:
    """What is planned for the present hour.

    Attributes:
        made_s: When it was made.
        planned: By endpoint, (G,) instances that there should be.
        predicted_tps: By endpoint, (W,) interactive tokens/s that were predicted by window, without the buffer.
        solution: As the optimiser left it.
    """

    made_s: float
    planned: dict[Endpoint, NDArray[np.int64]]
    predicted_tps: dict[Endpoint, FloatArray]
    solution: CapacityPlan


class SageServePolicy(Autoscaler, Configured[SageServeScalingConfig]):
    """LT-I, LT-U or LT-UA.

    Attributes:
        plan: The present one.
    """

    name = "sageserve"

    @property
    def period_s(self) -> float:
        """Time between decisions."""
        return self.config.period_s

    @property
    def history_needed_s(self) -> float:
        """A window: without one the plan would be made for no traffic, and for an hour."""
        return self.config.window_s

    def __init__(self, config: SageServeScalingConfig | None = None) -> None:
        super().__init__(config)
        self.clairvoyant = self.config.forecaster == ORACLE

    def begin(self) -> None:
        """Forgets forecasters and plans."""
        self.plan: Plan | None = None
        self._period = -1
        self._forecasters: dict[Endpoint, SeriesForecaster] = {}
        self._fitted_s: dict[Endpoint, float] = {}
        self._acted_s: dict[Endpoint, float] = {}

    def decide(self, state: AutoscalingState) -> Iterable[ScaleChange]:
        """Plans when an hour begins, and does what the strategy says."""
        period = math.floor(state.now_s / self.config.plan_period_s + _ROUNDING)
        fresh = period > self._period
        if fresh:
            self._period = period
            self.plan = self.make_plan(state)
        assert self.plan is not None
        stock = Stock.of(state)
        for endpoint in state.endpoints:
            if self.config.strategy == "LT-I":
                if fresh:
                    yield from self._at_once(stock, endpoint)
                continue
            acted_s = self._acted_s.get(endpoint.endpoint, -math.inf)
            if fresh and self.config.scale_in == "immediate":
                changes = tuple(self._surplus(endpoint))
                yield from changes
                if changes:
                    continue
            if state.now_s - acted_s >= self.config.cooldown_s:
                changes = tuple(self._deferred(state, stock, endpoint))
                if changes:
                    self._acted_s[endpoint.endpoint] = state.now_s
                yield from changes

    def make_plan(self, state: AutoscalingState) -> Plan:
        """Forecasts every endpoint and solves the optimisation problem."""
        spec = self.spec
        windows = max(1, round(self.config.plan_period_s / self.config.window_s))
        shape = (len(spec.models), len(spec.regions))
        demand = np.zeros((*shape, windows))
        present = np.zeros((*shape, len(spec.gpus)), np.int64)
        predicted: dict[Endpoint, FloatArray] = {}
        for number, own in enumerate(state.endpoints):
            at = spec.models.index(own.endpoint.model), spec.regions.index(own.endpoint.region)
            if self.clairvoyant:
                predicted[own.endpoint] = coming_tps(state.coming[number], self.config.window_s, windows)
            else:
                predicted[own.endpoint] = self._predict(state.now_s, own, windows)
            demand[at] = predicted[own.endpoint] + buffer_tps(own, self.config.beta)
            present[at] = np.bincount(own.present["gpu"], minlength=len(spec.gpus))
        hours = spec.start_s / 3600.0
        problem = CapacityProblem(
            present,
            demand,
            spec.capacity_tps,
            spec.gpu_usd_per_h,
            spec.gpu_usd_per_h * hours,
            self.config.epsilon,
            fewest=spec.min_instances,
            most=spec.max_instances,
            machines=self._machines(state, present),
        )
        solution = solve(problem)
        after = present + solution.delta
        planned = {
            own.endpoint: after[
                spec.models.index(own.endpoint.model), spec.regions.index(own.endpoint.region)
            ]
            for own in state.endpoints
        }
        return Plan(state.now_s, planned, predicted, solution)

    def _machines(self, state: AutoscalingState, present: NDArray[np.int64]) -> NDArray[np.int64]:
        """(R, G) machines that a region has for instances: present ones, spot ones, vacant ones."""
        machines = present.sum(axis=0)
        for own in state.endpoints:
            machines[self.spec.regions.index(own.endpoint.region)] += own.spot
        for region, vacant in state.vacant.items():
            machines[self.spec.regions.index(region)] += vacant
        return machines

    def _predict(self, now_s: float, own: EndpointState, windows: int) -> FloatArray:
        """(W,) tokens/s of the next windows; while too little is known, the largest of the last hour."""
        past = interactive_tps(own, self.config.window_s)
        last_hour = np.full(windows, past[-windows:].max() if len(past) else 0.0)
        if not past.any():
            return last_hour
        end_s = own.history.end_s
        origin_s = end_s - len(past) * self.config.window_s
        forecaster = self._forecasters.setdefault(
            own.endpoint, make_forecaster(self.config.forecaster, self.config.window_s, origin_s)
        )
        if now_s - self._fitted_s.get(own.endpoint, -math.inf) >= self.config.refit_s:
            try:
                forecaster.fit(past)
            except ValueError:
                return last_hour  # too little is known for this forecaster yet
            self._fitted_s[own.endpoint] = now_s
        return forecaster.forecast(past, windows)

    def _at_once(self, stock: Stock, own: EndpointState) -> Iterable[ScaleChange]:
        assert self.plan is not None
        present = np.bincount(own.present["gpu"], minlength=len(self.spec.gpus))
        for gpu, planned in enumerate(self.plan.planned[own.endpoint]):
            change = immediate(int(present[gpu]), int(planned))
            if change > 0:
                yield from bring_in(self.spec, stock, own.endpoint, change, gpu)
            elif change < 0:
                yield from give_away(own, -change, own.present[own.present["gpu"] == gpu])

    def _surplus(self, own: EndpointState) -> Iterable[ScaleChange]:
        """Takes away at once what the plan does not want."""
        assert self.plan is not None
        fewest = max(int(self.plan.planned[own.endpoint].sum()), self.spec.min_instances)
        if len(own.present) > fewest:
            yield from give_away(own, len(own.present) - fewest)

    def _deferred(self, state: AutoscalingState, stock: Stock, own: EndpointState) -> Iterable[ScaleChange]:
        assert self.plan is not None
        utilization, present = own.utilization(), len(own.present)
        planned = int(self.plan.planned[own.endpoint].sum())
        if not math.isfinite(utilization) and own.starting.size:
            return  # nothing serves yet: there is no utilisation to look at
        if self.config.strategy == "LT-U":
            change = by_utilization(present, planned, utilization, self.config)
        else:
            since_s = state.now_s - self.plan.made_s
            predicted = self.plan.predicted_tps[own.endpoint]
            window = min(int(since_s / self.config.window_s), len(predicted) - 1)
            change = by_utilization_and_gap(
                present,
                planned,
                utilization,
                present_tps(own, self.config.observe_s),
                float(predicted[window]),
                self.config.plan_period_s - since_s,
                self.config,
            )
        if change > 0 and present < self.spec.max_instances:
            yield from bring_in(self.spec, stock, own.endpoint, 1, self._wanted_gpu(own))
        elif change < 0 and present > self.spec.min_instances:
            yield from give_away(own, 1)

    def _wanted_gpu(self, own: EndpointState) -> int | None:
        """Kind of GPU of which the plan wants most in addition; None: of none."""
        assert self.plan is not None
        missing = self.plan.planned[own.endpoint] - np.bincount(
            own.present["gpu"], minlength=len(self.spec.gpus)
        )
        return int(np.argmax(missing)) if missing.max() > 0 else None
