"""How long serving a request takes, from the requests that ended (Magnus, the serving time estimator)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

NEIGHBOURS = 5
WINDOW = 1000


class ServingTimeEstimator:
    """Mean serving time of the k nearest requests that ended, each feature in units of its spread.

    Magnus regresses the serving time of a batch on its size, its longest prompt and its longest predicted response;
    before engines that batch continuously the same is asked of a request, its own lengths and the batch it joins.

    Args:
        neighbours: k. Source: ours.
        window: Requests that are remembered, the latest. Source: ours.
    """

    def __init__(self, neighbours: int = NEIGHBOURS, window: int = WINDOW) -> None:
        self._neighbours = neighbours
        self._ended: deque[tuple[float, ...]] = deque(maxlen=window)
        self._table: NDArray[np.float64] | None = None

    def add(self, features: Iterable[float], serving_s: float) -> None:
        """Remembers a request that ended.

        Args:
            features: Its prompt and predicted response, tokens, and the size of the batch that it joined.
            serving_s: From when it was sent until it ended, seconds.
        """
        self._ended.append((*features, serving_s))
        self._table = None

    def estimate(self, features: Iterable[float]) -> float | None:
        """Serving time, seconds; None until as many requests have ended as there are neighbours to be asked."""
        if len(self._ended) < self._neighbours:
            return None
        if self._table is None:
            self._table = np.array(self._ended)
        known, times = self._table[:, :-1], self._table[:, -1]
        spread = known.std(axis=0)
        scale = np.where(spread > 0.0, spread, 1.0)
        distance = (((known - np.array([*features])) / scale) ** 2).sum(axis=1)
        nearest = np.argsort(distance, kind="stable")[: self._neighbours]
        return float(times[nearest].mean())
