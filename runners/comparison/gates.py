"""Gates: limits on tail latency, SLO attainment, single request classes and refusals that a policy must keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.runners.comparison.aggregate import Scored, column, column_of_some, names_of
from serving_gym.runners.comparison.statistics import (
    FloatArray,
    Statistic,
    bootstrap_interval,
    mean,
    over_strata,
)

# Non-inferiority to the best heuristic.
TTFT_P99_RATIO = 1.05
SLO_ATTAINMENT_LOSS = 0.002
WORST_CLASS_RATIO = 1.05

_ROUNDING = 1e-9  # tolerance for rounding of differences of shares


def gates_of(
    ours: Sequence[Scored], theirs: Sequence[Scored], versus: str, strata: Sequence[str] | None = None
) -> dict[str, Any]:
    """Tests the gates: whether a policy is not inferior to another in each gated metric.

    Means over all blocks are compared in each workload, so rare bad blocks count. Over several workloads ratios are
    averaged geometrically and losses arithmetically, weighted by the number of blocks, so that the scale of a workload
    does not matter. Each gate has a 95 % interval, and is `certain` if the whole interval is within the limit. Each
    gate has its value in every workload; `beyond_in` names the workloads that exceed the limit by themselves.

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
            default=here.same(WORST_CLASS_RATIO),
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
    """Paired metrics of two policies on the same blocks.

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
            limit: Its upper limit.
            of_all: Whether every episode must have it; otherwise those count in which the other has it.
        """
        read = column if of_all else column_of_some
        ours, theirs = read(self.ours, metric), read(self.theirs, metric)
        some = np.full(len(ours), True) if of_all else ~np.isnan(theirs)
        groups = self._by_workload(np.stack([ours, theirs], axis=1)[some], some)
        if not groups:
            return self.same(limit)
        value = _exp(over_strata([group.ravel() for group in groups.values()], _log_ratio))
        low, high = _interval(groups, _log_ratio)
        each = {label: _exp(_log_ratio(group.ravel())) for label, group in groups.items()}
        return self._said(value, (_exp(low), _exp(high)), each, limit)

    def same(self, limit: float) -> dict[str, Any]:
        """The ratio of a metric that neither policy has."""
        return self._said(1.0, (1.0, 1.0), {}, limit)

    def loss(self, metric: str, limit: float) -> dict[str, Any]:
        """Theirs less ours."""
        groups = self._by_workload(column(self.theirs, metric) - column(self.ours, metric))
        each = {label: float(mean(group)) for label, group in groups.items()}
        return self._said(
            float(over_strata(list(groups.values()), mean)), _interval(groups, mean), each, limit
        )

    def lost(self) -> dict[str, Any]:
        """Requests that our policy lost and the other did not, in the workload with the most."""

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
        gate: dict[str, Any] = {
            "value": value,
            "ci95": ci95,
            "limit": limit,
            "holds": _within(value, limit),
            "certain": _within(ci95[1], limit),
        }
        if self.strata is not None:
            gate["by_workload"] = dict(each)
            gate["beyond_in"] = [label for label, figure in each.items() if not _within(figure, limit)]
        return gate


def _within(value: float, limit: float) -> bool:
    return bool(value <= limit + _ROUNDING)


def _interval(groups: Mapping[str, FloatArray], statistic: Statistic) -> tuple[float, float]:
    if any(np.isnan(group).any() for group in groups.values()):
        return np.nan, np.nan
    return bootstrap_interval(list(groups.values()), statistic)


def _exp(value: float) -> float:
    return float(np.exp(value))


def _log_ratio(pairs: FloatArray) -> Any:
    """Logarithm of the mean of ours over that of theirs, 0 where theirs is infinite and ours is not more.

    Args:
        pairs: (..., 2 N), ours and theirs of a block one after the other.
    """
    means = pairs.reshape(*pairs.shape[:-1], -1, 2).mean(axis=-2)
    ours, theirs = means[..., 0], means[..., 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((ours == theirs) | np.isinf(theirs), 0.0, np.log(ours) - np.log(theirs))
