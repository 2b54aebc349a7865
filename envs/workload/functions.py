"""Many models invoked like serverless functions: rarely, and in bursts.

The recipe of ServerlessLLM and LLM-Mesh (section 8.1): each model is mapped to a function of the Azure Functions trace
of 2019, whose first 30 minutes are taken; the lengths of requests are those of Azure's chat service. Two sources:
`functions_2019` reads both traces, `functions_fitted` draws functions from coefficients that
`envs.workload.functions_fit` has found in them and that ship with this package. The trace gives invocations a minute;
inside the minute they are spread uniformly. Every split draws functions anew; one learns on `functions_fitted`, whose
functions are none of the trace's.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.fields import check_at_least, check_within
from serving_gym.envs.workload.generators import load_fitted
from serving_gym.envs.workload.schema import TokenArray, Workload
from serving_gym.envs.workload.traces import DATA_VARIABLE, cached_trace, find_trace

MINUTES_FILE = "azure_functions_2019_invocations_1min.parquet"
FITTED_FILE = Path(__file__).parent / "functions.json"
WHOLE = 1_000_000  # requests: no limit but the time
_MINUTE_S = 60.0
_LENGTHS = "azure_conv_fitted"
_LENGTHS_TRACE = "azure_conv"

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class FunctionTraffic:
    """Invocations of some models over some minutes.

    Attributes:
        num_models: models, each mapped to a function drawn uniformly from those invoked at all. Source: 32, 64 and 128,
            LLM-Mesh, section 8.1.
        sizes: architectures of the models, by name in `calibration.models`.
        ratio: models of each size, relative. Source: section 8.4 has 4:1:1, 2:1:1, ..., 1:1:4 of 3B, 7B and 13B.
        minutes: length, at most 30 for `functions_fitted`.
        first_minute: of the trace's day, for `functions_2019`.
        max_tokens: longest sequence; longer prompts lose their beginning. Source: section 5.2, Llama-2.
        largest_share: most of an episode's requests that one function may have; invocations beyond it are left out at
            random. 1: no limit. Source: ours.
        popularity: functions are those at this share of all that are invoked, the most invoked first (0.01: the 1st
            percentile, LLM-Mesh, section 3.2) and the next ones; None: drawn uniformly.
    """

    num_models: int = 64
    sizes: tuple[str, ...] = ("llama-2-7b",)
    ratio: tuple[int, ...] = (1,)
    minutes: int = 30
    first_minute: int = 0
    max_tokens: int = 4096
    largest_share: float = 1.0
    popularity: float | None = None

    name = "functions"

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_models", "minutes")
        check_within(self, "(0, 1]", "largest_share")
        check_within(self, "[0, 1)", "popularity")
        if not self.sizes or len(self.sizes) != len(self.ratio):
            raise ValueError(
                f"ratio must have an entry for each of sizes {list(self.sizes)}, got {self.ratio}"
            )
        if min(self.ratio) < 0 or sum(self.ratio) < 1:
            raise ValueError(f"ratio must not be negative, and not all zero, got {list(self.ratio)}")
        if self.max_tokens <= _max_output():
            raise ValueError(
                f"max_tokens must be above the longest answer, {_max_output()}, got {self.max_tokens}"
            )

    @property
    def num_requests(self) -> int:
        """All requests that arrive in the time."""
        return WHOLE

    @property
    def classes(self) -> tuple[str, ...]:
        """One class."""
        return ("standard",)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models: their size, # and a number; sizes alternate in their ratio, whatever the seed."""
        given = np.zeros(len(self.ratio))
        names = []
        for number in range(self.num_models):
            due = np.array(self.ratio) * (number + 1) / sum(self.ratio) - given
            size = int(due.argmax())
            given[size] += 1
            names.append(f"{self.sizes[size]}#{number}")
        return tuple(names)

    @property
    def max_input_tokens(self) -> int:
        """Longest prompt, tokens."""
        return self.max_tokens - 1

    @property
    def max_output_tokens(self) -> int:
        """Longest answer, tokens."""
        return _max_output()

    @property
    def rate_rps(self) -> float:
        """Mean arrival rate, requests per second."""
        return self.num_models * self._mean_invocations() / (self.minutes * _MINUTE_S)

    def sample(self, num_requests: int, rng: np.random.Generator) -> Workload:
        """Draws a workload: all requests that arrive in the time, or the first ones."""
        which, inside, lengths = rng.spawn(3)
        counts = self._counts(which)
        while not counts.any():
            counts = self._counts(which)
        if self.largest_share < 1.0:
            counts = limited(counts, self.largest_share, which)
        model, minute = (np.repeat(rows, counts[counts > 0]) for rows in np.nonzero(counts))
        arrival_s = (minute + inside.random(len(model))) * _MINUTE_S
        order = np.argsort(arrival_s, kind="stable")
        inputs, outputs = self._drawn_lengths(len(model), lengths)
        inputs = np.clip(inputs, 1, self.max_tokens - outputs)
        return Workload(
            arrival_s=arrival_s[order],
            input_tokens=inputs,
            output_tokens=outputs,
            max_output_tokens=np.minimum(self.max_tokens - inputs, self.max_output_tokens),
            model_id=model[order].astype(np.int32),
            models=self.models,
            name=self.name,
            provenance=self._provenance(),
        ).head(num_requests)

    def _counts(self, rng: np.random.Generator) -> Counts:
        """Invocations of each model in each minute, (num_models, minutes)."""
        raise NotImplementedError

    def _drawn_lengths(self, n: int, rng: np.random.Generator) -> tuple[TokenArray, TokenArray]:
        """Prompt and answer lengths, (n,) tokens each."""
        raise NotImplementedError

    def _mean_invocations(self) -> float:
        """Of a function in `minutes`."""
        raise NotImplementedError

    def _provenance(self) -> str:
        raise NotImplementedError


