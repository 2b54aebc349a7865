"""Sections 5.1 and 6.3: errors of forecasters, on the real series that can be had, else on a fitted one.

The paper's series, requests of four types a minute over two weeks, is not public. What is: Azure's week of 2024 by
service, read off a figure (one point in 7.2 minutes), and, where that is not at hand, minutes of the fitted workload
with its mixes. Services stand for types.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baselines.oserve.forecast import Forecaster, MovingAverage, forecasts, rrmse, split
from baselines.oserve.lstm import LstmConfig, TotalLstm, TypeLstm
from envs.deployment.workload_types import count_by_span
from envs.workload.seeding import stream
from envs.workload.traces import DATA_VARIABLE
from envs.workload.type_mix import TypeMix
from runners.reproduction.claims import Claim, Rule, shown
from runners.reproduction.oserve.study import make_claim
from runners.schema import ReproduceConfig

FILE = "azure_llm_2024_week_requests_digitised.csv.gz"
SERVICES = ("code", "conv")
LSTM_RRMSE, AVERAGE_RRMSE, TOTAL_RRMSE = 0.05045, 0.43375, 0.40
_QUICK = LstmConfig(history=20, epochs=3)
_FITTED_MINUTES = 1000

FloatArray = NDArray[np.float64]


def num_steps(config: ReproduceConfig) -> int:
    """Steps of the progress bar."""
    return 3


def claims(config: ReproduceConfig, bar: Any) -> list[Claim]:
    """Error of each forecaster, mean over types, on the last tenth of the series."""
    series, what = find_series(config.first_seed)
    lstm = _QUICK if config.quick else LstmConfig()
    errors = {}
    forecasters: dict[str, Forecaster] = {
        "type LSTM": TypeLstm(lstm, config.first_seed),
        "total LSTM": TotalLstm(lstm, config.first_seed),
        "moving average": MovingAverage(lstm.history),
    }
    for name, forecaster in forecasters.items():
        errors[name] = error_of(forecaster, series)
        bar.update(1)
    why = shown("not the paper's trace")
    note = f"RRMSE, mean over types, last tenth. {what} {len(series)} points."
    stated = {"type LSTM": LSTM_RRMSE, "total LSTM": TOTAL_RRMSE, "moving average": AVERAGE_RRMSE}
    section = {"type LSTM": "5.1", "total LSTM": "6.3", "moving average": "6.3"}
    rows = [
        make_claim(
            section[name], f"error of the {name}", stated[name], float(error.mean()), "ratio", why, note=note
        )
        for name, error in errors.items()
    ]
    better = Rule("above 1: the LSTM by type errs less", lambda ours: ours > 1.0)
    for name in ("moving average", "total LSTM"):
        ratio = float(errors[name].mean() / errors["type LSTM"].mean())
        rows.append(
            make_claim(
                "6.3",
                f"error of the {name} over that of the type LSTM",
                stated[name] / LSTM_RRMSE,
                ratio,
                "x",
                better,
                note=note,
                beyond="On this series neighbouring points are as good a forecast as any network finds.",
            )
        )
    return rows


def error_of(forecaster: Forecaster, series: FloatArray) -> FloatArray:
    """(J,), RRMSE on the last tenth of a series, (T, J), of a forecaster fitted to the rest."""
    past, ahead = split(series, forecaster.history)
    forecaster.fit(past)
    return rrmse(forecasts(forecaster, ahead), ahead[forecaster.history :])


def find_series(seed: int) -> tuple[FloatArray, str]:
    """(T, J) counts, and what they are."""
    data = os.environ.get(DATA_VARIABLE)
    places = [Path(data) / FILE, Path(data) / "traces" / FILE] if data else []
    path = next((place for place in places if place.is_file()), None)
    if path is not None:
        import pandas as pd

        table = pd.read_csv(path)
        columns = [table[table.service == name].requests_per_min.to_numpy(float) for name in SERVICES]
        length = min(map(len, columns))
        return (
            np.stack([column[:length] for column in columns], axis=1),
            "Azure's week of 2024, code and conversation, digitised.",
        )
    traffic = TypeMix(mean_rps=5.0)
    requests = int(traffic.mean_rps * 60 * _FITTED_MINUTES)
    rng = stream(seed, TypeMix.name, "series")
    arrival_s, labels = traffic.labelled_arrivals(requests, rng)
    counts = count_by_span(arrival_s, labels, 4, until_s=float(arrival_s[-1]))
    return counts, "A fitted workload with the mixes S1, S4, S5 of Table 1, minutes."
