"""TTFT and TPOT by gradient-boosted trees that are trained on what was observed, while requests are routed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.routers.boosted_trees import BoostedTrees, fit_trees

# Of an engine when a request is to be sent there, as llm-d-latency-predictor's training server has them.
FEATURES = (
    "kv_cache_percentage",  # 0 to 1
    "input_token_length",
    "num_request_waiting",
    "num_request_running",
    "is_queued",
    "prefill_tokens_in_flight",
    "prefix_cache_score",  # share of the prompt that the engine is thought to hold
    "effective_input_tokens",  # prompt times the rest
    "pod_type",  # kind of engine
)
_KV, _WAITING, _PREFIX = (
    FEATURES.index(n) for n in ("kv_cache_percentage", "num_request_waiting", "prefix_cache_score")
)
_TPOT_COLUMNS = [
    i for i, n in enumerate(FEATURES) if n not in ("prefix_cache_score", "effective_input_tokens")
]
_KV_BUCKETS, _PREFIX_BUCKETS = 20, 4
_QUEUES = np.array([0, 2, 5, 10])  # most waiting requests of the first four of five buckets

Row = NDArray[np.float64]
Bucket = tuple[int, int, int]


@dataclass
class Observations:
    """Rows with what was observed, the last of each stratum.

    llm-d-latency-predictor stratifies by waiting requests (0, 1-2, 3-5, 6-10, more), KV usage (steps of 5 %) and share
    of the prompt held (quarters), so that rare conditions are not forgotten.

    Attributes:
        each: Rows that a stratum holds at most.
    """

    each: int
    added: int = 0
    _buckets: dict[Bucket, deque[tuple[Row, float]]] = field(default_factory=dict)

    def add(self, row: Row, observed: float) -> None:
        """A row, and what was observed of it."""
        bucket = (
            int(np.searchsorted(_QUEUES, row[_WAITING])),
            min(int(row[_KV] * _KV_BUCKETS), _KV_BUCKETS - 1),
            min(int(row[_PREFIX] * _PREFIX_BUCKETS), _PREFIX_BUCKETS - 1),
        )
        if bucket not in self._buckets:
            self._buckets[bucket] = deque(maxlen=self.each)
        self._buckets[bucket].append((row, observed))
        self.added += 1

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self._buckets.values())

    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(N, features) rows and (N,) what was observed."""
        pairs = [pair for bucket in self._buckets.values() for pair in bucket]
        return np.array([row for row, _ in pairs]), np.array([observed for _, observed in pairs])


class LearnedLatency:
    """Two models, for TTFT and for TPOT, that are trained anew now and then.

    Args:
        retrain_s: Between two trainings.
        fresh_share: Of the observations that are kept: so much must be new.
        min_samples: Observations of each from which there is a model.
        each: Observations that a stratum holds at most.
        quantile: That is predicted; 0: the mean.
        seed: Of the training.

    Attributes:
        models_made: Trainings so far.
    """

    def __init__(
        self,
        retrain_s: float,
        fresh_share: float,
        min_samples: int,
        each: int,
        quantile: float,
        seed: int,
    ) -> None:
        self._retrain_s, self._fresh_share, self._min_samples = retrain_s, fresh_share, min_samples
        self._quantile, self._seed = quantile, seed
        self.ttft, self.tpot = Observations(each), Observations(each)
        self._models: tuple[BoostedTrees, BoostedTrees] | None = None
        self._trained_s = -np.inf
        self._trained_on = 0
        self.models_made = 0

    @property
    def ready(self) -> bool:
        """Whether there are models."""
        return self._models is not None

    def train(self, now_s: float) -> None:
        """Trains anew where it is time, there is enough, and enough of it is new."""
        added = self.ttft.added + self.tpot.added
        fresh = added - self._trained_on >= self._fresh_share * (len(self.ttft) + len(self.tpot))
        enough = min(len(self.ttft), len(self.tpot)) >= self._min_samples
        if now_s - self._trained_s < self._retrain_s or not (enough and fresh):
            return
        self._trained_s, self._trained_on = now_s, added
        ttft_rows, ttft_s = self.ttft.arrays()
        tpot_rows, tpot_s = self.tpot.arrays()
        self._models = (
            fit_trees(ttft_rows, ttft_s * 1e3, self._quantile, self._seed),
            fit_trees(tpot_rows[:, _TPOT_COLUMNS], tpot_s * 1e3, self._quantile, self._seed),
        )
        self.models_made += 1

    def predict(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """(2, N) TTFT and TPOT, seconds, of (N, features); there are models."""
        assert self._models is not None
        ttft, tpot = self._models
        columns = np.ascontiguousarray(rows[:, _TPOT_COLUMNS])
        return np.maximum(np.stack([ttft.predict(rows), tpot.predict(columns)]) * 1e-3, 0.0)
