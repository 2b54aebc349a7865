"""Gates: what a policy must not buy its return with. The tail, the promises, one class of requests, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runners.aggregate import Scored, column, column_of_some, names_of
from runners.statistics import FloatArray, interquartile_mean

# Non-inferiority to the best heuristic.
TTFT_P99_RATIO = 1.05
SLO_ATTAINMENT_LOSS = 0.002
WORST_CLASS_RATIO = 1.05

_ROUNDING = 1e-9  # of differences of shares, so that what is lost to the digit is not too much


def gates_of(
    ours: Sequence[Scored], theirs: Sequence[Scored], versus: str, strata: Sequence[str] | None = None
) -> dict[str, Any]:
    """Whether a policy is no worse than another where it must not be.

    Figures are interquartile means over the blocks of a workload. Over several workloads ratios are averaged
    geometrically and losses arithmetically, each as often as it has blocks, so that none is left out because its
    seconds are many or few.

    Args:
        ours: Its episodes.
        theirs: Those of the other, on the same arrivals in the same order.
        versus: Name of the other.
        strata: Workload of each; None: there is one.
    """

    def lost(episodes: Sequence[Scored]) -> float:
        return float(sum(column(episodes, key).sum() for key in ("refused", "failed", "unfinished")))

    here = _Beside(ours, theirs, strata)
    classes = [key for key in names_of(ours) if key.startswith("slowdown/")]
    slowdowns = sorted(
        (here.ratio(key) for key in classes), key=lambda gate: np.nan_to_num(gate["value"], nan=np.inf)
    )
    worst = slowdowns[-1] if slowdowns else {"value": 1.0}
    gates: dict[str, Any] = {
        "ttft_p99_ratio": _gate(here.ratio("ttft_p99_s", of_all=True), TTFT_P99_RATIO),
        "slo_attainment_loss": _gate(here.loss("slo_attainment"), SLO_ATTAINMENT_LOSS),
        "worst_class_slowdown_ratio": _gate(worst, WORST_CLASS_RATIO),
        "extra_requests_lost": _gate({"value": lost(ours) - lost(theirs)}, 0.0),
    }
    return {"versus": versus, "holds": all(gate["holds"] for gate in gates.values()), **gates}


@dataclass(frozen=True, eq=False)
class _Beside:
    """A policy beside another on the same blocks, workload by workload.

    Attributes:
        ours: Its episodes.
        theirs: Those of the other.
        strata: Workload of each; None: there is one.
    """

    ours: Sequence[Scored]
    theirs: Sequence[Scored]
    strata: Sequence[str] | None

    def ratio(self, metric: str, of_all: bool = False) -> dict[str, Any]:
        """Ours over theirs.

        Args:
            metric: Of the episodes.
            of_all: Whether every episode must have it; otherwise those count that do.
        """
        shares, found = self._each(metric, _ratio, of_all)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.array(list(found.values())))
            value = float(np.exp(shares @ logs)) if found else 1.0
        return self._said(value, found)

    def loss(self, metric: str) -> dict[str, Any]:
        """Theirs less ours."""
        shares, found = self._each(metric, lambda ours, theirs: theirs - ours, of_all=True)
        return self._said(float(shares @ np.array(list(found.values()))), found)

    def _each(
        self, metric: str, compared: Callable[[float, float], float], of_all: bool
    ) -> tuple[FloatArray, dict[str, float]]:
        """(W,) shares of the blocks, and the two interquartile means compared, of each workload that has the metric."""
        read = column if of_all else column_of_some
        ours, theirs = read(self.ours, metric), read(self.theirs, metric)
        labels = np.array(self.strata if self.strata is not None else [""] * len(ours))
        found, blocks = {}, []
        for label in dict.fromkeys(labels.tolist()):
            rows = labels == label
            if not of_all:
                rows &= ~np.isnan(theirs)
            if rows.any():
                means = (float(interquartile_mean(values[rows])) for values in (ours, theirs))
                found[label] = compared(*means)
                blocks.append(rows.sum())
        return np.array(blocks) / max(sum(blocks), 1), found

    def _said(self, value: float, found: Mapping[str, float]) -> dict[str, Any]:
        return {"value": value} if self.strata is None else {"value": value, "by_workload": dict(found)}


def _gate(found: Mapping[str, Any], limit: float) -> dict[str, Any]:
    return {**found, "limit": limit, "holds": bool(found["value"] <= limit + _ROUNDING)}


def _ratio(ours: float, theirs: float) -> float:
    """Ours over theirs; 1 where both are infinite, zero or undefined."""
    if ours == theirs or (math.isnan(ours) and math.isnan(theirs)):
        return 1.0
    return ours / theirs if theirs else math.inf
