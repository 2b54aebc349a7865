"""Sections 5.1 and 6.3: errors of forecasters, on the real series that can be had, else on a fitted one.

The paper's series, requests of four types a minute over two weeks, is not public. What is: Azure's week of 2024 by
service, read off a figure (one point in 7.2 minutes), and ServeGen's ten days of Alibaba's models, requests in windows
of ten minutes. Services stand for types in the first; in the second a client's requests are of the type that its mean
prompt and answer say, short or long beside the median client's. Where neither is at hand, minutes of the fitted
workload with its mixes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.oserve.forecast import Forecaster, MovingAverage, forecasts, rrmse, split
from serving_gym.baselines.oserve.lstm import LstmConfig, TotalLstm, TypeLstm
from serving_gym.envs.deployment.workload_types import count_by_span
from serving_gym.envs.workload.seeding import stream
from serving_gym.envs.workload.traces import DATA_VARIABLE
from serving_gym.envs.workload.type_mix import TypeMix
from serving_gym.runners.reproduction.claims import Claim, Rule, at_most, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.oserve.study import make_claim

FILE = "azure_llm_2024_week_requests_digitised.csv.gz"
SERVICES = ("code", "conv")
LSTM_RRMSE, AVERAGE_RRMSE, TOTAL_RRMSE = 0.05045, 0.43375, 0.40
_FORECASTERS = ("type LSTM", "total LSTM", "moving average")
_SECTIONS, _STATED = ("5.1", "6.3", "6.3"), (LSTM_RRMSE, TOTAL_RRMSE, AVERAGE_RRMSE)
SERVEGEN_RATES, SERVEGEN_LENGTHS = "servegen_client_rates_10min.parquet", "servegen_length_quantiles.parquet"
SERVEGEN_MODELS = ("m-large", "m-mid", "m-small")
_WINDOW_S = 600
_QUICK = LstmConfig(history=20, epochs=3)
_FITTED_MINUTES = 1000
PREDICTION_S, _TIMED = 0.030, 20

FloatArray = NDArray[np.float64]


def num_steps(config: ReproduceConfig) -> int:
    """Steps of the progress bar: a forecaster on a series."""
    return len(_FORECASTERS) * len(find_all(config))


def claims(config: ReproduceConfig, bar: Any) -> list[Claim]:
    """Error of each forecaster, mean over types, on the last tenth of each series."""
    return [
        claim
        for number, (series, what) in enumerate(find_all(config))
        for claim in _claims(config, bar, series, what, "" if number == 0 else f", {what.split(',')[0]}")
    ]


def _claims(config: ReproduceConfig, bar: Any, series: FloatArray, what: str, where: str) -> list[Claim]:
    lstm = _QUICK if config.quick else LstmConfig()
    errors = {}
    forecasters: dict[str, Forecaster] = {
        "type LSTM": TypeLstm(lstm, config.first_seed),
        "total LSTM": TotalLstm(lstm, config.first_seed),
        "moving average": MovingAverage(lstm.history),
    }
    for name, forecaster in forecasters.items():
        errors[name] = error_of(forecaster, series)
        if name == "type LSTM":
            took_s = _time_s(forecaster, series)
        bar.update(1)
    errors["last value"] = error_of(MovingAverage(1), series)
    why = shown("not the paper's trace")
    section, stated = (
        dict(zip(_FORECASTERS, _SECTIONS, strict=True)),
        dict(zip(_FORECASTERS, _STATED, strict=True)),
    )
    rows = []
    for name in _FORECASTERS:
        error = errors[name]
        by_type = ", ".join(f"{value:.3f}" for value in error)
        note = f"RRMSE, mean over types, last tenth. {what} {len(series)} points. By type: {by_type}."
        rows.append(
            make_claim(
                section[name],
                f"error of the {name}{where}",
                stated[name],
                float(error.mean()),
                "ratio",
                why,
                note=note,
            )
        )
    better = Rule("above 1: the LSTM by type errs less", lambda ours: ours > 1.0)
    rows += [
        make_claim(
            "6.3",
            f"error of the {name} over that of the type LSTM{where}",
            stated[name] / LSTM_RRMSE,
            float(errors[name].mean() / errors["type LSTM"].mean()),
            "x",
            better,
            note=f"{what} {len(series)} points.",
        )
        for name in ("moving average", "total LSTM")
    ]
    rows.append(
        make_claim(
            "5.1",
            f"error of the last value over that of the type LSTM{where}",
            None,
            float(errors["last value"].mean() / errors["type LSTM"].mean()),
            "x",
            shown("the paper has no number"),
            note=f"{what} {len(series)} points.",
        )
    )
    rows.append(
        make_claim(
            "5.1",
            f"a prediction of all types takes{where}",
            PREDICTION_S,
            took_s,
            "s",
            at_most(PREDICTION_S, 0.0, least=0.0),
            note=f"Mean of {_TIMED} on one core.",
        )
    )
    return rows


def _time_s(forecaster: Forecaster, series: FloatArray) -> float:
    """What a prediction takes, seconds."""
    begun = time.perf_counter()
    for _ in range(_TIMED):
        forecaster.predict(series)
    return (time.perf_counter() - begun) / _TIMED


def error_of(forecaster: Forecaster, series: FloatArray) -> FloatArray:
    """(J,), RRMSE on the last tenth of a series, (T, J), of a forecaster fitted to the rest."""
    past, ahead = split(series, forecaster.history)
    forecaster.fit(past)
    return rrmse(forecasts(forecaster, ahead), ahead[forecaster.history :])


def find_all(config: ReproduceConfig) -> list[tuple[FloatArray, str]]:
    """Every series, (T, J), and what it is."""
    return [
        find_series(config.first_seed),
        *servegen_series(SERVEGEN_MODELS[:1] if config.quick else SERVEGEN_MODELS),
    ]


def _find(name: str) -> Path | None:
    """A file of the reference data."""
    data = os.environ.get(DATA_VARIABLE)
    places = [Path(data) / name, Path(data) / "traces" / name] if data else []
    return next((place for place in places if place.is_file()), None)


def servegen_series(models: Sequence[str]) -> list[tuple[FloatArray, str]]:
    """Requests of each type in windows of ten minutes, by model; nothing without the data.

    Args:
        models: Of the language models.
    """
    rates, lengths = _find(SERVEGEN_RATES), _find(SERVEGEN_LENGTHS)
    if rates is None or lengths is None:
        return []
    import pandas as pd

    rate, length = pd.read_parquet(rates), pd.read_parquet(lengths)
    found = []
    for model in models:
        means = length[length.model == model].groupby(["client_id", "field"])["mean"].mean().unstack()
        means = means[["input_tokens", "output_tokens"]].dropna()
        long = means > means.median()
        label = 2 * (~long.output_tokens).astype(int) + long.input_tokens.astype(
            int
        )  # in the order of Table 1
        own = rate[(rate.model == model) & rate.client_id.isin(label.index)]
        counts = np.zeros((int(own.t_s.max()) // _WINDOW_S + 1, 4))
        places = (own.t_s // _WINDOW_S).to_numpy(int), label.loc[own.client_id].to_numpy(int)
        np.add.at(counts, places, own.rate_rps.to_numpy(float) * _WINDOW_S)
        collected = np.flatnonzero(counts.sum(axis=1) > 0)
        held = collected[np.searchsorted(collected, np.arange(len(counts)), side="right") - 1]
        found.append((counts[held], f"ServeGen {model}, requests of four types in 10 min."))
    return found


def find_series(seed: int) -> tuple[FloatArray, str]:
    """(T, J) counts, and what they are."""
    path = _find(FILE)
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
