"""PASS (The Web Conference 2024) as PreServe compares with it: forecast, performance model, correction by queueing.

PreServe "adopts its scaling strategy". PASS's own text is not at hand; its abstract and its authors' account of it say:

* its forecast chooses and calibrates, by application, among several algorithms, by how they have done lately;
* its performance model, "derived from online historical logs", says what load an instance bears within the promises;
* a "reactive strategy grounded in queuing theory" answers when promises are broken after all, "resulting from"
  forecasts that were too low.

How each is done in detail is ours: the forecaster of the least mean error over the last windows; the largest load an
instance has borne with no more than the allowed share of violations in a window, in requests/s; an M/M/c queue whose
servers each bear that load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving_gym.baselines.common.autoscaler import EndpointAutoscaler
from serving_gym.baselines.common.forecasting.registry import make_forecaster
from serving_gym.baselines.common.forecasting.series import FloatArray, SeriesForecaster, percentage_errors
from serving_gym.baselines.policy import Configured, Constants, tunable
from serving_gym.baselines.preserve.workload_predictor import PERIOD_S, window_number
from serving_gym.calibration.fields import check_at_least, check_positive, check_within
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState
from serving_gym.envs.interface.scaling import Endpoint


@dataclass(frozen=True)
class PassConfig(Constants):
    """Constants of `PassPolicy`.

    Attributes:
        window_s: Windows that are forecast. Source: PreServe's, 10 minutes.
        forecasters: Names of those among which is chosen. Source: ours.
        choose_windows: Last windows by whose errors is chosen. Source: ours, an hour.
        refit_s: Between two fits. Source: ours, a day.
        violation_share: Share of requests that may miss a promise in a window that counts as borne. Source: ours.
        wait_share: Share of requests that may wait in the queueing model. Source: ours.
        period_s: Between two looks, seconds; None: as often as the environment asks. Source: ours, as PreServe.
    """

    window_s: float = 600.0
    forecasters: Sequence[str] = ("last_value", "moving_mean", "seasonal_naive", "arima")
    choose_windows: int = 6
    refit_s: float = 86_400.0
    violation_share: float = tunable(0.05, 0.001, 0.2, log=True)
    wait_share: float = tunable(0.05, 0.001, 0.5, log=True)
    period_s: float | None = PERIOD_S

    def __post_init__(self) -> None:
        if not self.forecasters:
            raise ValueError("forecasters must name at least one")
        check_at_least(self, 1, "choose_windows")
        check_positive(self, "window_s", "refit_s", "period_s")
        check_within(self, "(0, 1)", "violation_share", "wait_share")


def borne_rps(
    requests: FloatArray, violations: FloatArray, instances: FloatArray, window_s: float, allowed: float
) -> float:
    """Largest load of an instance, requests/s, in windows with no more than the allowed share of violations; 0: none.

    Args:
        requests: (T,) by window.
        violations: (T,).
        instances: (T,) that served, on average.
        window_s: Length of a window.
        allowed: Share.
    """
    kept = (instances > 0) & (requests > 0) & (violations <= allowed * requests)
    return float((requests[kept] / instances[kept]).max() / window_s) if kept.any() else 0.0


def erlang_c(offered: float, servers: int) -> float:
    """Share of arrivals that wait in an M/M/c queue; 1 where it is not stable.

    Args:
        offered: Arrival rate over service rate, erlang.
        servers: c.
    """
    if servers <= offered:
        return 1.0
    blocked = 1.0  # Erlang B by its recursion
    for number in range(1, servers + 1):
        blocked = offered * blocked / (number + offered * blocked)
    return blocked / (1 - (offered / servers) * (1 - blocked))


def servers_for(offered: float, wait_share: float) -> int:
    """Fewest servers at which no more than this share of arrivals waits.

    Args:
        offered: Arrival rate over service rate, erlang.
        wait_share: Share.
    """
    servers = max(1, math.floor(offered) + 1)
    while erlang_c(offered, servers) > wait_share:
        servers += 1
    return servers


class PassPolicy(EndpointAutoscaler, Configured[PassConfig]):
    """Scales for the forecast of the next window; where promises are broken meanwhile, for the queue."""

    name = "pass"

    @property
    def period_s(self) -> float | None:
        """Time between decisions."""
        return self.config.period_s

    def begin(self) -> None:
        """Forgets what was learned."""
        self._ensembles: dict[Endpoint, Ensemble] = {}
        self._window: dict[Endpoint, int] = {}

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """The forecast's number when a window begins; within it more, where SLOs are violated."""
        window = window_number(state.now_s, self.config.window_s)
        borne, present = self._borne(endpoint), len(endpoint.present)
        if not borne > 0:
            return present
        if self._window.get(endpoint.endpoint, -1) < window:
            self._window[endpoint.endpoint] = window
            return max(1, math.ceil(self._forecast_rps(state.now_s, endpoint) / borne))
        return max(present, self._reaction(endpoint, borne))

    def _borne(self, endpoint: EndpointState) -> float:
        history, window_s = endpoint.history, self.config.window_s
        instances = history.windows("mean_instances", window_s)
        there = (instances > 0).all(axis=1)  # of days before the episode, traffic alone is known
        return borne_rps(
            history.rebinned("requests", window_s),
            history.rebinned("violations", window_s),
            np.where(there, instances.mean(axis=1), 0.0),
            window_s,
            self.config.violation_share,
        )

    def _forecast_rps(self, now_s: float, endpoint: EndpointState) -> float:
        past = endpoint.history.rebinned("requests", self.config.window_s)
        ensemble = self._ensembles.setdefault(endpoint.endpoint, Ensemble(self.config))
        return ensemble.forecast(now_s, past) / self.config.window_s

    def _reaction(self, endpoint: EndpointState, borne: float) -> int:
        rows = endpoint.recent.rows
        seconds = len(rows) * endpoint.recent.bin_s
        requests = float(rows["requests"].sum())
        if not seconds or rows["violations"].sum() <= self.config.violation_share * requests:
            return 0
        return servers_for(requests / seconds / borne, self.config.wait_share)


