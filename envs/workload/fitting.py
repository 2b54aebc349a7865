"""Fits a :class:`~envs.workload.generators.FittedWorkload` to a trace, and measures the error of the fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import ndtri
from scipy.stats import ks_2samp, rankdata, spearmanr

from serving_gym.envs.workload.generators import FittedWorkload, MemoryComponent
from serving_gym.envs.workload.schema import FloatArray, Workload, counts_per_bin, variation
from serving_gym.envs.workload.seeding import stream

METHOD = (
    "marginals: quantile tables (numpy 'linear'), interarrival table's top 1 % scaled to the trace's mean; "
    "arrival memory: non-negative least squares of the autocorrelation of the interarrival times' normal "
    "scores on exponentials, both with the sample mean removed; "
    "lengths: Gaussian copula, r = 2 sin(pi * Spearman / 6)"
)
MIN_REQUESTS = 200
TIME_SCALES_REQUESTS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
GOODNESS_EPISODES = 100
COUNT_BIN_S = 10.0
TAIL_LEVEL = 0.99

# Levels of the quantile tables: even in the body, dense in both tails (a few long silences carry much of the
# mean).
_LOWER, _BODY, _UPPER = np.geomspace(1e-4, 0.01, 6), np.linspace(0, 1, 81), 1 - np.geomspace(1e-4, 0.01, 13)
PROBABILITIES = np.unique(np.concatenate([_LOWER, _BODY, _UPPER]).round(6))


def fit(trace: Workload, name: str, provenance: dict[str, Any] | None = None) -> FittedWorkload:
    """Fits a generator to a trace.

    Args:
        trace: the trace.
        name: name of the generator.
        provenance: publisher, licence and the like; rows, span, digest and method are added.

    Raises:
        ValueError: too few requests to fit a distribution, or all at one time.
    """
    if len(trace) < MIN_REQUESTS:
        raise ValueError(f"fitting needs at least {MIN_REQUESTS} requests, {trace.name!r} has {len(trace)}")
    if trace.duration_s <= 0:
        raise ValueError(f"fitting needs arrivals spread over time; those of {trace.name!r} are all equal")
    gaps = np.diff(trace.arrival_s)
    fitted = FittedWorkload(
        name=name,
        rate_rps=round(trace.rate_rps, 6),
        probabilities=_numbers(PROBABILITIES),
        interarrival_s=_numbers(_mean_preserving_quantiles(gaps)),
        input_tokens=_numbers(np.quantile(trace.input_tokens, PROBABILITIES)),
        output_tokens=_numbers(np.quantile(trace.output_tokens, PROBABILITIES)),
        memory=fit_memory(gaps),
        length_correlation=_copula_correlation(trace),
    )
    described = {
        "trace": trace.name,
        **(provenance or {}),
        "rows": len(trace),
        "span_s": round(trace.duration_s, 3),
    }
    described |= {"trace_sha256": trace.sha256(), "method": METHOD}
    return replace(fitted, provenance=described, fit=goodness(fitted, trace))


def fit_memory(gaps_s: FloatArray) -> tuple[MemoryComponent, ...]:
    """Components of the Gaussian sequence behind the interarrival times.

    Lags are pooled in logarithmic bands of equal weight, because the errors of neighbouring lags are common.
    The sample mean takes part of every slow component with it. So that slow drift is not lost, each
    exponential is fitted less the variance its own sample mean would have over that many requests.

    Args:
        gaps_s: (N,), interarrival times in seconds.
    """
    n = gaps_s.size
    scores = ndtri((rankdata(gaps_s) - 0.5) / n)
    observed = _autocorrelation(scores)
    scales = np.array([scale for scale in TIME_SCALES_REQUESTS if scale <= n / 3])
    lag = np.arange(1, n)[:, None]
    mean_variance = np.array([(1 + 2 * np.sum((1 - lag / n) * np.exp(-lag / scale))) / n for scale in scales])
    edges = np.unique(np.geomspace(1, n // 4, 40).astype(int))
    bands = [np.arange(first, last) for first, last in pairwise(edges)]
    basis = np.array([np.exp(-band[:, None] / scales).mean(axis=0) for band in bands]) - mean_variance
    target = np.array([observed[band].mean() for band in bands])
    weights, _ = nnls(basis, target)
    weights /= max(1.0, weights.sum())
    return tuple(
        MemoryComponent(float(scale), round(float(weight), 5))
        for scale, weight in zip(scales, weights, strict=True)
        if weight >= 1e-4
    )


def goodness(generator: FittedWorkload, trace: Workload) -> dict[str, float]:
    """Distances between a trace and workloads of its size drawn from a generator.

    Returns:
        Kolmogorov-Smirnov distances of the pooled draws (``ks_*``, 0 is equal, 1 is disjoint); for the
        generator the mean over draws, beside the trace's own figure, of the rate, of the variation of the
        counts in 10 s and 60 s bins, of the interarrival times' variation, and of the rank correlation
        between input and output.
    """
    draws = [
        generator.sample(len(trace), stream(seed, generator.name, "goodness"))
        for seed in range(GOODNESS_EPISODES)
    ]
    distances = marginal_distances(draws, trace)
    generated = [_figures(draw) for draw in draws]
    for key, value in _figures(trace).items():
        distances[f"{key}_trace"] = value
        distances[f"{key}_generated"] = float(np.mean([figures[key] for figures in generated]))
    return {key: round(value, 5) for key, value in distances.items()}


def marginal_distances(draws: list[Workload], trace: Workload) -> dict[str, float]:
    """Kolmogorov-Smirnov distances between the pooled draws and a trace, by marginal."""

    def distance(pick: Callable[[Workload], NDArray[Any]]) -> float:
        return float(ks_2samp(np.concatenate([pick(draw) for draw in draws]), pick(trace)).statistic)

    return {
        "ks_interarrival_s": distance(lambda workload: np.diff(workload.arrival_s)),
        "ks_input_tokens": distance(lambda workload: workload.input_tokens),
        "ks_output_tokens": distance(lambda workload: workload.output_tokens),
    }


def rank_correlation(workload: Workload) -> float:
    """Spearman correlation of input and output lengths; 0 where one of them is constant."""
    lengths = (workload.input_tokens, workload.output_tokens)
    if any(np.ptp(column) == 0 for column in lengths):
        return 0.0
    return float(spearmanr(*lengths).statistic)


def _figures(workload: Workload) -> dict[str, float]:
    return {
        "rate_rps": workload.rate_rps,
        "interarrival_cv": variation(np.diff(workload.arrival_s)),
        "count_cv_10s": variation(counts_per_bin(workload.arrival_s, COUNT_BIN_S)),
        "count_cv_60s": variation(counts_per_bin(workload.arrival_s, 6 * COUNT_BIN_S)),
        "rank_correlation": rank_correlation(workload),
    }


def _mean_preserving_quantiles(gaps_s: FloatArray) -> FloatArray:
    """Quantile table whose linear interpolation has the mean of the data: only its upper tail is scaled."""
    table = np.quantile(gaps_s, PROBABILITIES)
    tail = np.where(PROBABILITIES >= TAIL_LEVEL, table, 0.0)
    body_mean, tail_mean = np.trapezoid([table - tail, tail], PROBABILITIES, axis=1)
    scaled: FloatArray = table - tail + tail * (gaps_s.mean() - body_mean) / tail_mean
    return np.maximum.accumulate(scaled)


def _copula_correlation(trace: Workload) -> float:
    return round(float(2.0 * np.sin(np.pi * rank_correlation(trace) / 6.0)), 6)


def _autocorrelation(values: FloatArray) -> FloatArray:
    """Sample autocorrelation at every lag, (N,), by FFT; each lag is divided by its own number of pairs."""
    n = values.size
    spectrum = np.fft.rfft(values - values.mean(), 2 * n)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[:n] / (n - np.arange(n))
    correlation: FloatArray = covariance / covariance[0]
    return correlation


def _numbers(values: FloatArray) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)
