"""Fits the profiles of `weekly/`.

    python -m envs.workload.weekly_fit FOLDER [OUT]

reads series of rates that are public and writes a profile for each:

* `azure_llm_2024_week_requests_digitised.csv.gz`: requests/min of Azure's coding and chat services, a week of May 2024
  in steps of 7.2 min with the smallest and largest minute of each (CC-BY-4.0, read off AzurePublicDataset's notebook);
* `servegen_model_rates_10min.csv.gz`: requests/s of three language models of Alibaba's Model Studio, ten days in
  windows of 10 min (Apache-2.0, alibaba/ServeGen); which day of the week the first one is, is not known;
* `sageserve_week_tokens_digitised.csv`: tokens/s of Microsoft 365's interactive and non-interactive requests, a week of
  November 2024 in bins of 4 h (read off the notebooks of kjain1810/SageServe).

None of these files is part of this package. Curves are least squares of the log rate by kind of day. What they leave is
noise: its autocovariance is fitted by exponentials on several time scales (non-negative least squares); what a minute
draws anew is half the width of Azure's plotted band, less what Poisson arrivals alone would make of it.

What a fit is worth shows on days that it has not seen, with a purge gap at either end: for the weeks, each workday is
left out in turn; for ServeGen's ten days, the first seven are fitted and the last three are not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from serving_gym.envs.workload.schema import FloatArray
from serving_gym.envs.workload.tiers_fit import BURST_FILE, WEEK_FILE, fit_bursts
from serving_gym.envs.workload.weekly_profile import (
    DAY_H,
    WEEKLY_DIR,
    NoiseComponent,
    WeeklyProfile,
    daily_harmonics,
)

SERVEGEN_FILE = "servegen_model_rates_10min.csv.gz"
WEEK_KINDS = ("workday",) * 5 + ("saturday", "sunday")
WEEKEND_KINDS = ("workday",) * 5 + ("weekend",) * 2
EVERY_DAY = ("day",) * 7

_SCALES_S = (600.0, 1800.0, 5400.0, 16200.0, 48600.0)
_LAGS = 300  # steps of the series over which the autocovariance is fitted, at most a quarter of it
_PURGE_H = 1.0
_SERVEGEN_TRAIN_H, _SERVEGEN_PURGE_H = 168.0, 6.0
_GAP_SHARE = 0.02  # of the median, below which a ServeGen window is missing collection rather than demand

BoolArray = NDArray[np.bool_]


def fit_curves(
    hour: FloatArray, rate: FloatArray, days: Sequence[str], harmonics: dict[str, int]
) -> dict[str, tuple[float, ...]]:
    """Least squares of the log rate for each kind of day.

    Args:
        hour: (n,), hours since Monday, 0:00.
        rate: (n,), positive; NaN where nothing was collected.
        days: (7,), kind of each day.
        harmonics: by kind of day, of a day.
    """
    kind = _kind_of(hour, days)
    curves = {}
    for name, count in harmonics.items():
        rows = (kind == name) & np.isfinite(rate)
        design = daily_harmonics(hour[rows], count)
        coefficients, *_ = np.linalg.lstsq(design, np.log(rate[rows]), rcond=None)
        curves[name] = tuple(float(f"{value:.5g}") for value in coefficients)
    return curves


def fit_memory(residual: FloatArray, step_s: float, white: float = 0.0) -> tuple[NoiseComponent, ...]:
    """Exponentials whose sum is the autocovariance of the residuals of the curves.

    Args:
        residual: (n,), of the log rate; NaN where nothing is known.
        step_s: time between two values, seconds; shorter time scales cannot be resolved.
        white: variance of a value that does not last, taken off at lag 0.
    """
    lags = np.arange(min(_LAGS, len(residual) // 4))
    centred = residual - np.nanmean(residual)
    covariance = np.array([np.nanmean(centred[: len(centred) - lag] * centred[lag:]) for lag in lags])
    covariance[0] -= white
    scales_s = [scale for scale in _SCALES_S if scale >= step_s]
    basis = np.exp(-lags[:, None] * step_s / np.array(scales_s))
    weight = 1.0 / np.sqrt(1.0 + lags)  # neighbouring lags err together
    variances, _ = nnls(basis * weight[:, None], covariance * weight)
    return tuple(
        NoiseComponent(scale, float(f"{variance:.4g}"))
        for scale, variance in zip(scales_s, variances, strict=True)
        if variance > 1e-5
    )


def azure(folder: Path) -> list[WeeklyProfile]:
    """Azure's coding and chat services."""
    table = pd.read_csv(folder / BURST_FILE)
    first_day = {"code": 4, "conv": 6}  # a Friday and a Sunday, 0:00 UTC
    found = []
    for service, own in table.groupby("service"):
        hour = DAY_H * first_day[str(service)] + own["t_min"].to_numpy(np.float64) / 60
        rate = own["requests_per_min"].to_numpy(np.float64)
        minute_noise = fit_bursts(own)["minute_noise"]
        steps = 7  # minutes that a value is the mean of
        found.append(
            _profile(
                f"azure_{service}",
                hour,
                rate,
                WEEK_KINDS,
                {"workday": 6, "saturday": 3, "sunday": 3},
                minute_noise,
                white=minute_noise**2 / steps,
                held_out=_workdays(hour),
                source="Azure/AzurePublicDataset, AzureLLMInferenceDataset2024.ipynb, read off its figures",
                licence="CC-BY-4.0",
                clock="UTC",
            )
        )
    return found


