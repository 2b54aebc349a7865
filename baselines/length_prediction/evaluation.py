"""How good a predictor is: PreServe, section 5.2.2 and Table 2."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.workload.seeding import stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serving_gym.baselines.length_prediction.predictor import LengthPredictor

_TIMED_PREDICTIONS = 100


def random_split(rows: int, test_share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on and rows to test on, each in ascending order.

    Args:
        rows: to divide, at least 2.
        test_share: above 0 and below 1; both parts get at least one row.
        seed: which division.

    Raises:
        ValueError: too few rows.
    """
    if rows < 2:
        raise ValueError(f"training and testing need at least 2 conversations with an answer, got {rows}")
    order = stream(seed, "length prediction", "split").permutation(rows)
    tested = min(max(round(test_share * rows), 1), rows - 1)
    return np.sort(order[tested:]), np.sort(order[:tested])


def milliseconds_per_prediction(predictor: LengthPredictor[Any], prompts: Sequence[str]) -> float:
    """Mean wall-clock time of predicting one prompt alone, as a router would, tokenisation included."""
    timed = prompts[:_TIMED_PREDICTIONS]
    predictor.predict(timed[:1])
    begun = time.perf_counter()
    for prompt in timed:
        predictor.predict([prompt])
    return 1e3 * (time.perf_counter() - begun) / len(timed)
