"""llm-d's latency observation: TTFT by the load an engine has, as it was measured."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router, in_flight_counts
from serving_gym.baselines.common.routers.first_tokens import FirstTokens
from serving_gym.baselines.common.routers.max_score import MaxScorePicker
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

_FLOOR_PERCENTILE = 10.0
_BAND = 10.0  # percentiles to either side, over which requests in flight are averaged


@dataclass(frozen=True)
class LatencyObservationConfig(Constants):
    """Constants of `LatencyObservationPolicy`; sources: READMEs of the two plugins, with their defaults.

    Attributes:
        explore_probability: Of sending a request to an engine that is not known yet. `explorationRate` (0.1).
        min_gap: Requests in flight by which the two loads must differ for the lower one to count. `minInflightGap` (2).
        round_s: Step to which predictions are rounded; 0: none. `roundTTFTStep` (0).
        interval_s: Between two computations of the curve. `intervalDuration` (1 s).
        max_age_s: Of an observation. `maxObservationAge` (3 min).
        max_requests: Observations of an engine that count. `maxRequests` (100).
        min_requests: Observations from which an engine is known. `minRequests` (10).
        low_percentile: Of TTFT, at low load. `lowPercentile` (25).
        typical_percentile: Of TTFT, at typical load. `typicalPercentile` (50).
        bucket_s: For each of which a floor is kept. `bucketDuration` (1 min).
        bucket_history: Floors that are kept, the lowest. `bucketHistorySize` (1000).
    """

    explore_probability: float = tunable(0.1, 0.0, 0.5)
    min_gap: float = tunable(2.0, 0.1, 20.0, log=True)
    round_s: float = 0.0
    interval_s: float = 1.0
    max_age_s: float = tunable(180.0, 5.0, 600.0, log=True)
    max_requests: int = 100
    min_requests: int = 10
    low_percentile: float = 25.0
    typical_percentile: float = 50.0
    bucket_s: float = 60.0
    bucket_history: int = 1000

    def __post_init__(self) -> None:
        check_within(self, "[0, 1]", "explore_probability")
        check_not_negative(self, "round_s")
        check_positive(self, "min_gap", "interval_s", "max_age_s", "bucket_s")
        check_at_least(self, 1, "max_requests", "min_requests")
        check_at_least(self, 2, "bucket_history")
        if not 0 < self.low_percentile < self.typical_percentile < 100:
            raise ValueError(
                f"low_percentile and typical_percentile must ascend between 0 and 100, got {self.low_percentile} "
                f"and {self.typical_percentile}"
            )


@dataclass
class Curve:
    """TTFT of an engine by the requests in flight there, as it was measured lately.

    Attributes:
        config: Windows and percentiles.
        floor_s: TTFT without load; 0: not known.
        low: Requests in flight, and TTFT in seconds, at low load.
        typical: At typical load.
        trusted: Whether there are enough recent observations.
    """

    config: LatencyObservationConfig
    floor_s: float = 0.0
    low: tuple[float, float] = (0.0, 0.0)
    typical: tuple[float, float] = (0.0, 0.0)
    trusted: bool = False
    _recent: deque[tuple[float, float, float]] = field(
        default_factory=deque
    )  # when, TTFT, requests in flight
    _floors: list[float] = field(default_factory=list)
    _bucket: list[float] = field(default_factory=list)
    _bucket_s: float = 0.0  # when it began
    _observed: int = 0

    def add(self, now_s: float, ttft_s: float, in_flight: float) -> None:
        """An observation."""
        self._recent.append((now_s, ttft_s, in_flight))
        self._bucket.append(ttft_s)
        self._observed += 1

    def compute(self, now_s: float) -> None:
        """The anchors, by what is recent."""
        config = self.config
        while self._recent and (
            self._recent[0][0] < now_s - config.max_age_s or len(self._recent) > config.max_requests
        ):
            self._recent.popleft()
        self._keep_floor(now_s)
        rows = np.array(self._recent).reshape(-1, 3)
        floors = self._floors if self._floors else rows[:, 1]
        known = self._observed >= config.min_requests and len(floors) > 0
        self.floor_s = float(np.percentile(floors, _FLOOR_PERCENTILE)) if known else 0.0
        self.trusted = False
        if self.floor_s > 0 and len(rows) >= config.min_requests:
            ordered = rows[np.argsort(rows[:, 1], kind="stable")]
            self.low = self._anchor(ordered, config.low_percentile)
            self.typical = self._anchor(ordered, config.typical_percentile)
            self.trusted = self.typical[0] > 0 and self.typical[1] > self.floor_s

    def predict(self, in_flight: float) -> float:
        """TTFT with so many requests in flight, seconds; only of a curve that is known."""
        (low, low_s), (typical, typical_s), floor_s = self.low, self.typical, self.floor_s
        if not self.trusted:
            return floor_s
        admissible = typical - low >= self.config.min_gap and typical_s > low_s > floor_s and low > 0
        if not admissible:
            predicted = floor_s + in_flight * (typical_s - floor_s) / typical
        elif in_flight < low:
            predicted = floor_s + in_flight * (low_s - floor_s) / low
        else:
            predicted = low_s + (in_flight - low) * (typical_s - low_s) / (typical - low)
        return max(predicted, floor_s)

    def _keep_floor(self, now_s: float) -> None:
        """At the end of a bucket its floor enters the history, from which the largest goes."""
        if now_s - self._bucket_s < self.config.bucket_s:
            return
        if self._bucket:
            self._floors.append(float(np.percentile(self._bucket, _FLOOR_PERCENTILE)))
            self._floors = sorted(self._floors)[: self.config.bucket_history]
        self._bucket, self._bucket_s = [], now_s

    @staticmethod
    def _anchor(ordered: NDArray[np.float64], percentile: float) -> tuple[float, float]:
        """Mean requests in flight around a percentile of TTFT, and the percentile."""
        last = len(ordered) - 1
        first = int((percentile - _BAND) / 100 * last)
        beyond = int(np.ceil((percentile + _BAND) / 100 * last)) + 1
        return float(ordered[first:beyond, 2].mean()), float(np.percentile(ordered[:, 1], percentile))


class LatencyObservationPolicy(Router, Configured[LatencyObservationConfig]):
    """The lowest TTFT by each engine's own curve of TTFT over requests in flight.

    llm-d-router's `latency-observer-producer-hub` and `latency-observation-scorer-hub` (llm-d-router#2371, August 2026)
    with `max-score-picker`. An engine's curve has three anchors: its floor without load, a low load and a typical one.
    An engine with too few observations is predicted at the lowest of the others; it is sent the request with
    `explore_probability`, else not, where there is an engine that is known well enough. See `Curve`.
    """

    name = "latency_observation"

    def begin(self) -> None:
        """Nothing has been observed."""
        self._curves = [Curve(self.config) for _ in range(len(self.engines))]
        self._first_tokens: FirstTokens[int] = FirstTokens()
        self._picker = MaxScorePicker()
        self._computed_s = -np.inf

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The highest score."""
        for seen in self._first_tokens.collect(state):
            self._curves[seen.place].add(seen.at_s, seen.ttft_s, seen.note)
        if state.now_s - self._computed_s >= self.config.interval_s:
            self._computed_s = state.now_s
            for curve in self._curves:
                curve.compute(state.now_s)
        in_flight = in_flight_counts(state)
        able = np.flatnonzero(state.can_take)
        place = int(able[self._picker.pick(self._scores(able, in_flight))])
        self._first_tokens.sent(request.index, place, state.now_s, int(in_flight[place]))
        return place

    def _scores(self, able: NDArray[np.intp], in_flight: NDArray[np.int64]) -> NDArray[np.float64]:
        """(N,), 0 to 1."""
        curves = [self._curves[place] for place in able]
        known = np.array([curve.floor_s > 0 for curve in curves])
        if not known.any():
            return np.ones(len(able))
        predicted = np.array(
            [curve.predict(float(in_flight[place])) for curve, place in zip(curves, able, strict=True)]
        )
        if self.config.round_s > 0:
            predicted = np.round(predicted / self.config.round_s) * self.config.round_s
        lowest, highest = predicted[known].min(), predicted[known].max()
        predicted = np.where(known, predicted, lowest)
        span = highest - lowest
        scores = (highest - predicted) / span if span > 0 else np.ones(len(able))
        trusted = np.array([curve.trusted for curve in curves])
        if self.config.explore_probability > 0 and not trusted.all():
            probes = self.rng.random(len(able)) < self.config.explore_probability
            instead = np.where(probes, 1.0, 0.0 if trusted.any() else scores)
            scores = np.where(trusted, scores, instead)
        return np.asarray(scores, np.float64)
