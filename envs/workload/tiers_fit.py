"""Fits the coefficients of :class:`~envs.workload.tiers.TieredTraffic`.

    python -m envs.workload.tiers_fit FOLDER

reads `sageserve_week_tokens_digitised.csv` (tokens/s of Microsoft 365's tiers, one week of November 2024 in bins of
4 h, read off the notebooks of kjain1810/SageServe) and `azure_llm_2024_week_requests_digitised.csv.gz` (requests/min of
Azure's coding and chat services, one week of 2024 in steps of 7.2 min, with the smallest and largest minute of each;
CC-BY-4.0, read off AzurePublicDataset's notebook) and prints the coefficients. Neither holds requests, and neither is
part of this package.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from serving_gym.envs.workload.schema import FloatArray
from serving_gym.envs.workload.tiers import WEEKEND_H

WEEK_FILE = "sageserve_week_tokens_digitised.csv"
BURST_FILE = "azure_llm_2024_week_requests_digitised.csv.gz"

_STEP_MIN = 7.22
_TREND_STEPS = 17  # two hours, over which a moving mean follows the day
# Half the range of seven normal draws, in standard deviations (the plotted band shows about seven minutes).
_HALF_RANGE = 1.352


def fit_week(week: pd.DataFrame) -> dict[str, float]:
    """Fits the shape of the week: least squares of the log of interactive tokens/s.

    Args:
        week: columns `t_h` (hours since the begin of a Monday) and `interactive_tokens_per_s`.

    Returns:
        `daily_amplitude`, `peak_h`, `weekend_ratio`, and `r2`, the share of variance they explain.
    """
    hour = week["t_h"].to_numpy(np.float64)
    log_rate = np.log(week["interactive_tokens_per_s"].to_numpy(np.float64))
    weekday, angle = hour % 168 < WEEKEND_H, 2 * np.pi * hour / 24
    design = np.stack([weekday, ~weekday, weekday * np.cos(angle), weekday * np.sin(angle)], axis=1)
    (level, weekend, cosine, sine), *_ = np.linalg.lstsq(design, log_rate, rcond=None)
    residual = log_rate - design @ np.array([level, weekend, cosine, sine])
    return {
        "daily_amplitude": float(np.hypot(cosine, sine)),
        "peak_h": float(np.arctan2(sine, cosine) * 24 / (2 * np.pi) % 24),
        "weekend_ratio": float(np.exp(weekend - level)),
        "r2": float(1 - residual.var() / log_rate.var()),
    }


def fit_bursts(requests: pd.DataFrame) -> dict[str, float]:
    """Fits the noise of the rate within the hour, by service, and takes the mean over requests.

    From minute to minute: half the width of the plotted band, less what Poisson arrivals alone would make of it. What
    lasts: the centres of the band about their moving mean of two hours.

    Args:
        requests: columns `service`, `requests_per_min`, `requests_per_min_low`, `requests_per_min_high`.

    Returns:
        `minute_noise`, `slow_noise` (standard deviations of the log rate) and `slow_memory_s`.
    """
    weights, minute, slow, memory = [], [], [], []
    for _, service in requests.groupby("service"):
        rate = service["requests_per_min"].to_numpy(np.float64)
        width = (service["requests_per_min_high"] - service["requests_per_min_low"]).to_numpy(np.float64)
        deviation = float(np.median(width / 2 / rate)) / _HALF_RANGE
        weights.append(rate.sum())
        minute.append(deviation**2 - float(np.median(1 / rate)))
        lasting = _about_trend(np.log(rate))
        slow.append(lasting.var())
        correlation = np.corrcoef(lasting[:-1], lasting[1:])[0, 1]
        memory.append(-_STEP_MIN * 60 / np.log(correlation))
    return {
        "minute_noise": float(np.sqrt(np.average(minute, weights=weights))),
        "slow_noise": float(np.sqrt(np.average(slow, weights=weights))),
        "slow_memory_s": float(np.average(memory, weights=weights)),
    }


def _about_trend(series: FloatArray) -> FloatArray:
    trend = pd.Series(series).rolling(_TREND_STEPS, center=True, min_periods=1).mean()
    return np.asarray(series - trend.to_numpy(np.float64), np.float64)


def main(folder: Path) -> None:
    """Prints what the files in a folder give."""
    found = fit_week(pd.read_csv(folder / WEEK_FILE)) | fit_bursts(pd.read_csv(folder / BURST_FILE))
    for name, value in found.items():
        print(f"{name}: {value:.4g}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