def limited(counts: Counts, share: float, rng: np.random.Generator) -> Counts:
    """Invocations of which no function has more than a share, others being left out at random.

    Args:
        counts: (functions, minutes).
        share: Most that one may have, of those that remain. Where there are too few functions for it, each keeps one.
        rng: Draws what is left out.
    """
    totals = counts.sum(axis=1)
    low, high = 1, int(totals.max())
    while low < high:  # the most that leaves the share: what is left grows by less than its limit
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if middle <= share * np.minimum(totals, middle).sum() else (low, middle - 1)
        )
    kept = counts.copy()
    for row in np.flatnonzero(totals > low):
        kept[row] = rng.multivariate_hypergeometric(counts[row], low, method="marginals")
    return kept


def _max_output() -> int:
    return load_fitted(_LENGTHS).max_output_tokens


# -- the trace ---------------------------------------------------------------------------------------------------------


class TracedFunctions(FunctionTraffic):
    """Functions of the trace, drawn without replacement from those invoked in the given minutes.

    Raises:
        ValueError: the data are not on this machine, or hold fewer functions.
    """

    name = "functions_2019"

    def _table(self) -> Counts:
        day = minute_counts()
        window = day[:, self.first_minute : self.first_minute + self.minutes]
        if window.shape[1] < self.minutes:
            raise ValueError(
                f"first_minute + minutes must be at most {day.shape[1]}, got {self.first_minute} + {self.minutes}"
            )
        active: Counts = window[window.any(axis=1)]
        if len(active) < self.num_models:
            raise ValueError(
                f"num_models must be at most the {len(active)} functions invoked, got {self.num_models}"
            )
        return active

    def _counts(self, rng: np.random.Generator) -> Counts:
        table = self._table()
        if self.popularity is None:
            return table[rng.choice(len(table), self.num_models, replace=False)]
        first = min(int(self.popularity * len(table)), len(table) - self.num_models)
        order = np.argsort(-table.sum(axis=1), kind="stable")
        return table[order[first : first + self.num_models]]

    def _drawn_lengths(self, n: int, rng: np.random.Generator) -> tuple[TokenArray, TokenArray]:
        trace = cached_trace(_LENGTHS_TRACE)
        rows = rng.integers(len(trace), size=n)
        return trace.input_tokens[rows], trace.output_tokens[rows]

    def _mean_invocations(self) -> float:
        table = self._table()
        return float(table.sum()) / len(table)

    def _provenance(self) -> str:
        return "Azure Functions 2019 (CC-BY-4.0, Shahrad et al., ATC 2020), sampled by vhive-serverless/invitro (MIT)"


def minute_counts() -> Counts:
    """Invocations of each function in each minute of the trace's day, (functions, 1440).

    Raises:
        ValueError: the data are not on this machine.
    """
    folder = os.environ.get(DATA_VARIABLE)
    places = [Path(folder) / "traces" / MINUTES_FILE, Path(folder) / MINUTES_FILE] if folder else []
    found = next((place for place in places if place.is_file()), None)
    if found is None or find_trace(_LENGTHS_TRACE) is None:
        raise ValueError(
            f"workload 'functions_2019' needs {MINUTES_FILE} and azure_conv: point ${DATA_VARIABLE} at a folder that "
            "holds them, or take workload=functions_fitted, which needs no data"
        )
    return _counts_in(found)


@lru_cache(maxsize=1)
def _counts_in(path: Path) -> Counts:
    import pandas as pd

    rows = pd.read_parquet(path)
    names, index = np.unique(rows["func_id"].to_numpy(), return_inverse=True)
    counts = np.zeros((len(names), 1440), np.int64)
    counts[index, rows["minute"].to_numpy()] = rows["count"].to_numpy()
    return counts


