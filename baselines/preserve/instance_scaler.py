"""PreServe's proactive instance scaler (section 4.3.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.autoscaler import EndpointAutoscaler, bounded
from serving_gym.baselines.policy import Configured, Constants, tunable, tunable_choice
from serving_gym.baselines.preserve.look_ahead import EXTENSION_RATIO, anticipated_load
from serving_gym.baselines.preserve.workload_predictor import (
    PERIOD_S,
    WorkloadPredictorConfig,
    predictors,
    window_number,
)
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.envs.autoscaling.state import AutoscalingState, EndpointState
from serving_gym.envs.interface.scaling import Endpoint


@dataclass(frozen=True)
class PreServeScalingConfig(Constants):
    """Constants of `PreServeScalingPolicy`.

    Attributes:
        predictor: Of the workload predictor.
        lookahead_iterations: l, iterations that are anticipated. Source: section 4.3.1 (100).
        extension_ratio: Share of its present length by which the response of a late request is extended. Source:
            section 4.3.1.
        overload_usage: KV usage above which an iteration is overloaded. Source: section 4.3.2 (95 %).
        overload_share: An instance is potentially overloaded if more than this share of the next l iterations is.
            Source: section 4.3.2 (10 %).
        scale_in_usage: T_f, KV usage below which all instances must stay for a scale-in. Source: section 4.3.2 (30 %).
        scale_in_floor: Whether a scale-in within a window leaves what the forecasts asked for, of this window and of
            the next. Source: ours; the text corrects the forecast in both directions and calls the scale-in a means
            "to prevent excessive resource provisioning".
        scale_in_hold_s: How long all instances must have stayed below T_f before it. Source: ours; the text has
            "consistently below ... throughout the next l iterations".
        unprefilled_in_map: Whether requests that were sent and are not prefilled are in the map. Source: ours; the
            events of section 4.3.1 add them when their prefill is complete.
        answer_once: Whether an instance that stays overloaded is answered only once; else as many instances start as
            are overloaded, for as long as they are. Source: ours; the text has "one potentially overloaded instance,
            one additional instance".
        period_s: Between two looks, seconds; None: as often as the environment asks. Source: ours; see `PERIOD_S`.
    """

    predictor: WorkloadPredictorConfig = field(default_factory=WorkloadPredictorConfig)
    lookahead_iterations: int = 100
    extension_ratio: float = EXTENSION_RATIO
    overload_usage: float = tunable(0.95, 0.7, 1.5)
    overload_share: float = tunable(0.1, 0.0, 1.0)
    scale_in_usage: float = tunable(0.3, 0.05, 0.7)
    scale_in_floor: bool = tunable_choice(True, False)
    scale_in_hold_s: float = 0.0
    unprefilled_in_map: bool = tunable_choice(True, False)
    answer_once: bool = tunable_choice(False, True)
    period_s: float | None = PERIOD_S

    def __post_init__(self) -> None:
        check_at_least(self, 1, "lookahead_iterations")
        check_not_negative(self, "extension_ratio", "scale_in_hold_s")
        check_positive(self, "overload_usage", "scale_in_usage", "period_s")
        check_within(self, "[0, 1]", "overload_share")


@dataclass(frozen=True, eq=False)
class Anticipated:
    """What is anticipated of an endpoint's running instances.

    Attributes:
        places: (I,) which instances.
        peak_usage: (I,) max U', largest KV usage over the next l iterations, share of the capacity.
        overloaded: (I,) whether each is potentially overloaded.
    """

    places: NDArray[np.int64]
    peak_usage: NDArray[np.float64]
    overloaded: NDArray[np.bool_]


def anticipate(
    state: AutoscalingState, endpoint: EndpointState, config: PreServeScalingConfig
) -> Anticipated:
    """Projects the load of the endpoint's running instances from the requests in flight.

    Args:
        state: With the requests in flight.
        endpoint: Whose instances.
        config: Look-ahead and what counts as overloaded.
    """
    rows = endpoint.running
    places = rows["place"].astype(np.int64)
    own = state.in_flight[np.isin(state.in_flight["place"], places)].copy()
    order = np.argsort(places)
    own["place"] = order[np.searchsorted(places[order], own["place"])]  # numbered as the rows are
    capacity = np.maximum(rows["kv_capacity_tokens"], 1).astype(np.float64)
    load = anticipated_load(
        own,
        config.lookahead_iterations,
        config.extension_ratio,
        0,
        0,
        np.zeros(len(places)),  # all that an instance holds is above an ideal of nothing
        config.overload_usage * capacity,
        config.unprefilled_in_map,
        False,
    )
    return Anticipated(places, load.overflow_tokens / capacity, load.overloaded > config.overload_share)


def instances_to_isolate(present: int, peak_usage: NDArray[np.float64], scale_in_usage: float) -> int:
    """N_c - sum max(U') / T_f where every peak is below T_f, 0 otherwise; what is needed is rounded up.

    Args:
        present: N_c.
        peak_usage: (I,) max U' of each instance.
        scale_in_usage: T_f.
    """
    if not len(peak_usage) or (peak_usage >= scale_in_usage).any():
        return 0
    return max(0, present - math.ceil(float(peak_usage.sum()) / scale_in_usage - 1e-9))


class PreServeScalingPolicy(EndpointAutoscaler, Configured[PreServeScalingConfig]):
    """Two tiers: the window's forecast sets the number of instances, anticipated loads correct it within the window.

    Instances that go are isolated from routing and finish what they have. Where the text leaves a choice:

    * "One potentially overloaded instance, one additional instance": there are as many starting instances as overloaded
      ones, until none is overloaded. With `answer_once` an instance that stays overloaded is answered once; when it
      has recovered it can be answered again.
    * The scale-in within a window takes back what was added within windows, not what the forecast asked for. It waits
      while an instance starts: its load is still to come.
    * Requests that wait for their prefill are in the map: else an instance whose queue grows looks idle.
    * What the predictor has not learned yet (no capability seen) changes nothing.

    `preserve_scaling_literal` has the other value of each.
    """

    name = "preserve_scaling"

    @property
    def period_s(self) -> float | None:
        """Time between decisions."""
        return self.config.period_s

    def begin(self) -> None:
        """Forgets what was learned and what was answered."""
        self._predictors = predictors(self.spec, self.config.predictor)
        self._window: dict[Endpoint, int] = {}
        self._asked: dict[Endpoint, tuple[int, int]] = {}  # forecasts of the present window and of the next
        self._scaled_in: dict[Endpoint, int] = {}
        self._low_since_s: dict[Endpoint, float] = {}
        self._answered: dict[Endpoint, set[int]] = {}

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """The window's number when it begins; corrections after."""
        window, present = window_number(state.now_s, self.config.predictor.window_s), len(endpoint.present)
        if self._window.get(endpoint.endpoint, -1) < window:
            self._window[endpoint.endpoint] = window
            return self._forecast(endpoint, present)
        return present + self._correct(state, endpoint, window)

    def _forecast(self, endpoint: EndpointState, present: int) -> int:
        predicted = self._predictors[endpoint.endpoint].predict(endpoint).instances
        if predicted is None:
            return present
        self._asked[endpoint.endpoint] = (self._asked.get(endpoint.endpoint, (0, 0))[1], predicted)
        return predicted

    def _correct(self, state: AutoscalingState, endpoint: EndpointState, window: int) -> int:
        anticipated = anticipate(state, endpoint, self.config)
        overloaded = {int(place) for place in anticipated.places[anticipated.overloaded]}
        answered = self._answered.get(endpoint.endpoint, set())
        self._answered[endpoint.endpoint] = overloaded
        if overloaded:
            once = len(overloaded - answered)
            return once if self.config.answer_once else max(0, len(overloaded) - len(endpoint.starting))
        if self._scaled_in.get(endpoint.endpoint, -1) == window or len(endpoint.starting):
            return 0
        fewer = self._surplus(state.now_s, endpoint, anticipated.peak_usage)
        if fewer > 0:
            self._scaled_in[endpoint.endpoint] = window
        return -fewer

    def _surplus(self, now_s: float, endpoint: EndpointState, peak_usage: NDArray[np.float64]) -> int:
        """Instances to isolate: none before usage has been low for long enough, none below the floor."""
        present = len(endpoint.present)
        fewer = instances_to_isolate(present, peak_usage, self.config.scale_in_usage)
        if fewer <= 0:
            self._low_since_s.pop(endpoint.endpoint, None)
            return 0
        since_s = self._low_since_s.setdefault(endpoint.endpoint, now_s)
        if now_s - since_s < self.config.scale_in_hold_s:
            return 0
        floor = max(self._asked.get(endpoint.endpoint, (0, 0))) if self.config.scale_in_floor else 0
        return max(0, present - max(bounded(self.spec, present - fewer), floor))
