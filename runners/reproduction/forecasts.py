"""How well forecasters do on real series: Table 1 of PreServe (section 5.2.1) beside ours.

As there: the first half trains, the second half tests, errors are absolute percentage errors, their mean and maximum.
What differs, so that no figure is comparable:

* The per-request weeks are not public in one file that could be kept here. Azure's code and chat weeks are read off
  published figures, at the figures' own steps (20.4 min for tokens, 7.2 min for requests) instead of 10 min; such
  steps are smoother than windows of requests. ServeGen's ten days are requests/s in true 10 min windows.
* The text does not say from what a forecast is made. "next": each value from all before it; "after next": from all but
  the last one before it, which is what the instance scaler uses (Algorithm 2); "whole half": all of the second half
  from the first, which nothing corrects. That its ARIMA and ETS err by 16 to 61 % points to the last one for them.

`python -m runners.reproduction.forecasts` prints the table; it takes some minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from serving_gym.baselines.common.forecasting.prophet import ProphetForecaster
from serving_gym.baselines.common.forecasting.registry import make_forecaster
from serving_gym.baselines.common.forecasting.series import (
    FloatArray,
    SeriesForecaster,
    one_shot,
    percentage_errors,
    rolling,
)
from serving_gym.baselines.preserve.mlstm import Mlstm
from serving_gym.calibration.fitting.data import data_path
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_table

METHODS = (
    "last_value",
    "seasonal_naive",
    "arima",
    "arima_daily",
    "ets",
    "ets_daily",
    "prophet",
    "mlstm",
)
MODES = ("next", "after next", "whole half")

# Table 1: mean and maximum APE of prompts, by service.
PAPER = {
    ("arima", "code"): (0.5917, 0.9100),
    ("arima", "conv"): (0.1594, 0.7403),
    ("ets", "code"): (0.5463, 0.8671),
    ("ets", "conv"): (0.1593, 0.7395),
    ("prophet", "code"): (0.2626, 0.6788),
    ("prophet", "conv"): (0.0805, 0.2730),
    ("mlstm", "code"): (0.0774, 0.2625),
    ("mlstm", "conv"): (0.0415, 0.2116),
}

_GAP_SHARE = 0.02  # of the median, below which a ServeGen window is missing collection rather than demand


@dataclass(frozen=True, eq=False)
class RealSeries:
    """A measured series.

    Attributes:
        name: What it is.
        service: Service of the paper's table that it belongs to; empty: none.
        step_s: Seconds between two values.
        origin_s: Time of the first value, seconds since Monday, 0:00.
        values: (T,), NaN where nothing was collected.
    """

    name: str
    service: str
    step_s: float
    origin_s: float
    values: FloatArray


@dataclass(frozen=True)
class Score:
    """Errors of a forecaster on the second half of a series.

    Attributes:
        series: Its name.
        method: Name of the forecaster.
        mode: What a forecast is made from: one of `MODES`.
        mean_ape: Mean absolute percentage error, as a fraction.
        max_ape: Largest.
        paper: Mean and largest of the paper for this method and service, where it has them.
    """

    series: str
    method: str
    mode: str
    mean_ape: float
    max_ape: float
    paper: tuple[float, float] | None


def real_series() -> list[RealSeries]:
    """All series that are long enough: ServeGen's language models, Azure's two services.

    Raises:
        ValueError: `SERVING_GYM_DATA` is not set or lacks a file.
    """
    return [*_servegen(), *_azure()]


def _servegen() -> Iterator[RealSeries]:
    frame = pd.read_csv(data_path("traces/servegen_model_rates_10min.csv.gz"))
    for model in ("m-large", "m-mid", "m-small"):
        own = frame[frame["model"] == model]
        windows = (own["t_s"] // 600).to_numpy(int)
        values = np.full(windows.max() + 1, np.nan)
        values[windows] = own["rate_rps"].to_numpy(float)
        values[values < _GAP_SHARE * np.nanmedian(values)] = np.nan
        yield RealSeries(f"ServeGen {model}, requests", "", 600.0, 0.0, values)


def _azure() -> Iterator[RealSeries]:
    day_s = 86_400.0
    first_day = {"code": 4 * day_s, "conv": 6 * day_s}  # a Friday, a Sunday
    for table, column, what in (
        ("tokens", "input_tokens_per_min", "prompt tokens"),
        ("tokens", "output_tokens_per_min", "answer tokens"),
        ("requests", "requests_per_min", "requests"),
    ):
        frame = pd.read_csv(data_path(f"traces/azure_llm_2024_week_{table}_digitised.csv.gz"))
        for service in ("code", "conv"):
            own = frame[frame["service"] == service]
            values = own[column].to_numpy(float)
            if not np.isfinite(values).any():
                continue  # answers of the code service cannot be read off
            minutes = own["t_min"].to_numpy(float)
            step_s = 60.0 * float(np.diff(minutes).mean())
            origin_s = first_day[service] + 60.0 * float(minutes[0])
            yield RealSeries(f"Azure {service}, {what}", service, step_s, origin_s, values)


def score(series: RealSeries, method: str, modes: Sequence[str] = MODES) -> list[Score]:
    """Scores a forecaster on a chronological half split.

    Args:
        series: The series.
        method: One of `METHODS`.
        modes: What forecasts are made from.
    """
    start = len(series.values) // 2
    forecaster: SeriesForecaster = (
        Mlstm() if method == "mlstm" else make_forecaster(method, series.step_s, series.origin_s)
    )
    prompts = series.service if series.name.endswith("prompt tokens") else ""
    found = []
    for mode in modes:
        # What Prophet says of a time does not depend on what came before it.
        if mode == "whole half" or isinstance(forecaster, ProphetForecaster):
            predicted = one_shot(forecaster, series.values, start)
        else:
            predicted = rolling(forecaster, series.values, start, ahead=1 + MODES.index(mode))
        errors = percentage_errors(predicted, series.values[start:])
        found.append(Score(series.name, method, mode, errors.mean, errors.max, PAPER.get((method, prompts))))
    return found


def _row(found: Score) -> tuple[str, ...]:
    paper = f"{found.paper[0]:.1%} / {found.paper[1]:.1%}" if found.paper else ""
    return (found.series, found.method, found.mode, f"{found.mean_ape:.1%}", f"{found.max_ape:.1%}", paper)


def main() -> None:
    """Prints every score."""
    rows: list[tuple[str, ...]] = []
    every = real_series()
    with progress_bar(len(every) * len(METHODS), "forecasts", "series") as bar:
        for series in every:
            for method in METHODS:
                rows += [_row(found) for found in score(series, method)]
                bar.update()
    print_table(
        "Absolute percentage errors of forecasts, second half of each series",
        ["series", "method", "from", "mean APE", "max APE", "paper (not comparable)"],
        rows,
    )


if __name__ == "__main__":
    main()
