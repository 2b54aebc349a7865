"""Constants of SageServe's scaling and where they come from."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.baselines.common.forecasting.registry import FORECASTERS
from serving_gym.baselines.policy import Constants, tunable, tunable_choice
from serving_gym.calibration.fields import check_not_negative, check_positive, check_within
from serving_gym.calibration.lookup import check_choice

STRATEGIES = ("LT-I", "LT-U", "LT-UA")
SCALE_IN = ("below_ratio", "immediate")
ORACLE = "oracle"  # the forecaster that knows the expected traffic
_RATIOS = ("out_above_ratio", "in_below_ratio", "epsilon")
_POSITIVE = ("plan_period_s", "window_s", "refit_s", "observe_s", "period_s")
_NOT_NEGATIVE = ("beta", "cooldown_s", "last_s", "over_factor", "under_factor")


@dataclass(frozen=True)
class ReactiveConfig(Constants):
    """Constants of reactive scaling.

    Attributes:
        out_above_ratio: Effective memory utilisation above which an instance is added. Source: section 4 (70 %); the
            authors' public code has 50 %.
        in_below_ratio: ... below which one is donated. Source: section 4 (30 %); the public code has 25 %.
        cooldown_s: Between two changes at an endpoint. Source: section 4 (15 s).
        siloed: Whether interactive and non-interactive requests have instances of their own. Source: section 4.
        period_s: Between two looks at the utilisation, seconds. Source: ours, the cool-down of section 4.
    """

    out_above_ratio: float = tunable(0.7, 0.5, 0.95)
    in_below_ratio: float = tunable(0.3, 0.05, 0.5)
    cooldown_s: float = tunable(15.0, 1.0, 600.0, log=True)
    siloed: bool = False
    period_s: float = 15.0

    def __post_init__(self) -> None:
        _check_thresholds(self.in_below_ratio, self.out_above_ratio)
        check_not_negative(self, "cooldown_s")
        check_positive(self, "period_s")


@dataclass(frozen=True)
class SageServeScalingConfig(Constants):
    """Constants of SageServe's forecast-aware scaling.

    Attributes:
        strategy: LT-I, LT-U or LT-UA. Source: section 6.4.
        forecaster: Name of a forecaster of `baselines.common.forecasting.registry`, or "oracle": the expected traffic
            to come, for a clairvoyant reference. Source: section 6.3, ARIMA.
        plan_period_s: Between two plans. Source: section 6.3, hourly.
        window_s: Windows w of the hour that is planned. Source: section 5 reprovisions "e.g., every 15 mins"; that
            windows are as long is ours.
        refit_s: Between two fits of the forecaster; between them it is only told what came. Source: ours, a day.
        beta: Share of the past hour's non-interactive load that is added to the forecast. Source: section 6.3 (10 %).
        epsilon: Least share of its own peak that a region serves itself. Source: section 5 allows (0, 1] and names no
            number: ours.
        out_above_ratio: Utilisation above which LT-U and LT-UA add instances. Source: section 6.4 (70 %); the authors'
            public code has 50 %.
        in_below_ratio: ... below which they take some away. Source: section 6.4 (30 %); the public code has 25 %.
        scale_in: When LT-U and LT-UA take instances away down to the plan: "below_ratio", while utilisation is below
            `in_below_ratio`, as section 6.4 says, or "immediate", as soon as the plan is known.
        cooldown_s: Between two such changes at an endpoint. Source: section 4 has 15 s for reactive scaling; section
            6.4 names none for this.
        last_s: Last part of the hour in which LT-UA compares with the forecast. Source: section 6.4 (20 min).
        over_factor: Observed over predicted rate from which it goes on adding. Source: section 6.4 (5).
        under_factor: ... up to which it goes on taking away. Source: section 6.4 (0.5).
        observe_s: Over which the observed rate is taken. Source: the public code, a minute.
        period_s: Between two looks at the utilisation, seconds. Source: ours, the cool-down of section 4.
    """

    strategy: str = tunable_choice("LT-UA", "LT-U", "LT-I")
    forecaster: str = tunable_choice("arima", "last_value", "moving_mean")
    plan_period_s: float = 3600.0
    window_s: float = 900.0
    refit_s: float = 86_400.0
    beta: float = tunable(0.1, 0.0, 1.0)
    epsilon: float = tunable(0.8, 0.3, 1.0)
    out_above_ratio: float = tunable(0.7, 0.5, 0.95)
    in_below_ratio: float = tunable(0.3, 0.05, 0.5)
    scale_in: str = tunable_choice("below_ratio", "immediate")
    cooldown_s: float = tunable(15.0, 1.0, 900.0, log=True)
    last_s: float = 1200.0
    over_factor: float = tunable(5.0, 1.1, 10.0, log=True)
    under_factor: float = tunable(0.5, 0.1, 0.9)
    observe_s: float = 60.0
    period_s: float = 15.0

    def __post_init__(self) -> None:
        check_choice("strategy", self.strategy, STRATEGIES)
        check_choice("scale_in", self.scale_in, SCALE_IN)
        check_choice("forecaster", self.forecaster, (*FORECASTERS, ORACLE))
        _check_thresholds(self.in_below_ratio, self.out_above_ratio)
        check_within(self, "(0, 1]", "epsilon")
        check_positive(self, *_POSITIVE)
        check_not_negative(self, *_NOT_NEGATIVE)


def _check_thresholds(low: float, high: float) -> None:
    if not 0 <= low < high:
        raise ValueError(f"in_below_ratio must lie between 0 and out_above_ratio ({high}), got {low}")