def servegen(folder: Path) -> list[WeeklyProfile]:
    """Three language models of Alibaba's Model Studio."""
    table = pd.read_csv(folder / SERVEGEN_FILE)
    minute_noise = fit_bursts(pd.read_csv(folder / BURST_FILE))["minute_noise"]
    found = []
    for model in ("m-large", "m-mid", "m-small"):
        own = table[table["model"] == model]
        windows = (own["t_s"] // 600).to_numpy(int)
        rate = np.full(windows.max() + 1, np.nan)
        rate[windows] = own["rate_rps"].to_numpy(np.float64)
        rate[rate < _GAP_SHARE * np.nanmedian(rate)] = np.nan
        hour = (np.arange(len(rate)) + 0.5) / 6
        train = hour < _SERVEGEN_TRAIN_H
        found.append(
            _profile(
                f"servegen_{model.replace('-', '_')}",
                hour,
                rate,
                EVERY_DAY,
                {"day": 4},
                minute_noise,
                white=minute_noise**2 / 10,
                held_out=[(train, hour >= _SERVEGEN_TRAIN_H + _SERVEGEN_PURGE_H)],
                train=train,
                source="alibaba/ServeGen, rates summed over clients",
                licence="Apache-2.0",
                clock="local; the day of the week is not known, so that all days are alike",
            )
        )
    return found


def sageserve(folder: Path) -> list[WeeklyProfile]:
    """Microsoft 365's tiers; what happens within the hour is Azure's, what lasts longer is their own."""
    table = pd.read_csv(folder / WEEK_FILE)
    bursts = fit_bursts(pd.read_csv(folder / BURST_FILE))
    within_hour = NoiseComponent(round(bursts["slow_memory_s"], 0), round(bursts["slow_noise"] ** 2, 6))
    hour = table["t_h"].to_numpy(np.float64)
    found = []
    for name, column, harmonics in (
        ("m365_interactive", "interactive_tokens_per_s", {"workday": 2, "weekend": 1}),
        ("m365_non_interactive", "non_interactive_tokens_per_s", {"workday": 1, "weekend": 1}),
    ):
        found.append(
            _profile(
                name,
                hour,
                table[column].to_numpy(np.float64),
                WEEKEND_KINDS,
                harmonics,
                bursts["minute_noise"],
                within_hour=(within_hour,),
                held_out=_workdays(hour),
                source="kjain1810/SageServe, notebooks/figures.ipynb, read off a figure; noise: Azure's of 2024",
                licence="none given",
                clock="of the figure",
            )
        )
    return found


def _profile(
    name: str,
    hour: FloatArray,
    rate: FloatArray,
    days: tuple[str, ...],
    harmonics: dict[str, int],
    minute_noise: float,
    held_out: Sequence[tuple[BoolArray, BoolArray]],
    white: float = 0.0,
    within_hour: tuple[NoiseComponent, ...] = (),
    train: BoolArray | None = None,
    **provenance: str,
) -> WeeklyProfile:
    """Fits a profile and scores it on days it has not seen."""
    fitted = np.ones(len(hour), bool) if train is None else train

    def curves(rows: BoolArray) -> WeeklyProfile:
        found = fit_curves(hour[rows], rate[rows], days, harmonics)
        return WeeklyProfile(name, days, found, 0.0, ())

    whole = curves(fitted)
    log_rate = np.log(rate)
    residual = log_rate - whole._log_rate(hour)
    memory = within_hour + fit_memory(residual[fitted], 3600 * float(np.diff(hour).mean()), white)
    errors = np.concatenate(
        [
            np.abs(np.expm1(curves(rows)._log_rate(hour[others]) - log_rate[others]))
            for rows, others in held_out
        ]
    )
    return WeeklyProfile(
        name,
        days,
        whole.curves,
        round(minute_noise, 4),
        memory,
        {**provenance, "values": int(np.isfinite(rate).sum()), "method": "envs/workload/weekly_fit.py"},
        {
            "r2": round(float(1 - np.nanvar(residual[fitted]) / np.nanvar(log_rate[fitted])), 4),
            "mean_ape_held_out": round(float(np.nanmean(errors)), 4),
        },
    )


def _workdays(hour: FloatArray) -> list[tuple[BoolArray, BoolArray]]:
    """Each workday left out in turn: what is fitted, and what is not."""
    day = np.floor(hour / DAY_H)
    pairs = []
    for number in np.unique(day[day % 7 < 5]):
        out = day == number
        near = (hour > DAY_H * number - _PURGE_H) & (hour < DAY_H * (number + 1) + _PURGE_H)
        pairs.append((~near, out))
    return pairs


def _kind_of(hour: FloatArray, days: Sequence[str]) -> NDArray[np.str_]:
    return np.array(days)[np.floor(hour / DAY_H).astype(int) % 7]


SOURCES: tuple[Callable[[Path], list[WeeklyProfile]], ...] = (azure, servegen, sageserve)


def main(folder: Path, out: Path = WEEKLY_DIR) -> None:
    """Writes a profile for every series in a folder."""
    for profile in (profile for source in SOURCES for profile in source(folder)):
        profile.save(out)
        print(f"{profile.name}: {dict(profile.fit)}, noise {profile.noise_variance**0.5:.3f}")


if __name__ == "__main__":
    main(*(Path(word) for word in sys.argv[1:3]))
