"""Section 5.2.1, Table 1: how well the workload predictor and what it is compared with forecast."""

from __future__ import annotations

from typing import Any

from serving_gym.runners.reproduction.claims import Claim, above, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.forecasts import PAPER, RealSeries, Score, real_series, score
from serving_gym.runners.reproduction.preserve.study import make_claim

SECTION = "5.2.1, Table 1"
NEXT, WHOLE = "next", "whole half"
MODES = {
    "mlstm": (NEXT,),
    "prophet": (WHOLE,),
    "arima": (NEXT, WHOLE),
    "ets": (NEXT, WHOLE),
    "last_value": (NEXT,),
}
NAMES = {
    "mlstm": "PreServe",
    "prophet": "Prophet",
    "arima": "ARIMA",
    "ets": "ETS",
    "last_value": "the last value",
}
QUICK = ("mlstm", "prophet", "last_value")
_OTHER_DATA = shown(
    "the windows of ten minutes are not public in one file; ours are read off a figure, at its steps of twenty minutes"
)
_FROM = {NEXT: "each window from those before it", WHOLE: "the second half from the first alone"}


def num_steps(config: ReproduceConfig) -> int:
    """Steps of the progress bar: series and forecasters."""
    return len(_series(config)) * len(_methods(config))


def _methods(config: ReproduceConfig) -> list[str]:
    return list(QUICK if config.quick else MODES)


def _series(config: ReproduceConfig) -> list[RealSeries]:
    """Azure's prompts, as in the table; without `quick` ServeGen's requests too; none without the reference data."""
    try:
        every = real_series()
    except ValueError:
        return []
    azure = [one for one in every if one.service and one.name.endswith("prompt tokens")]
    return azure if config.quick else azure + [one for one in every if not one.service]


def claims(config: ReproduceConfig, bar: Any) -> list[Claim]:
    """Errors of every forecaster, and by how much the predictor's are below Prophet's."""
    found: list[Claim] = []
    for series in _series(config):
        scores: dict[tuple[str, str], Score] = {}
        for method in _methods(config):
            bar.set_postfix_str(f"{series.name}, {method}", refresh=False)
            scores |= {(method, one.mode): one for one in score(series, method, MODES[method])}
            bar.update(1)
        found += [_errors(series, one) for one in scores.values()]
        found.append(_gain(series, scores["prophet", WHOLE], scores["mlstm", NEXT]))
    return found


def _errors(series: RealSeries, one: Score) -> Claim:
    paper = one.paper[0] if one.paper else None
    return make_claim(
        SECTION,
        f"{series.name}: mean error of {NAMES[one.method]}, {_FROM[one.mode]}",
        paper,
        one.mean_ape,
        "share",
        _OTHER_DATA if paper else shown("the paper does not forecast this series, or not in this way"),
        note=f"Largest error {one.max_ape:.1%}" + (f" (paper {one.paper[1]:.1%})." if one.paper else "."),
    )


def _gain(series: RealSeries, prophet: Score, mlstm: Score) -> Claim:
    """Prophet forecasts from the time alone, the predictor from the last windows: so it is in the paper."""
    service = series.service
    paper = PAPER["prophet", service][0] / PAPER["mlstm", service][0] if service else None
    return make_claim(
        SECTION,
        f"{series.name}: mean error of Prophet over PreServe's",
        paper,
        prophet.mean_ape / mlstm.mean_ape,
        "x",
        above() if service else shown("the paper does not forecast this series"),
        beyond="See the errors of both.",
    )
