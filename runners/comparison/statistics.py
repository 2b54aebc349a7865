"""Statistics of paired comparisons over few seeds.

After Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021): inter-
quartile means with stratified bootstrap intervals, and the probability of improvement, here paired because every policy
sees the same arrivals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from serving_gym.envs.interface.metrics import percentiles

FloatArray = NDArray[np.float64]
Statistic = Callable[[FloatArray], Any]

LEVEL = 0.95
REPEATS = 2000


def interquartile_mean(values: ArrayLike) -> Any:
    """Mean of the middle half along the last axis; floor(N / 4) values are cut at each end.

    Args:
        values: (..., N), any unit; infinities allowed, they are cut first.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=-1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)


def over_strata(strata: Sequence[FloatArray], statistic: Statistic = interquartile_mean) -> Any:
    """A statistic of each stratum, averaged, each as often as it has values: none is trimmed away as a whole.

    Args:
        strata: (..., N) each, one array for each workload.
        statistic: along the last axis.
    """
    sizes = [array.shape[-1] for array in strata]
    each = [size / sum(sizes) * statistic(array) for size, array in zip(sizes, strata, strict=True)]
    return sum(each[1:], start=each[0])


def mean(values: FloatArray) -> Any:
    """Along the last axis."""
    return values.mean(axis=-1)


