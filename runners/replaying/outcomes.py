"""What became of the logged requests: the cost of each, TTFT / SLO + TPOT / SLO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving_gym.envs.interface.slo import SLO
from serving_gym.runners.replaying.log import Log

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Costs of the logged decisions.

    Attributes:
        cost: (N,), cost of the request that each decision was about, at most `most`; NaN: not known.
        most: Highest cost, which a lost request has too.
        capped: Requests at that cost.
        source: Where the costs are from.
        output_tokens: (N,), length of the answer, tokens; 0: not known.
    """

    cost: Floats
    most: float
    capped: int
    source: str
    output_tokens: NDArray[np.int64]


def costs_of(
    ttft_s: Floats, tpot_s: Floats, class_id: NDArray[np.int64], slos: Sequence[SLO], most: float
) -> Floats:
    """TTFT / SLO + TPOT / SLO of each request, (N,), at most `most`.

    Args:
        ttft_s: (N,), s; infinite: the request was lost.
        tpot_s: (N,), s; NaN: an answer of one token.
        class_id: (N,), request class.
        slos: SLO of each class.
        most: Highest cost.
    """
    ttft_slo_s, tpot_slo_s = (np.array([getattr(slo, name) for slo in slos]) for name in ("ttft_s", "tpot_s"))
    cost = ttft_s / ttft_slo_s[class_id] + np.nan_to_num(
        tpot_s / tpot_slo_s[class_id], nan=0.0, posinf=np.inf
    )
    return np.minimum(cost, most)


def recorded_outcomes(log: Log, requests: pd.DataFrame, slos: Sequence[SLO], most: float) -> Outcomes:
    """Costs from `requests.parquet` of the same run.

    Args:
        log: Its decisions.
        requests: Its requests.
        slos: SLO of each class.
        most: Highest cost.
    """
    finished = (requests["outcome"] == "finished").to_numpy()
    first, end = requests["first_token_s"].to_numpy(), requests["finish_s"].to_numpy()
    gaps = requests["generated_tokens"].to_numpy() - 1.0
    ttft_s = np.where(finished, first - requests["arrival_s"].to_numpy(), np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot_s = np.where(finished, np.where(gaps > 0, (end - first) / gaps, np.nan), np.inf)
    cost = costs_of(ttft_s, tpot_s, requests["class_id"].to_numpy(np.int64), slos, most)
    keys = pd.MultiIndex.from_arrays([requests["seed"], requests["index"]])
    found = keys.get_indexer(pd.MultiIndex.from_arrays([log.seed, log.index]))
    known = found >= 0
    output = requests["output_tokens"].to_numpy(np.int64)
    costs = np.where(known, cost[found], np.nan)
    return Outcomes(
        costs, most, int((cost >= most).sum()), "requests.parquet", np.where(known, output[found], 0)
    )


def no_outcomes(log: Log, most: float) -> Outcomes:
    """Costs of decisions that are not about one request: none is known."""
    return Outcomes(np.full(len(log), np.nan), most, 0, "nothing", np.zeros(len(log), np.int64))


def seen_outcomes(log: Log, slos: Sequence[SLO], most: float) -> Outcomes:
    """Costs from the logged states alone, as the requests in flight show them.

    The TTFT of a request is exact if a later state has its first token; else it is the middle of the time between the
    last state in which the request had none and the first one without it. Its TPOT is that of the tokens seen so far.
    Requests in flight in the last state of their episode have no cost unless they have a first token, and neither have
    requests that no later state follows.

    Args:
        log: The decisions.
        slos: SLO of each class.
        most: Highest cost.
    """
    ttft_s, tpot_s = np.full(len(log), np.nan), np.full(len(log), np.nan)
    output = np.zeros(len(log), np.int64)
    for episode in np.unique(log.episode):
        rows = np.flatnonzero(log.episode == episode)
        seen = _seen(log, rows)
        for row in rows:
            found = seen.get(int(log.index[row]))
            if found is not None:
                ttft_s[row], tpot_s[row], output[row] = found
    class_id = np.array([0 if s.request is None else s.request.class_id for s in log.states], np.int64)
    known = ~np.isnan(ttft_s)
    cost = np.where(known, costs_of(np.nan_to_num(ttft_s), tpot_s, class_id, slos, most), np.nan)
    return Outcomes(cost, most, int((cost[known] >= most).sum()), "requests in flight in the states", output)


@dataclass(slots=True)
class _Sight:
    """Of one request, what the states have shown so far."""

    arrival_s: float
    last_s: float  # the last state with it
    ttft_s: float = np.nan
    tpot_s: float = np.nan
    generated: int = 1


def _seen(log: Log, rows: NDArray[np.int64]) -> dict[int, tuple[float, float, int]]:
    """TTFT, TPOT and tokens of the requests of one episode, by index."""
    going: dict[int, _Sight] = {}
    ended: dict[int, tuple[float, float, int]] = {}
    for row in rows:
        state = log.states[row]
        flights = state.in_flight
        there = set(flights["index"].tolist())
        for index in [index for index in going if index not in there]:
            sight = going[index]
            if state.request is not None and state.request.index == index:
                continue  # held, or offered again
            if np.isnan(sight.ttft_s):
                sight.ttft_s = 0.5 * (sight.last_s + state.now_s) - sight.arrival_s
            ended[index] = sight.ttft_s, sight.tpot_s, sight.generated
            del going[index]
        for flight in flights:
            sight = going.setdefault(int(flight["index"]), _Sight(float(flight["arrival_s"]), state.now_s))
            sight.last_s = state.now_s
            if flight["first_token_s"] >= 0:
                sight.ttft_s = float(flight["first_token_s"] - flight["arrival_s"])
                sight.generated = max(int(flight["generated_tokens"]), 1)
                if sight.generated > 1:
                    sight.tpot_s = float(state.now_s - flight["first_token_s"]) / (sight.generated - 1)
        if state.request is not None:
            going.setdefault(state.request.index, _Sight(state.request.arrival_s, state.now_s))
    for index, sight in going.items():
        if not np.isnan(sight.ttft_s):
            ended[index] = sight.ttft_s, sight.tpot_s, sight.generated
    return ended
