"""Gates: what a policy must not buy its return with. The tail, the promises, one class of requests, refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runners.aggregate import Scored, column, column_of_some, names_of
from runners.statistics import FloatArray, bootstrap_interval, mean, over_strata

# Non-inferiority to the best heuristic.
TTFT_P99_RATIO = 1.05
SLO_ATTAINMENT_LOSS = 0.002
WORST_CLASS_RATIO = 1.05

_LEAST_RATIO = 0.1
_ROUNDING = 1e-9  # of differences of shares, so that what is lost to the digit is not too much


def gates_of(
    ours: Sequence[Scored], theirs: Sequence[Scored], versus: str, strata: Sequence[str] | None = None
) -> dict[str, Any]:
    """Whether a policy is no worse than another where it must not be.

    Block by block: of ratios the geometric mean over all blocks, of losses the mean, so that none is left out because
    its seconds are many or few, or because it is rare. Each has its 95 % interval, and is `certain` where all of that
    is within the limit; each has its figure in every workload, and those beyond the limit by themselves are named
    (`beyond_in`).

    Args:
        ours: Its episodes.
        theirs: Those of the other, on the same arrivals in the same order.
        versus: Name of the other.
        strata: Workload of each; None: there is one.
    """
    here = _Beside(ours, theirs, strata)
    classes = [key for key in names_of(ours) if key.startswith("slowdown/")]
    slowdowns = [here.ratio(key, WORST_CLASS_RATIO) for key in classes]
    gates: dict[str, Any] = {
        "ttft_p99_ratio": here.ratio("ttft_p99_s", TTFT_P99_RATIO, of_all=True),
        "slo_attainment_loss": here.loss("slo_attainment", SLO_ATTAINMENT_LOSS),
        "worst_class_slowdown_ratio": max(
            slowdowns,
            key=lambda gate: np.nan_to_num(gate["value"], nan=np.inf),
            default=_gate(1.0, WORST_CLASS_RATIO),
        ),
        "extra_requests_lost": here.lost(),
    }
    return {
        "versus": versus,
        "holds": all(gate["holds"] for gate in gates.values()),
        "certain": all(gate["certain"] for gate in gates.values()),
        "beyond_in": sorted({label for gate in gates.values() for label in gate.get("beyond_in", ())}),
        **gates,
    }


@dataclass(frozen=True, eq=False)
class _Beside:
    """A policy beside another on the same blocks.

    Attributes:
        ours: Its episodes.
        theirs: Those of the other.
        strata: Workload of each; None: there is one.
    """

    ours: Sequence[Scored]
    theirs: Sequence[Scored]
    strata: Sequence[str] | None

    def ratio(self, metric: str, limit: float, of_all: bool = False) -> dict[str, Any]:
        """Ours over theirs.

        Args:
            metric: Of the episodes.
            limit: What it may be.
            of_all: Whether every episode must have it; otherwise those count in which the other has it.
        """
        read = column if of_all else column_of_some
        ours, theirs = read(self.ours, metric), read(self.theirs, metric)
        some = np.full(len(ours), True) if of_all else ~np.isnan(theirs)
        logs = np.log(_ratios(ours[some], theirs[some]))
        groups = self._by_workload(logs, some)
        if not groups:
            return self._said(1.0, (1.0, 1.0), {}, limit)
        value, interval = _exp(over_strata(list(groups.values()), mean)), _interval(groups)
        each = {label: _exp(mean(group)) for label, group in groups.items()}
        return self._said(value, (_exp(interval[0]), _exp(interval[1])), each, limit)

    def loss(self, metric: str, limit: float) -> dict[str, Any]:
        """Theirs less ours."""
        groups = self._by_workload(column(self.theirs, metric) - column(self.ours, metric))
        each = {label: float(mean(group)) for label, group in groups.items()}
        return self._said(float(over_strata(list(groups.values()), mean)), _interval(groups), each, limit)

    def lost(self) -> dict[str, Any]:
        """Requests that ours lost and the other did not, in the workload where they are most."""

        def of(episodes: Sequence[Scored]) -> FloatArray:
            return np.sum([column(episodes, key) for key in ("refused", "failed", "unfinished")], axis=0)

        groups = self._by_workload(of(self.ours) - of(self.theirs))
        each = {label: float(group.sum()) for label, group in groups.items()}
        most = max(each.values())
        return self._said(most, (most, most), each, 0.0)

    def _by_workload(
        self, values: FloatArray, some: NDArray[np.bool_] | None = None
    ) -> dict[str, FloatArray]:
        """Values of the blocks of each workload that has any."""
        labels = np.array(self.strata if self.strata is not None else [""] * len(self.ours))
        labels = labels if some is None else labels[some]
        return {label: values[labels == label] for label in dict.fromkeys(labels.tolist())}

    def _said(
        self, value: float, ci95: tuple[float, float], each: Mapping[str, float], limit: float
    ) -> dict[str, Any]:
        gate = _gate(value, limit) | {"ci95": ci95, "certain": _within(ci95[1], limit)}
        if self.strata is not None:
            gate["by_workload"] = dict(each)
            gate["beyond_in"] = [label for label, figure in each.items() if not _within(figure, limit)]
        return gate


def _gate(value: float, limit: float) -> dict[str, Any]:
    holds = _within(value, limit)
    return {"value": value, "limit": limit, "holds": holds, "certain": holds}


def _within(value: float, limit: float) -> bool:
    return bool(value <= limit + _ROUNDING)


def _interval(groups: Mapping[str, FloatArray]) -> tuple[float, float]:
    if any(np.isnan(group).any() for group in groups.values()):
        return np.nan, np.nan
    return bootstrap_interval(list(groups.values()), mean)


def _exp(value: float) -> float:
    return float(np.exp(value))


def _ratios(ours: FloatArray, theirs: FloatArray) -> FloatArray:
    """Ours over theirs, block by block; 1 where both are the same or undefined, or theirs alone is infinite.

    No block counts for less than a tenth, so that one cannot pay for all.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.maximum(ours / theirs, _LEAST_RATIO)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs)) | (np.isinf(theirs) & np.isfinite(ours))
    return np.where(same, 1.0, ratios)