# -- the fit -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FunctionFit:
    """Fitted invocation patterns of functions in half an hour, in B bands of the count.

    Attributes:
        levels: (K,), levels of the quantiles of the count, from 0 to 1.
        counts: (K,), invocations of a function that is invoked at all.
        bands: (B,), least count of each band, rising from 1.
        periodic: (B,), share of functions that are invoked at even distances.
        share_levels: (L,), levels of the quantiles of the active share.
        active_share: (B, L), of the others: active minutes over the most there could be.
        stickiness: (B,), of the others: how often the minute after an active one is active.
        concentration: (B,), of the others: of the Dirichlet weights by which what is more than one a minute is spread.
        provenance: Where it comes from.
        fit: Distances between drawn functions and the trace.
    """

    levels: tuple[float, ...]
    counts: tuple[float, ...]
    bands: tuple[int, ...]
    periodic: tuple[float, ...]
    share_levels: tuple[float, ...]
    active_share: tuple[tuple[float, ...], ...]
    stickiness: tuple[float, ...]
    concentration: tuple[float, ...]
    provenance: str
    fit: dict[str, float]

    def draw(
        self,
        num_functions: int,
        rng: np.random.Generator,
        minutes: int = 30,
        popularity: float | None = None,
    ) -> Counts:
        """Invocations in each minute of half an hour, (num_functions, 30); only the first `minutes` of it are given.

        Args:
            num_functions: Functions.
            rng: Draws them.
            minutes: Of the half hour.
            popularity: Share of all functions that are invoked more often than each of these; None: drawn.
        """
        at = rng.random(num_functions) if popularity is None else np.full(num_functions, 1.0 - popularity)
        totals = np.maximum(np.rint(np.interp(at, self.levels, self.counts)), 1)
        streams = rng.spawn(num_functions)
        rows = [self._function(int(n), own) for n, own in zip(totals, streams, strict=True)]
        return np.array(rows)[:, :minutes]

    def _function(self, total: int, rng: np.random.Generator) -> Counts:
        """(30,), invocations of one function."""
        band = int(np.searchsorted(self.bands, total, side="right")) - 1
        if rng.random() < self.periodic[band]:
            return _evenly(total, rng)
        most = min(total, 30)
        share = float(np.interp(rng.random(), self.share_levels, self.active_share[band]))
        active = _runs(min(max(round(share * most), 1), most), self.stickiness[band], rng)
        counts = np.zeros(30, np.int64)
        counts[active] = 1
        weights = rng.gamma(self.concentration[band], size=len(active)) + 1e-12
        counts[active] += rng.multinomial(total - len(active), weights / weights.sum())
        return counts


def _evenly(total: int, rng: np.random.Generator) -> Counts:
    """(30,), as even a series as there is, from a random beginning."""
    edges = np.floor((np.arange(31) / 30 * total) + rng.random())
    return np.diff(edges).astype(np.int64)


def _runs(active: int, stickiness: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """(active,), minutes in runs whose number follows from how often an active minute follows another."""
    idle = 30 - active
    runs = min(1 + int(rng.binomial(active - 1, 1.0 - stickiness)) if active > 1 else 1, idle + 1)
    lengths = 1 + _parts(active - runs, runs, rng)
    gaps = _parts(idle - (runs - 1), runs + 1, rng)
    gaps[1:-1] += 1
    begins = np.cumsum(gaps[:-1]) + np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return np.concatenate([np.arange(b, b + n) for b, n in zip(begins, lengths, strict=True)])


def _parts(total: int, parts: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(parts,), numbers from 0 that add up to `total`, all ways equally likely."""
    cuts = np.sort(rng.choice(total + parts - 1, parts - 1, replace=False))
    return np.diff(np.concatenate([[-1], cuts, [total + parts - 1]])) - 1


@lru_cache(maxsize=1)
def load_function_fit() -> FunctionFit:
    """The fit that ships with the package."""
    values: dict[str, Any] = json.loads(FITTED_FILE.read_text(encoding="utf-8"))
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    values["active_share"] = tuple(tuple(row) for row in values["active_share"])
    return FunctionFit(**values)


class FittedFunctions(FunctionTraffic):
    """Functions drawn from the fit; no data are needed."""

    name = "functions_fitted"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minutes > 30:
            raise ValueError(
                f"minutes must be at most 30, for which functions were fitted, got {self.minutes}"
            )
        if self.first_minute:
            raise ValueError(
                f"first_minute is of the trace; functions_fitted has none, got {self.first_minute}"
            )

    def _counts(self, rng: np.random.Generator) -> Counts:
        return load_function_fit().draw(self.num_models, rng, self.minutes, self.popularity)

    def _drawn_lengths(self, n: int, rng: np.random.Generator) -> tuple[TokenArray, TokenArray]:
        return load_fitted(_LENGTHS).lengths(n, *rng.spawn(2))

    def _mean_invocations(self) -> float:
        fit = load_function_fit()
        levels, counts = np.array(fit.levels), np.array(fit.counts)
        mean = float((np.diff(levels) * (counts[1:] + counts[:-1]) / 2).sum())
        return mean * self.minutes / 30

    def _provenance(self) -> str:
        return f"generated; {load_function_fit().provenance}"
