"""The DP/TP reward: what the last decision interval cost, term by term."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.backend import TOTALS
from envs.objective import Objective

_COLUMN = {name: i for i, name in enumerate(TOTALS)}


class RewardMeter:
    """Differences of the cluster's running totals, weighted.

    Args:
        objective: Weights.
        classes: Names of the request classes.
    """

    def __init__(self, objective: Objective, classes: tuple[str, ...]) -> None:
        self.objective = objective
        self.classes = classes
        self.reset()

    def reset(self) -> None:
        """Starts from nothing."""
        self._totals = np.zeros((len(self.classes), len(TOTALS)))
        self._latency_cost = 0.0

    def fork(self) -> RewardMeter:
        """A copy with running totals of its own."""
        copy = RewardMeter.__new__(RewardMeter)
        copy.__dict__.update(self.__dict__)
        copy._totals = self._totals.copy()
        return copy

    def measure(
        self, totals: NDArray[np.float64], latency_cost: float, switched: int, abandoned: NDArray[np.int64]
    ) -> tuple[float, dict[str, float]]:
        """Reward since the last call, and its terms before weighting.

        Args:
            totals: (num_classes, len(TOTALS)), running.
            latency_cost: Running sum of TTFT / SLO + TPOT / SLO.
            switched: Base engines that began a reconfiguration.
            abandoned: (num_classes,), requests that the end of the episode leaves unfinished.
        """
        delta = totals - self._totals
        lost = delta[:, _COLUMN["refused"]] + delta[:, _COLUMN["failed"]] + abandoned
        ttft_missed = delta[:, _COLUMN["first_tokens"]] - delta[:, _COLUMN["ttft_met"]] + lost
        tpot_missed = delta[:, _COLUMN["finished"]] - delta[:, _COLUMN["tpot_met"]] + lost
        terms = {"latency": self._latency_cost - latency_cost}
        for c, name in enumerate(self.classes):
            terms[f"ttft_attainment/{name}"] = -float(ttft_missed[c])
            terms[f"tpot_attainment/{name}"] = -float(tpot_missed[c])
        terms["goodput"] = float(delta[:, _COLUMN["good"]].sum())
        terms["switch"] = -float(switched)
        terms["abandoned"] = -float(lost.sum())
        self._totals, self._latency_cost = totals, latency_cost
        return self._weigh(terms), terms

    def _weigh(self, terms: dict[str, float]) -> float:
        return self.objective.scale * sum(
            getattr(self.objective, name.partition("/")[0]) * value for name, value in terms.items()
        )
