"""Models that answer as llm-d's latency predictor: learned online, or from the engines' profile."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.routers.latency_model import LatencyModel
from serving_gym.baselines.common.routers.learned_latency import FEATURES, LearnedLatency
from serving_gym.baselines.common.routers.predicted_latency import PredictedLatencyConfig
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.state import IN_FLIGHT_DTYPE
from serving_gym.runners.serving.openai_requests import DEFAULT_OUTPUT_TOKENS

Row = Mapping[str, Any]
POD_TYPES = ("", "prefill", "decode")
_MOST_REQUESTS = 4096  # of one engine that the profile is asked with


class ServedLatency(ABC):
    """A model behind the protocol; latencies are milliseconds.

    Attributes:
        quantile: That is predicted; 0: the mean.
        trained_at: When the present model was made, Unix seconds; None: there is none, or it is not learned.
    """

    quantile = 0.0
    trained_at: float | None = None

    @property
    def samples(self) -> tuple[int, int]:
        """Observations that are kept: of TTFT, of TPOT."""
        return 0, 0

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether there is a model."""

    @abstractmethod
    def predict(self, rows: Sequence[Row]) -> NDArray[np.float64]:
        """(2, N) TTFT and TPOT of N requests."""

    @abstractmethod
    def add(self, entries: Sequence[Row]) -> None:
        """Takes observations."""

    async def train(self) -> bool:
        """Makes a new model where it is time; returns whether it has."""
        return False

    def flush(self) -> tuple[int, int]:
        """Forgets observations; returns how many there were."""
        return 0, 0


class LearnedServedLatency(ServedLatency):
    """Gradient-boosted trees, trained on what is observed, as `baselines.common.routers.predicted_latency` does.

    Of the contract's features `num_tokens_generated` and `decode_tokens_in_flight` are not used.

    Args:
        config: Constants of the policy `predicted_latency`.
    """

    def __init__(self, config: PredictedLatencyConfig) -> None:
        self.config, self.quantile = config, config.quantile
        self._waiting: list[Row] = []  # observations that came during a training
        self._training = False
        self._begin()

    def _begin(self) -> None:
        config = self.config
        self._model = LearnedLatency(
            config.retrain_s,
            config.fresh_share,
            config.min_samples,
            config.samples_each,
            config.quantile,
            seed=0,
        )

    @property
    def ready(self) -> bool:
        """Whether there is a model."""
        return self._model.ready

    @property
    def samples(self) -> tuple[int, int]:
        """Observations that are kept: of TTFT, of TPOT."""
        return len(self._model.ttft), len(self._model.tpot)

    def predict(self, rows: Sequence[Row]) -> NDArray[np.float64]:
        """(2, N) TTFT and TPOT of N requests."""
        return 1e3 * self._model.predict(_features(rows))

    def add(self, entries: Sequence[Row]) -> None:
        """Takes observations; a latency of 0 was not observed."""
        if self._training:
            self._waiting += entries
            return
        for features, entry in zip(_features(entries), entries, strict=True):
            for observed, model in (
                ("actual_ttft_ms", self._model.ttft),
                ("actual_tpot_ms", self._model.tpot),
            ):
                if entry[observed] > 0:
                    model.add(features, 1e-3 * entry[observed])

    async def train(self) -> bool:
        """Makes a new model, in a thread, where it is time, there is enough, and enough of it is new."""
        trained, self._training = self._model.models_made, True
        try:
            await asyncio.to_thread(self._model.train, time.monotonic())
        finally:
            self._training = False
        waiting, self._waiting = self._waiting, []
        self.add(waiting)
        if self._model.models_made == trained:
            return False
        self.trained_at = time.time()
        return True

    def flush(self) -> tuple[int, int]:
        """Forgets observations and model; returns how many observations there were."""
        kept = self.samples
        self.trained_at = None
        self._waiting = []
        self._begin()
        return kept


class ProfileServedLatency(ServedLatency):
    """The calibrated profile of the fleet's first engine; nothing is learned.

    The engine's running requests share the tokens in its KV cache, its waiting ones the tokens to prefill. Answers are
    taken to have 256 tokens, which counts where the engine is full.

    Args:
        engines: The fleet.
    """

    def __init__(self, engines: NominalEngines) -> None:
        one = {name: getattr(engines, name)[:1] for name in engines.__dataclass_fields__}
        self._capacity_tokens = int(engines.kv_capacity_tokens[0])
        self._model = LatencyModel(NominalEngines(**one))

    @property
    def ready(self) -> bool:
        """There is a model always."""
        return True

    def add(self, entries: Sequence[Row]) -> None:
        """Observations change nothing."""

    def predict(self, rows: Sequence[Row]) -> NDArray[np.float64]:
        """(2, N) TTFT and TPOT of N requests."""
        return np.concatenate([1e3 * self._of_one(row) for row in rows], axis=1)

    def _of_one(self, row: Row) -> NDArray[np.float64]:
        running = min(row["num_request_running"], _MOST_REQUESTS)
        waiting = min(row["num_request_waiting"], _MOST_REQUESTS)
        flights = np.zeros(running + waiting, IN_FLIGHT_DTYPE)
        flights["predicted_tokens"] = DEFAULT_OUTPUT_TOKENS
        flights["first_token_s"][running:] = -1.0
        context = round(row["kv_cache_percentage"] * self._capacity_tokens)
        flights["input_tokens"][:running] = context // max(running, 1)
        flights["input_tokens"][running:] = row["prefill_tokens_in_flight"] // max(waiting, 1)
        cached = np.array([row["prefix_cache_score"] * row["input_token_length"]], np.int64)
        return self._model.predict_from(flights, row["input_token_length"], DEFAULT_OUTPUT_TOKENS, cached)


def _features(rows: Sequence[Row]) -> NDArray[np.float64]:
    """(N, FEATURES) of the learned model."""
    table = np.empty((len(rows), len(FEATURES)))
    for number, row in enumerate(rows):
        share = row["prefix_cache_score"]
        more = {
            "is_queued": row["num_request_waiting"] > 0,
            "effective_input_tokens": row["input_token_length"] * (1.0 - share),
            "pod_type": POD_TYPES.index(row["pod_type"]),
        }
        table[number] = [more[name] if name in more else row[name] for name in FEATURES]
    return table
