"""The DP/TP reward: what the last decision interval cost, term by term."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.backend import TOTALS
from envs.objective import Objective

_COLUMN = {name: i for i, name in enumerate(TOTALS)}


_LOST = (_COLUMN["refused"], _COLUMN["failed"])


@dataclass(frozen=True, slots=True)
class Interval:
    """What one decision interval brought, before weighting."""

    latency: float  # growth of the sum over requests of TTFT / SLO + TPOT / SLO
    ttft_missed: NDArray[np.float64]  # (num_classes,) first tokens later than promised, or never
    tpot_missed: NDArray[np.float64]  # (num_classes,)
    good: float  # requests finished within both promises
    switched: int  # base engines that began a reconfiguration
    lost: float  # requests refused, failed or left unfinished

    def reward(self, objective: Objective) -> float:
        """The weighted sum."""
        return objective.scale * (
            -objective.latency * self.latency
            - objective.ttft_attainment * float(self.ttft_missed.sum())
            - objective.tpot_attainment * float(self.tpot_missed.sum())
            + objective.goodput * self.good
            - objective.switch * self.switched
            - objective.abandoned * self.lost
        )

    def terms(self, classes: tuple[str, ...]) -> dict[str, float]:
        """The terms by name, signed so that more is better."""
        terms = {"latency": -self.latency}
        for c, name in enumerate(classes):
            terms[f"ttft_attainment/{name}"] = -float(self.ttft_missed[c])
            terms[f"tpot_attainment/{name}"] = -float(self.tpot_missed[c])
        return terms | {"goodput": self.good, "switch": -float(self.switched), "abandoned": -self.lost}


class RewardMeter:
    """Differences of the cluster's running totals.

    Args:
        num_classes: Request classes.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.reset()

    def reset(self) -> None:
        """Starts from nothing."""
        self._totals = np.zeros((self.num_classes, len(TOTALS)))
        self._latency_cost = 0.0

    def fork(self) -> RewardMeter:
        """A copy with running totals of its own."""
        copy = RewardMeter.__new__(RewardMeter)
        copy.__dict__.update(self.__dict__)
        return copy

    def measure(
        self,
        totals: NDArray[np.float64],
        latency_cost: float,
        switched: int,
        abandoned: NDArray[np.int64] | None,
    ) -> Interval:
        """What has happened since the last call.

        Args:
            totals: (num_classes, len(TOTALS)), running; kept, so the caller must not change it.
            latency_cost: Running sum of TTFT / SLO + TPOT / SLO.
            switched: Base engines that began a reconfiguration.
            abandoned: (num_classes,), requests that the end of the episode leaves unfinished; None: it goes on.
        """
        delta = totals - self._totals
        lost = delta[:, _LOST[0]] + delta[:, _LOST[1]]
        if abandoned is not None:
            lost = lost + abandoned
        interval = Interval(
            latency=latency_cost - self._latency_cost,
            ttft_missed=delta[:, _COLUMN["first_tokens"]] - delta[:, _COLUMN["ttft_met"]] + lost,
            tpot_missed=delta[:, _COLUMN["finished"]] - delta[:, _COLUMN["tpot_met"]] + lost,
            good=float(delta[:, _COLUMN["good"]].sum()),
            switched=switched,
            lost=float(lost.sum()),
        )
        self._totals, self._latency_cost = totals, latency_cost
        return interval
