"""Fits the coefficients of `functions_fitted`.

    SERVING_GYM_DATA=FOLDER python -m envs.workload.functions_fit

reads the invocations a minute of the Azure Functions trace of 2019 (CC-BY-4.0; the sample of vhive-serverless/invitro),
first 30 minutes, and writes `functions.json` beside this file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.workload.functions import FITTED_FILE, Counts, FunctionFit, minute_counts
from serving_gym.envs.workload.seeding import stream

BANDS = (1, 2, 4, 10, 30, 31, 100)
_LEVELS = (*(i / 20 for i in range(19)), 0.92, 0.94, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 1.0)
_SHARE_LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_EVEN_MINUTES = 1.0  # standard deviation of the gaps of a periodic function, at most
_CHECKED = 20_000  # functions drawn to check the fit


def is_periodic(row: Counts) -> bool:
    """Whether a function is invoked periodically: gaps between its active minutes, or its counts, hardly vary."""
    active = np.flatnonzero(row)
    if len(active) < 3:
        return False
    even_counts = bool(row[active].max() - row[active].min() <= 1)
    return even_counts and bool(np.diff(active).std() <= _EVEN_MINUTES)


def fit_functions(counts: Counts) -> FunctionFit:
    """Fits half an hour.

    Args:
        counts: (functions, 30), invocations a minute; functions without any do not count.
    """
    counts = counts[counts.any(axis=1)]
    totals = counts.sum(axis=1)
    periodic = np.array([is_periodic(row) for row in counts])
    band = np.searchsorted(BANDS, totals, side="right") - 1
    rows = [counts[(band == b) & ~periodic] for b in range(len(BANDS))]
    found = FunctionFit(
        levels=_LEVELS,
        counts=_count_table(totals),
        bands=BANDS,
        periodic=tuple(_rounded(periodic[band == b].mean()) for b in range(len(BANDS))),
        share_levels=_SHARE_LEVELS,
        active_share=tuple(_active_share(own) for own in rows),
        stickiness=tuple(_stickiness(own) for own in rows),
        concentration=tuple(_concentration(own) for own in rows),
        provenance=(
            f"fitted to {len(counts)} functions of the Azure Functions trace of 2019 (CC-BY-4.0, Shahrad et al., ATC "
            "2020; sample of vhive-serverless/invitro, MIT) that are invoked in its first 30 minutes, "
            f"{int(totals.sum())} times"
        ),
        fit={},
    )
    return replace(found, fit=_distances(found, counts))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _count_table(totals: NDArray[np.int64]) -> tuple[float, ...]:
    """Quantiles of the count; those above 90 % are scaled so that linear interpolation keeps the mean."""
    table = np.quantile(totals, _LEVELS)
    levels = np.array(_LEVELS)
    upper = levels > 0.9
    weight = np.zeros(len(levels))
    weight[:-1] += np.diff(levels) / 2
    weight[1:] += np.diff(levels) / 2
    factor = (totals.mean() - (weight * table)[~upper].sum()) / (weight * table)[upper].sum()
    table[upper] = np.maximum(table[upper] * factor, table[~upper][-1])
    return tuple(_rounded(value) for value in table)


def _active_share(rows: Counts) -> tuple[float, ...]:
    if not len(rows):
        return (1.0,) * len(_SHARE_LEVELS)
    share = (rows > 0).sum(axis=1) / np.minimum(rows.sum(axis=1), 30)
    return tuple(_rounded(value) for value in np.quantile(share, _SHARE_LEVELS))


def _stickiness(rows: Counts) -> float:
    active = rows > 0
    before = active[:, :-1].sum()
    return _rounded((active[:, :-1] & active[:, 1:]).sum() / before) if before else 0.0


def _concentration(rows: Counts) -> float:
    """By moments: the squared coefficient of variation of Dirichlet weights over a minutes is (a - 1) / (a c + 1)."""
    found = []
    for row in rows:
        extra = row[row > 0] - 1
        a, total = len(extra), int(extra.sum())
        if a < 3 or total < a:
            continue
        share = extra / total
        spread = max(share.var() * a * a - (a - 1) / total, 1e-3)  # beyond what the draw itself brings
        found.append(max(((a - 1) / spread - 1) / a, 0.02))
    return _rounded(float(np.median(found))) if found else 1.0


def _distances(fit: FunctionFit, counts: Counts) -> dict[str, float]:
    """Kolmogorov-Smirnov distances of counts, active minutes and busiest minutes, and the ratio of the means."""
    drawn = fit.draw(_CHECKED, stream(0, "functions_fit"))
    figures = {
        "ks_count": (drawn.sum(axis=1), counts.sum(axis=1)),
        "ks_active_minutes": ((drawn > 0).sum(axis=1), (counts > 0).sum(axis=1)),
        "ks_busiest_minute": (drawn.max(axis=1), counts.max(axis=1)),
        "ks_runs": (_num_runs(drawn), _num_runs(counts)),
    }
    distances = {name: _rounded(_ks(*pair)) for name, pair in figures.items()}
    return distances | {"mean_ratio": _rounded(drawn.sum(axis=1).mean() / counts.sum(axis=1).mean())}


def _num_runs(counts: Counts) -> NDArray[np.int64]:
    active = np.pad(counts > 0, ((0, 0), (1, 0)))
    return np.asarray((active[:, 1:] & ~active[:, :-1]).sum(axis=1))


def _ks(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    points = np.union1d(first, second)
    cdfs = [np.searchsorted(np.sort(x), points, side="right") / len(x) for x in (first, second)]
    return float(np.abs(cdfs[0] - cdfs[1]).max())


def main() -> None:
    """Fits and writes."""
    found = fit_functions(minute_counts()[:, :30])
    FITTED_FILE.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
    print(found.fit)


if __name__ == "__main__":
    main()
