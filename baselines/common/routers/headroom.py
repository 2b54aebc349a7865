"""llm-d's filters, scorer and picker by predicted latency and its distance from the SLO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router, in_flight_counts
from serving_gym.baselines.common.routers.prefix_affinity import with_prefix
from serving_gym.baselines.policy import Configured, Constants, tunable, tunable_choice
from serving_gym.calibration.fields import check_not_negative, check_within
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

STRATEGIES = ("least", "most")
_STEPS = 100  # scores are hundredths
_EPSILON = 1e-9  # range below which values are equal


@dataclass(frozen=True)
class HeadroomConfig(Constants):
    """Constants of `HeadroomRouter`, llm-d's defaults.

    Attributes:
        strict_affinity: Share of the prompt that an engine must hold to be preferred to all others, 0 to 1.
        loose_affinity: The same among the engines of one tier.
        max_ttft_penalty_s: Neither holds where it costs more than so many seconds of TTFT; 0: whatever it costs.
        explore_probability: Of the tier that misses the SLO, where both have engines, 0 to 1.
        ttft_weight: Of TTFT in the score.
        tpot_weight: Of TPOT in the score.
        strategy: least: the least headroom first, which keeps the others free; most: the most.
    """

    strict_affinity: float = tunable(0.99, 0.0, 1.0)
    loose_affinity: float = tunable(0.8, 0.0, 1.0)
    max_ttft_penalty_s: float = tunable(18.0, 0.0, 60.0)
    explore_probability: float = tunable(0.01, 0.0, 0.2)
    ttft_weight: float = tunable(0.8, 0.0, 1.0)
    tpot_weight: float = tunable(0.2, 0.0, 1.0)
    strategy: str = tunable_choice("least", "most")

    def __post_init__(self) -> None:
        check_within(self, "[0, 1]", "strict_affinity", "loose_affinity", "explore_probability")
        check_not_negative(self, "max_ttft_penalty_s", "ttft_weight", "tpot_weight")
        check_choice("strategy", self.strategy, STRATEGIES)


ConfigT = TypeVar("ConfigT", bound=HeadroomConfig)


class HeadroomRouter(Router, Configured[ConfigT]):
    """Engines that would keep the SLO, by how little or how much they would have to spare.

    llm-d-router of 2026, its profile "predicted-latency-slo", in this order:

    1. `prefix-cache-affinity-filter`: engines that hold at least `strict_affinity` of the prompt, if there are any and
       unless the best of them would take over `max_ttft_penalty_s` longer to the first token than the best of the rest;
    2. `slo-headroom-tier-filter`: of those that would keep both promises and those that would miss one, the former;
       with `explore_probability` the latter;
    3. the filter of step 1 with `loose_affinity`;
    4. `latency-scorer`: over those that keep both promises, or else the idle, or else those that miss TPOT only,
       TTFT only, or both, the first group that has an engine: headroom |SLO - predicted| between the group's
       smallest (0) and largest (1), weighted over TTFT and TPOT (one that is equal for all does not count), turned
       round for `least` (always where a promise would be missed), in hundredths from 0.01 to 1; all others 0;
    5. `weighted-random-picker`: a draw with the scores as weights.

    Departures: the promise of the first token is the request's own deadline, so that the time it was held counts;
    nothing is refused (`latency-slo-admitter`). A subclass has `choose`, which predicts and calls `by_headroom`.
    """

    config: ConfigT

    def by_headroom(
        self,
        state: RoutingState,
        request: RoutedRequest,
        share: NDArray[np.float64],
        latency_s: NDArray[np.float64],
    ) -> int:
        """Filters, scores and draws.

        Args:
            state: As the router observes it; at least one place can take the request.
            request: The request.
            share: (P,) of the prompt that each engine is thought to hold.
            latency_s: (2, P) predicted TTFT and TPOT, seconds.
        """
        config = self.config
        ttft_s, tpot_s = latency_s
        spare_ttft = request.deadline_s - state.now_s - ttft_s
        spare_tpot = self.spec.slos[request.class_id].tpot_s - tpot_s
        # which promises would be missed, from light to severe: 0 none, 1 TPOT, 2 TTFT, 3 both
        missed = 2 * (spare_ttft < 0) + (spare_tpot < 0)

        able = np.flatnonzero(state.can_take)
        able = with_prefix(able, share, config.strict_affinity, ttft_s, config.max_ttft_penalty_s)
        able = self._of_one_tier(able, missed)
        able = with_prefix(able, share, config.loose_affinity, ttft_s, config.max_ttft_penalty_s)
        able, keeps_slo = self._of_one_group(able, missed, state)
        least_first = config.strategy == "least" or not keeps_slo
        scores = headroom_scores(
            spare_ttft[able], spare_tpot[able], config.ttft_weight, config.tpot_weight, least_first
        )
        return int(able[self.draw(scores)])

    def _of_one_tier(self, able: NDArray[np.intp], missed: NDArray[np.int64]) -> NDArray[np.intp]:
        """Those that keep both promises, or now and then those that do not."""
        misses = missed[able] > 0
        if not misses.any() or misses.all():
            return able
        keeps = ~misses
        return able[~keeps] if self.rng.random() < self.config.explore_probability else able[keeps]

    def _of_one_group(
        self, able: NDArray[np.intp], missed: NDArray[np.int64], state: RoutingState
    ) -> tuple[NDArray[np.intp], bool]:
        """Those that are scored at all, and whether they keep both promises."""
        severity = missed[able]
        if not severity.any():
            return able, True
        least = severity.min()
        if least == 0:
            return able[severity == 0], True
        idle = able[in_flight_counts(state)[able] == 0]
        return (idle if len(idle) else able[severity == least]), False

    def draw(self, scores: NDArray[np.float64]) -> int:
        """An engine, with probability in proportion to its score."""
        bounds = np.cumsum(scores)
        return int(np.searchsorted(bounds, self.rng.random() * bounds[-1], side="right"))


@njit(cache=True)
def headroom_scores(
    spare_ttft_s: NDArray[np.float64],
    spare_tpot_s: NDArray[np.float64],
    ttft_weight: float,
    tpot_weight: float,
    least_first: bool,
) -> NDArray[np.float64]:
    """Scores by headroom of a group of engines, (N,), 0.01 to 1."""
    ttft_least, ttft_span = _range(spare_ttft_s)
    tpot_least, tpot_span = _range(spare_tpot_s)
    if ttft_span <= _EPSILON < tpot_span:
        ttft_weight, tpot_weight = 0.0, 1.0
    elif tpot_span <= _EPSILON < ttft_span or ttft_weight + tpot_weight <= 0:
        ttft_weight, tpot_weight = 1.0, 0.0
    total = ttft_weight + tpot_weight
    scores = np.empty(len(spare_ttft_s))
    for i in range(len(scores)):
        ttft = (abs(spare_ttft_s[i]) - ttft_least) / ttft_span if ttft_span > _EPSILON else 0.5
        tpot = (abs(spare_tpot_s[i]) - tpot_least) / tpot_span if tpot_span > _EPSILON else 0.5
        spare = (ttft_weight * ttft + tpot_weight * tpot) / total
        step = np.floor((1.0 - spare if least_first else spare) * _STEPS) + 1.0
        scores[i] = min(step / _STEPS, 1.0)
    return scores


@njit(cache=True)
def _range(values: NDArray[np.float64]) -> tuple[float, float]:
    """The smallest of the values' magnitudes, and how much larger the largest is."""
    least, most = np.inf, 0.0
    for value in values:
        least, most = min(least, abs(value)), max(most, abs(value))
    return least, most - least
