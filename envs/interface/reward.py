"""Reward terms of the interval between two decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.state import TOTALS

_REFUSED, _FAILED, _GOOD = (TOTALS.index(name) for name in ("refused", "failed", "good"))
_FIRST, _TTFT_MET = TOTALS.index("first_tokens"), TOTALS.index("ttft_met")
_FINISHED, _TPOT_MET = TOTALS.index("finished"), TOTALS.index("tpot_met")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a step."""

    reward: float
    terms: dict[str, float]  # before weighting, signed so that more is better
    dt_s: float  # to the next decision
    terminated: bool  # every request has been served, refused or lost
    truncated: bool  # the drain limit was reached
    refused: str  # why the action or a command was refused; "" if none was


@dataclass(frozen=True, slots=True)
class Interval:
    """Reward terms of one decision interval, before weighting."""

    latency: float  # growth of the sum over requests of TTFT / SLO + TPOT / SLO
    ttft_missed: NDArray[np.float64]  # (num_classes,) TTFT SLO misses
    tpot_missed: NDArray[np.float64]  # (num_classes,)
    good: float  # requests finished within both SLOs
    switched: int  # base engines that began a reconfiguration
    lost: float  # requests refused, failed or left unfinished
    refused: NDArray[np.float64]  # (num_classes,) requests refused
    classes: tuple[str, ...]

    def reward(self, objective: Objective) -> float:
        """The weighted sum."""
        missed, refused = (self.ttft_missed, self.tpot_missed), self.refused
        if objective.class_weights:
            factors = objective.factors(self.classes)
            missed, refused = (missed[0] * factors, missed[1] * factors), refused * factors
        return objective.scale * (
            -objective.latency * self.latency
            - objective.ttft_attainment * sum(missed[0].tolist())
            - objective.tpot_attainment * sum(missed[1].tolist())
            + objective.goodput * self.good
            - objective.switch * self.switched
            - objective.abandoned * self.lost
            - objective.refused * sum(refused.tolist())
        )

    def refusals(self) -> dict[str, float]:
        """Minus the requests refused, class by class: a term of its own where admission is a decision."""
        return {
            f"refused/{name}": -count for name, count in zip(self.classes, self.refused.tolist(), strict=True)
        }

    def terms(self, classes: tuple[str, ...]) -> dict[str, float]:
        """The terms by name, signed so that more is better."""
        terms = {"latency": -self.latency}
        for c, name in enumerate(classes):
            terms[f"ttft_attainment/{name}"] = -float(self.ttft_missed[c])
            terms[f"tpot_attainment/{name}"] = -float(self.tpot_missed[c])
        return terms | {"goodput": self.good, "switch": -float(self.switched), "abandoned": -self.lost}


@njit(cache=True)
def _difference(
    now: NDArray[np.float64],
    before: NDArray[np.float64],
    abandoned: NDArray[np.int64],
    missed: NDArray[np.float64],
) -> tuple[float, float]:
    """Fills `missed` (by class: SLOs of TTFT, of TPOT, and refusals) and returns good and lost.

    All since `before`, which becomes `now`.
    """
    good, lost = 0.0, 0.0
    for c in range(len(now)):
        delta = now[c, : before.shape[1]] - before[c]
        before[c] = now[c, : before.shape[1]]
        gone = delta[_REFUSED] + delta[_FAILED] + abandoned[c]
        missed[0, c] = delta[_FIRST] - delta[_TTFT_MET] + gone
        missed[1, c] = delta[_FINISHED] - delta[_TPOT_MET] + gone
        missed[2, c] = delta[_REFUSED]
        good += delta[_GOOD]
        lost += gone
    return good, lost


class RewardMeter:
    """Differences of the cluster's running totals.

    Args:
        classes: Names of the request classes.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes, self.num_classes = tuple(classes), len(classes)
        self.reset()

    def reset(self) -> None:
        """Resets all totals to zero."""
        self._totals = np.zeros((self.num_classes, len(TOTALS)))
        self._latency_cost = 0.0
        self._nobody = np.zeros(self.num_classes, np.int64)

    def fork(self) -> RewardMeter:
        """A copy with running totals of its own."""
        copy = RewardMeter.__new__(RewardMeter)
        copy.__dict__.update(self.__dict__)
        copy._totals = self._totals.copy()
        return copy

    def measure(
        self,
        totals: NDArray[np.float64],
        latency_cost: float,
        switched: int,
        abandoned: NDArray[np.int64] | None,
    ) -> Interval:
        """Returns the changes since the last call.

        Args:
            totals: (num_classes, len(TOTALS) or more), running.
            latency_cost: Running sum of TTFT / SLO + TPOT / SLO.
            switched: Base engines that began a reconfiguration.
            abandoned: (num_classes,), requests unfinished at the end of the episode; None: the episode continues.
        """
        missed = np.empty((3, self.num_classes))
        good, lost = _difference(
            totals, self._totals, self._nobody if abandoned is None else abandoned, missed
        )
        interval = Interval(
            latency=latency_cost - self._latency_cost,
            ttft_missed=missed[0],
            tpot_missed=missed[1],
            good=good,
            switched=switched,
            lost=lost,
            refused=missed[2],
            classes=self.classes,
        )
        self._latency_cost = latency_cost
        return interval
