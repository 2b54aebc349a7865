"""The throughput mode of Dynamo's planner: forecasts of the next interval, and what an engine serves by its profile.

As its design document computes. Forecast are requests, and their mean prompt and answer. Correction factors compare
what was measured with what the profile says: TTFT with that of the present prompts, ITL with that of the present load.
Engines are mixed, each prefills and decodes; a request keeps one busy for

    prompt x min(1, prefill correction) / prefill throughput at prompt
    + answer / decode throughput within ITL target / decode correction

seconds, and there are as many engines as requests/s times these (ours: Dynamo fits a regression to engine metrics for
it). The decode throughput is that at a context of prompt + answer / 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.autoscaler import EndpointAutoscaler
from serving_gym.baselines.common.forecasting.registry import FORECASTERS, make_forecaster
from serving_gym.baselines.common.forecasting.series import FloatArray, SeriesForecaster
from serving_gym.baselines.policy import Constants
from serving_gym.calibration.fields import check_at_least, check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.autoscaling.state import AutoscalingSpec, AutoscalingState, EndpointState
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.scaling import Endpoint

_PROMPTS: FloatArray = np.exp2(np.arange(5, 17, dtype=np.float64))  # tokens: the grids of calibrated engines
_CONTEXTS: FloatArray = np.exp2(np.arange(5, 17, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class EngineProfile:
    """What one engine does by measurement, on grids that are interpolated between.

    Attributes:
        prompt_tokens: (A,) lengths of prompts, growing.
        ttft_s: (A,) time to the first token of one such prompt.
        prefill_tps: (A,) prompt tokens/s.
        context_tokens: (B,) mean contexts, growing.
        itl_s: (B, K) inter-token latency by context at growing load.
        decode_tps: (B, K) answer tokens/s there, growing with load.
    """

    prompt_tokens: FloatArray
    ttft_s: FloatArray
    prefill_tps: FloatArray
    context_tokens: FloatArray
    itl_s: FloatArray
    decode_tps: FloatArray

    def __post_init__(self) -> None:
        if not self.prompt_tokens.shape == self.ttft_s.shape == self.prefill_tps.shape:
            raise ValueError("prompt_tokens, ttft_s and prefill_tps must be equally long")
        if self.itl_s.shape != self.decode_tps.shape or len(self.itl_s) != len(self.context_tokens):
            raise ValueError("itl_s and decode_tps must have a row for each of context_tokens")
        if (np.diff(self.prompt_tokens) <= 0).any() or (np.diff(self.context_tokens) <= 0).any():
            raise ValueError("prompt_tokens and context_tokens must grow")
        if (np.diff(self.decode_tps, axis=1) < 0).any() or (np.diff(self.itl_s, axis=1) < 0).any():
            raise ValueError("itl_s and decode_tps must not fall with load")

    def ttft(self, prompt_tokens: float) -> float:
        """Time to the first token, seconds."""
        return float(np.interp(prompt_tokens, self.prompt_tokens, self.ttft_s))

    def prefill(self, prompt_tokens: float) -> float:
        """Prompt tokens/s of an engine."""
        return float(np.interp(prompt_tokens, self.prompt_tokens, self.prefill_tps))

    def decode(self, itl_s: float, context_tokens: float) -> float:
        """Most answer tokens/s of an engine within an inter-token latency; at the least load where none is within."""
        latency, throughput = self._at(context_tokens)
        return float(np.interp(itl_s, latency, throughput))

    def itl(self, tps: float, context_tokens: float) -> float:
        """Inter-token latency at a load, seconds."""
        latency, throughput = self._at(context_tokens)
        return float(np.interp(tps, throughput, latency))

    def _at(self, context_tokens: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(K,) latencies and throughputs at a context."""
        grid = self.context_tokens
        place = float(np.interp(context_tokens, grid, np.arange(len(grid))))
        low = min(int(place), len(grid) - 1)
        high, share = min(low + 1, len(grid) - 1), place - low
        return (
            (1 - share) * self.itl_s[low] + share * self.itl_s[high],
            (1 - share) * self.decode_tps[low] + share * self.decode_tps[high],
        )