class Ensemble:
    """Forecasters of one series, of which the one that did best lately speaks.

    Args:
        config: Which, and how the choice is made.
    """

    def __init__(self, config: PassConfig) -> None:
        self.config = config
        self._members: dict[str, SeriesForecaster] = {
            name: make_forecaster(name, config.window_s) for name in config.forecasters
        }
        self._fitted_s = -math.inf
        self._usable: set[str] = set()

    def forecast(self, now_s: float, past: FloatArray) -> float:
        """The next value but one, as the window after the one that begins now is scaled for.

        Args:
            now_s: When, to know whether it is time to fit.
            past: (T,), at least one value.
        """
        if now_s - self._fitted_s >= self.config.refit_s:
            self._fitted_s, self._usable = now_s, set()
        self._fit(past)
        if not self._usable:
            return float(past[-1])
        errors = {name: self._recent_error(self._members[name], past) for name in sorted(self._usable)}
        best = min(errors, key=errors.__getitem__)
        return float(self._members[best].forecast(past, 2)[-1])

    def _fit(self, past: FloatArray) -> None:
        for name, member in self._members.items():
            if name not in self._usable:
                try:
                    member.fit(past)
                except ValueError:
                    continue  # too little is known for this one yet
                self._usable.add(name)

    def _recent_error(self, member: SeriesForecaster, past: FloatArray) -> float:
        count = min(self.config.choose_windows, len(past) - 2)
        if count < 1:
            return 0.0
        starts = range(len(past) - count, len(past))
        predicted = np.array([member.forecast(past[: start - 1], 2)[-1] for start in starts])
        actual = past[-count:]
        return percentage_errors(predicted, actual).mean if actual.any() else 0.0
