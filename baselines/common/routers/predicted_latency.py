"""llm-d's routing by predicted latency, whose model is trained while requests are routed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import in_flight_counts, in_flight_sum
from serving_gym.baselines.common.routers.first_tokens import FirstTokens
from serving_gym.baselines.common.routers.headroom import HeadroomConfig, HeadroomRouter
from serving_gym.baselines.common.routers.learned_latency import FEATURES, LearnedLatency, Row
from serving_gym.baselines.common.routers.least_kv import kv_usage
from serving_gym.baselines.common.routers.llm_d_legacy import block_index, prefix_blocks
from serving_gym.baselines.policy import Action, tunable
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


@dataclass(frozen=True)
class PredictedLatencyConfig(HeadroomConfig):
    """Constants of `PredictedLatencyPolicy`; the others are in `HeadroomConfig`.

    Attributes:
        retrain_s: Between two models. Source: llm-d-latency-predictor's `deploy/dual-server-deployment.yaml`: trained
            every second, and fetched by the servers that predict every 10 s.
        fresh_share: Of the observations that are kept: so much must be new for a new model, which saves computing.
            Source: ours.
        min_samples: Observations from which there is a model. Source: ditto, `LATENCY_MIN_SAMPLES_FOR_RETRAIN` (100).
        samples_each: Observations that a stratum keeps. Source: its training server,
            `LATENCY_MAX_TRAINING_DATA_SIZE_PER_BUCKET` (500).
        quantile: Of latency that is predicted; 0: the mean. Source: ditto, `LATENCY_QUANTILE_ALPHA` (0.9).
        tpot_tokens: Tokens of an answer over which its TPOT is measured. Source: ours.
        tell_kinds: Whether the model is told the kind of engine. llm-d's documentation assumes that all are alike;
            its feature `pod_type` is there for roles, and is used for the kind here.
    """

    retrain_s: float = 10.0
    fresh_share: float = 0.2
    min_samples: int = 100
    samples_each: int = 500
    quantile: float = tunable(0.9, 0.3, 0.98)
    tpot_tokens: int = 20
    tell_kinds: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "retrain_s")
        check_not_negative(self, "fresh_share")
        check_at_least(self, 1, "min_samples", "samples_each")
        check_at_least(self, 2, "tpot_tokens")
        if not 0 <= self.quantile < 1:
            raise ValueError(f"quantile must lie in [0, 1), got {self.quantile}")


class PredictedLatencyPolicy(HeadroomRouter[PredictedLatencyConfig]):
    """Engines that would keep the SLO by latencies that are learned from past requests.

    llm-d-router of 2026 with `predicted-latency-producer` (`streamingMode: true`) and the sidecars of
    llm-d-latency-predictor: for each engine that can take the request its state and the request's are features
    (`FEATURES`), TTFT and TPOT are predicted by gradient-boosted trees, and filters, scorer and picker follow
    (`HeadroomRouter`). What was observed of the requests trains the next models. Until there are any, a draw with the
    scorer's fallback as weights: the mean of free KV cache, queue (1 for none, 0 for the longest) and share of the
    prompt held, in hundredths; and no filters, which skip where there is no prediction.

    Departures: LightGBM, which the training server offers too, for its default XGBoost; running requests are the
    router's own count of those in flight, as in its version of autumn 2026; one model for all loads instead of one for
    engines with and one for engines without a queue (`is_queued` is a feature); TPOT is the mean over an answer's first
    tokens, once a request, with the features of its dispatch; training takes no time.
    """

    name = "predicted_latency"
    config_class = PredictedLatencyConfig

    def begin(self) -> None:
        """Nothing has been sent anywhere and nothing is learned."""
        config = self.config
        self._index = block_index(self.engines)
        self._model = LearnedLatency(
            config.retrain_s,
            config.fresh_share,
            config.min_samples,
            config.samples_each,
            config.quantile,
            seed=0,
        )
        self._first_tokens: FirstTokens[Row] = FirstTokens()
        self._decoding: dict[int, Row] = {}  # requests whose TPOT is still to be measured
        self._kinds = kinds_of(self.engines) if config.tell_kinds else np.zeros(len(self.engines))

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """Learns, predicts, filters, scores and draws."""
        self._observe(state)
        self._model.train(state.now_s)
        blocks = prefix_blocks(request)
        held = self._index.match(blocks)
        share = held / max(len(blocks), 1)
        rows = self._rows(state, request, share)
        if self._model.ready:
            place = self.by_headroom(state, request, share, self._model.predict(rows))
        else:
            able = np.flatnonzero(state.can_take)
            place = int(able[self.draw(_fallback(state, share)[able])])
        self._index.insert(blocks, place)
        self._first_tokens.sent(request.index, place, state.now_s, rows[place])
        return place

    def _rows(
        self, state: RoutingState, request: RoutedRequest, share: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """(P, features)."""
        flights, engines = state.in_flight, state.engines
        rows = np.empty((len(engines), len(FEATURES)))
        columns: dict[str, Any] = {
            "kv_cache_percentage": kv_usage(state),
            "input_token_length": request.input_tokens,
            "num_request_waiting": engines["num_waiting"],
            "num_request_running": in_flight_counts(state),
            "is_queued": engines["num_waiting"] > 0,
            "prefill_tokens_in_flight": in_flight_sum(
                state, np.where(flights["first_token_s"] < 0, flights["input_tokens"], 0)
            ),
            "prefix_cache_score": share,
            "effective_input_tokens": request.input_tokens * (1.0 - share),
            "pod_type": self._kinds,
        }
        for i, name in enumerate(FEATURES):
            rows[:, i] = columns[name]
        return rows

    def _observe(self, state: RoutingState) -> None:
        """Takes in what has come back since the last decision."""
        for first in self._first_tokens.collect(state):
            self._model.ttft.add(first.note, first.ttft_s)
            self._decoding[first.index] = first.note
        if not self._decoding:
            return
        flights = state.in_flight
        long = flights[flights["generated_tokens"] >= self.config.tpot_tokens]
        for row in long:
            features = self._decoding.pop(int(row["index"]), None)
            if features is not None:
                # the token under way is not there yet: on average half of it has passed
                tokens = float(row["generated_tokens"]) - 0.5
                self._model.tpot.add(features, (state.now_s - float(row["first_token_s"])) / tokens)
        for index in self._decoding.keys() - set(flights["index"].tolist()):
            del self._decoding[index]


def kinds_of(engines: NominalEngines) -> NDArray[np.float64]:
    """(P,) a number for each kind of engine: same model, GPU and number of them."""
    kinds = list(zip(engines.models, engines.gpus, engines.num_gpus.tolist(), strict=True))
    known = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
    return np.array([known[kind] for kind in kinds], np.float64)


def _fallback(state: RoutingState, share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores without predictions, (P,), at least a hundredth.

    llm-d draws uniformly where all scores are 0; the hundredth does so here.
    """
    waiting = state.engines["num_waiting"]
    longest = waiting[state.can_take].max()
    queue = (longest - waiting) / longest if longest > 0 else np.ones(len(waiting))
    score = (np.clip(1.0 - kv_usage(state), 0.0, 1.0) + np.clip(queue, 0.0, 1.0) + share) / 3
    return np.asarray(np.maximum(np.round(100 * score), 1.0) / 100)