def bootstrap_interval(
    strata: Sequence[ArrayLike],
    statistic: Statistic = interquartile_mean,
    level: float = LEVEL,
    repeats: int = REPEATS,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of a statistic by the stratified (block) bootstrap.

    Args:
        strata: one array for each stratum (a workload, say): (blocks,) single values, or (blocks, size) where the
            values of a block belong together and are drawn together.
        statistic: of the values of a stratum, along the last axis, averaged as by `over_strata`.
        level: coverage, 0 to 1.
        repeats: bootstrap samples.
        seed: of the resampling.

    Returns:
        Lower and upper end.

    Raises:
        ValueError: no values, or `level` outside (0, 1).
    """
    arrays = [np.asarray(stratum, dtype=np.float64) for stratum in strata]
    if not arrays or any(not array.size for array in arrays):
        raise ValueError("bootstrap_interval needs at least one value in every stratum")
    rng = np.random.default_rng(seed)
    drawn = []
    for array in arrays:
        blocks = len(array)
        drawn.append(array[rng.integers(blocks, size=(repeats, blocks))].reshape(repeats, -1))
    return _percentile_interval(drawn, statistic, level)


def crossed_interval(
    tables: Sequence[ArrayLike],
    statistic: Statistic = interquartile_mean,
    level: float = LEVEL,
    repeats: int = REPEATS,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of the crossed bootstrap over trainings and over blocks inside each stratum.

    A sample draws trainings with replacement, the same ones in every stratum, and blocks with replacement, the same
    ones for every training.

    Args:
        tables: (trainings, blocks), one for each stratum.
        statistic: of the values of a stratum, along the last axis, averaged as by `over_strata`.
        level: coverage, 0 to 1.
        repeats: bootstrap samples.
        seed: of the resampling.

    Returns:
        Lower and upper end.

    Raises:
        ValueError: no values, different numbers of trainings, or `level` outside (0, 1).
    """
    arrays = [np.asarray(table, dtype=np.float64) for table in tables]
    if not arrays or any(array.ndim != 2 or not array.size for array in arrays):
        raise ValueError("crossed_interval needs a table of trainings and blocks for every stratum")
    if len({len(array) for array in arrays}) > 1:
        raise ValueError("crossed_interval needs the same trainings in every stratum")
    rng = np.random.default_rng(seed)
    trainings = len(arrays[0])
    rows = rng.integers(trainings, size=(repeats, trainings, 1))
    drawn = []
    for array in arrays:
        blocks = array.shape[1]
        columns = rng.integers(blocks, size=(repeats, 1, blocks))
        drawn.append(array[rows, columns].reshape(repeats, -1))
    return _percentile_interval(drawn, statistic, level)


def _percentile_interval(
    drawn: Sequence[FloatArray], statistic: Statistic, level: float
) -> tuple[float, float]:
    """Interval of a statistic over bootstrap samples, (repeats, values) of each stratum."""
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    replicates = np.asarray(over_strata(drawn, statistic), dtype=np.float64)
    tail = 100.0 * (1.0 - level) / 2.0
    low, high = percentiles(replicates, (tail, 100.0 - tail))
    return low, high


def probability_of_improvement(ours: ArrayLike, theirs: ArrayLike) -> float:
    """Share of seeds on which `ours` is larger than `theirs`; a tie counts half.

    Args:
        ours: (seeds,).
        theirs: (seeds,), the same seeds in the same order.

    Raises:
        ValueError: different numbers of seeds, or none.
    """
    a, b = _paired(ours, theirs)
    return float(np.mean((a > b) + 0.5 * (a == b)))


def relative_gains(
    ours: ArrayLike, theirs: ArrayLike, strata: Sequence[str] | None = None
) -> list[FloatArray]:
    """Gains over another policy as shares of that one's size, one array for each stratum.

    The size is the absolute interquartile mean of `theirs` in the stratum, so that it is a gain for negative returns as
    well, and no workload counts for more because its returns are larger.

    Args:
        ours: (seeds,).
        theirs: (seeds,), the same seeds in the same order.
        strata: (seeds,), the workload of each; None: all of one.
    """
    a, b = _paired(ours, theirs)
    labels = np.zeros(a.size) if strata is None else np.asarray(strata)
    gains = []
    for label in dict.fromkeys(labels.tolist()):
        mine, other = a[labels == label], b[labels == label]
        size = abs(float(interquartile_mean(other)))
        difference = mine - other
        infinite = np.where(mine == other, 0.0, np.copysign(np.inf, difference))
        gains.append(difference / size if size > 0 else infinite)
    return gains


@dataclass(frozen=True)
class Improvement:
    """Relative gains over another policy.

    Attributes:
        iqm: Interquartile mean of each workload's, averaged over workloads by blocks.
        ci95: Its 95 % interval by the stratified bootstrap over paired seeds.
        mean: Mean of all blocks, the rare bad ones too.
        mean_ci95: Its interval, likewise.
    """

    iqm: float
    ci95: tuple[float, float]
    mean: float
    mean_ci95: tuple[float, float]


def relative_improvement(
    ours: ArrayLike, theirs: ArrayLike, seed: int = 0, strata: Sequence[str] | None = None
) -> Improvement:
    """Aggregates `relative_gains`.

    Args:
        ours: (seeds,).
        theirs: (seeds,), the same seeds in the same order.
        seed: of the bootstrap.
        strata: (seeds,), the workload of each; None: all of one.
    """
    gains = relative_gains(ours, theirs, strata)
    return Improvement(
        iqm=float(over_strata(gains)),
        ci95=bootstrap_interval(gains, seed=seed),
        mean=float(over_strata(gains, mean)),
        mean_ci95=bootstrap_interval(gains, mean, seed=seed),
    )


def paired_p_value(ours: ArrayLike, theirs: ArrayLike, strata: Sequence[str] | None = None) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test on paired seeds; 1 where nothing differs.

    Where there are several strata, on `relative_gains`, which can be ranked across them.
    """
    a, b = _paired(ours, theirs)
    if np.array_equal(a, b):
        return 1.0
    difference = a - b if strata is None else np.concatenate(relative_gains(a, b, strata))
    return float(stats.wilcoxon(difference, zero_method="pratt").pvalue)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p-values adjusted for multiple comparisons (Holm's step-down method), in the same order."""
    adjusted: dict[str, float] = {}
    worst = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = worst
    return {name: adjusted[name] for name in p_values}


def _paired(ours: ArrayLike, theirs: ArrayLike) -> tuple[FloatArray, FloatArray]:
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1 or not a.size:
        raise ValueError(f"paired values must be two lists of one length, got shapes {a.shape} and {b.shape}")
    return a, b