def profile_of(engines: NominalEngines, model: str) -> EngineProfile:
    """What an engine does by its calibrated profile, in place of measurements on a grid.

    Args:
        engines: With the first engine of the model.
        model: Its name.
    """
    place = engines.models.index(model)
    decode_s = engines.decode_s[place, 1 : int(engines.max_num_seqs[place]) + 1]
    ttft_s = np.maximum(_PROMPTS * engines.prefill_s_per_token[place], decode_s[0])
    fits = np.maximum(engines.kv_capacity_tokens[place] // _CONTEXTS, 1).astype(np.int64)
    batch = np.minimum(np.arange(1, len(decode_s) + 1), fits[:, None])
    itl_s = decode_s[batch - 1] + engines.kv_s_per_token[place] * batch * _CONTEXTS[:, None]
    return EngineProfile(
        _PROMPTS,
        ttft_s,
        _PROMPTS / ttft_s,
        _CONTEXTS,
        np.maximum.accumulate(itl_s, axis=1),
        np.maximum.accumulate(batch / itl_s, axis=1),
    )


@dataclass(frozen=True)
class ThroughputPlannerConfig(Constants):
    """Constants of `ThroughputPlannerPolicy`.

    Attributes:
        forecaster: Name of a forecaster. Source: Dynamo offers constant (here `last_value`), arima, kalman and prophet;
            ARIMA is its default.
        interval_s: Between two decisions. Source: Dynamo (180 s).
        refit_s: Between two fits of the forecasters. Source: ours, a day.
        correct: Whether measured latencies correct the profile. Source: Dynamo.
        fewest_points: Intervals that must be known before the forecaster is used; before, all goes on as it is. Source:
            ours.
    """

    forecaster: str = "arima"
    interval_s: float = 180.0
    refit_s: float = 86_400.0
    correct: bool = True
    fewest_points: int = 20

    def __post_init__(self) -> None:
        check_choice("forecaster", self.forecaster, FORECASTERS)
        check_positive(self, "interval_s", "refit_s")
        check_at_least(self, 1, "fewest_points")


@dataclass(frozen=True)
class Load:
    """What an interval brings.

    Attributes:
        requests: How many.
        prompt_tokens: Mean prompt.
        answer_tokens: Mean answer.
    """

    requests: float
    prompt_tokens: float
    answer_tokens: float


def corrections(
    profile: EngineProfile, load: Load, interval_s: float, ttft_s: float, itl_s: float, decoding: int
) -> tuple[float, float]:
    """Measured over expected TTFT and ITL; 1 where nothing was measured.

    Args:
        profile: Of an engine.
        load: Of the last interval.
        interval_s: Its length.
        ttft_s: Mean TTFT that was measured; NaN: none.
        itl_s: Mean ITL that was measured; NaN: none.
        decoding: Engines that decode.
    """
    each = load.requests * load.answer_tokens / interval_s / max(decoding, 1)
    context = load.prompt_tokens + load.answer_tokens / 2
    prefill = ttft_s / profile.ttft(load.prompt_tokens)
    decode = itl_s / profile.itl(each, context)
    return (prefill if prefill > 0 else 1.0), (decode if decode > 0 else 1.0)


def mixed_engines(
    profile: EngineProfile, load: Load, interval_s: float, itl_s: float, correction: tuple[float, float]
) -> int:
    """Engines that do both."""
    context = load.prompt_tokens + load.answer_tokens / 2
    prompt_s = load.prompt_tokens * min(1.0, correction[0]) / profile.prefill(load.prompt_tokens)
    answer_s = load.answer_tokens / profile.decode(itl_s / correction[1], context)
    return max(1, math.ceil(load.requests / interval_s * (prompt_s + answer_s)))


class ThroughputPlannerPolicy(EndpointAutoscaler):
    """Dynamo's planner in throughput mode, for mixed engines.

    Attributes:
        profiles: Of an engine of each model.

    Args:
        config: Its constants.
        profiles: Of an engine of each model; None: those of the calibrated engines of the setting.
    """

    name = "dynamo_throughput"

    def __init__(
        self,
        config: ThroughputPlannerConfig | None = None,
        profiles: Mapping[str, EngineProfile] | None = None,
    ) -> None:
        self.config = config or ThroughputPlannerConfig()
        self._given = profiles
        self.profiles: Mapping[str, EngineProfile] = profiles or {}

    def reset(self, spec: PolicySpec | AutoscalingSpec, seed: int) -> None:
        """Forgets everything and takes the profiles of the setting's engines, where none were given."""
        if self._given is None and isinstance(spec, PolicySpec) and spec.engines is not None:
            engines = spec.engines
            self.profiles = {model: profile_of(engines, model) for model in dict.fromkeys(engines.models)}
        super().reset(spec, seed)

    @property
    def period_s(self) -> float:
        """Time between decisions."""
        return self.config.interval_s

    def begin(self) -> None:
        """Forgets forecasters.

        Raises:
            ValueError: A model has no profile.
        """
        for model in self.spec.models:
            if model not in self.profiles:
                raise ValueError(f"profiles lacks {model}; it has {', '.join(self.profiles) or 'none'}")
        self._planned_s: dict[Endpoint, float] = {}
        self._fitted_s: dict[Endpoint, float] = {}
        self._forecasters: dict[Endpoint, tuple[SeriesForecaster, ...]] = {}

    def desired(self, state: AutoscalingState, endpoint: EndpointState) -> int:
        """Engines for the next interval, said when one begins; in between, and before any traffic, what there is."""
        present, key = len(endpoint.present), endpoint.endpoint
        if state.now_s - self._planned_s.get(key, -math.inf) < self.config.interval_s:
            return present
        series = self._series(endpoint)
        if not len(series[0]) or not series[0].any():
            return present
        self._planned_s[key] = state.now_s
        interval_s, profile = self.config.interval_s, self.profiles[key.model]
        slo = next(slo for slo, own in zip(self.spec.slos, self.spec.interactive, strict=True) if own)
        correction = (1.0, 1.0)
        if self.config.correct:
            last = Load(*(float(values[-1]) for values in series))
            ttft_s, itl_s = self._measured(endpoint)
            correction = corrections(profile, last, interval_s, ttft_s, itl_s, len(endpoint.running))
        load = Load(*self._forecast(state.now_s, endpoint, series))
        return mixed_engines(profile, load, interval_s, slo.tpot_s, correction)

    def _series(self, endpoint: EndpointState) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Requests, mean prompt and mean answer by interval; means of an interval without requests are those before."""
        interval_s = self.config.interval_s
        requests, prompts, answers = (
            endpoint.history.rebinned(name, interval_s)
            for name in ("requests", "input_tokens", "output_tokens")
        )
        return requests, _means(prompts, requests), _means(answers, requests)

    def _measured(self, endpoint: EndpointState) -> tuple[float, float]:
        """Mean TTFT and ITL of the last interval; NaN where there were none."""
        rows = endpoint.history.last(self.config.interval_s)
        first, finished = float(rows["first_tokens"].sum()), float(rows["finished"].sum())
        return (
            float(rows["ttft_sum_s"].sum()) / first if first else math.nan,
            float(rows["tpot_sum_s"].sum()) / finished if finished else math.nan,
        )

    def _forecast(
        self, now_s: float, endpoint: EndpointState, series: tuple[FloatArray, ...]
    ) -> tuple[float, ...]:
        if len(series[0]) < self.config.fewest_points:
            return tuple(float(values[-1]) for values in series)
        key = endpoint.endpoint
        if key not in self._forecasters:
            self._forecasters[key] = tuple(
                make_forecaster(self.config.forecaster, self.config.interval_s) for _ in series
            )
        members = self._forecasters[key]
        if now_s - self._fitted_s.get(key, -math.inf) >= self.config.refit_s:
            for member, values in zip(members, series, strict=True):
                member.fit(values)
            self._fitted_s[key] = now_s
        return tuple(float(m.forecast(values, 1)[0]) for m, values in zip(members, series, strict=True))


def _means(sums: FloatArray, counts: FloatArray) -> FloatArray:
    """(T,), sums over counts; where there is no count, the mean before it, at the start the first one there is."""
    known = np.flatnonzero(counts > 0)
    if not len(known):
        return np.zeros(len(sums))
    before = np.searchsorted(known, np.arange(len(sums)), side="right") - 1
    at = known[np.maximum(before, 0)]
    return np.asarray(sums[at] / counts[at], np.float64)
