"""Section 3.2.2, Figure 4: what happens on each of four instances, second by second, under LR and MU (and PreServe).

`timelines.csv` in the run directory has every second of every instance. What the text reads off the figure, that one
instance is overloaded while another has room, becomes a share of the seconds.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from serving_gym.envs.interface.metrics import FloatArray, RequestRecords
from serving_gym.runners.reproduction.claims import Claim, above, shown
from serving_gym.runners.reproduction.preserve.study import (
    DURATION_S,
    LEAST_REQUEST,
    MINIMUM_USE,
    PRESERVE,
    Study,
    make_claim,
)
from serving_gym.runners.reproduction.trials import compose_setting

SECTION = "3.2.2, Figure 4"
FILE_NAME = "timelines.csv"
RATE_RPS = 9.5  # paper, "corresponding to the overload boundary"
POLICIES = (LEAST_REQUEST, MINIMUM_USE, PRESERVE)  # the figure has the first two
OVERLOADED, ROOM = 0.95, 0.80  # KV usage: paper, sections 4.3.2 and 4.3.3
_STEP_S = 1.0


@dataclass(frozen=True, eq=False)
class Timeline:
    """Load of P instances at T times.

    Attributes:
        time_s: (T,).
        queued_tokens: (P, T) prompt tokens of requests that have no first token.
        kv_usage: (P, T) tokens of requests between first and last token, over the capacity.
        normalised_s: (P, T) normalised latency of the requests that came in the last step, mean; NaN: none came.
    """

    time_s: FloatArray
    queued_tokens: FloatArray
    kv_usage: FloatArray
    normalised_s: FloatArray

    @property
    def unbalanced(self) -> float:
        """Share of the times at which one instance is overloaded and another has room."""
        return float(((self.kv_usage.max(axis=0) > OVERLOADED) & (self.kv_usage.min(axis=0) < ROOM)).mean())

    @property
    def spread(self) -> float:
        """KV usage of the fullest instance less that of the emptiest, mean over time."""
        return float(np.ptp(self.kv_usage, axis=0).mean())


def timeline(records: RequestRecords, capacity_tokens: FloatArray, end_s: float) -> Timeline:
    """Loads by a second, from when each request came, began and ended and where.

    Answers grow evenly from the first token to the last.

    Args:
        records: Of an episode.
        capacity_tokens: (P,) KV tokens of each instance.
        end_s: Until when.
    """
    time_s = np.arange(_STEP_S, end_s + 1e-9, _STEP_S)
    shape = len(capacity_tokens), len(time_s)
    queued, used, latency = np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
    normalised = records.e2e_s / records.output_tokens
    for place, capacity in enumerate(capacity_tokens):
        here = np.flatnonzero((records.engine == place) & np.isfinite(records.finish_s))
        arrival, first, last = (
            x[here, None] for x in (records.arrival_s, records.first_token_s, records.finish_s)
        )
        inputs, outputs = records.input_tokens[here, None], records.output_tokens[here, None]
        queued[place] = (inputs * ((arrival <= time_s) & (time_s < first))).sum(axis=0)
        grown = outputs * np.clip((time_s - first) / np.maximum(last - first, 1e-9), 0.0, 1.0)
        used[place] = ((inputs + grown) * ((first <= time_s) & (time_s < last))).sum(axis=0) / capacity
        step = np.minimum((records.arrival_s[here] // _STEP_S).astype(np.int64), len(time_s) - 1)
        counts = np.bincount(step, minlength=len(time_s))
        sums = np.bincount(step, normalised[here], minlength=len(time_s))
        latency[place, counts > 0] = sums[counts > 0] / counts[counts > 0]
    return Timeline(time_s, queued, used, latency)


def num_episodes() -> int:
    """Steps of the progress bar."""
    return len(POLICIES)


def claims(study: Study) -> list[Claim]:
    """One instance overloaded beside one with room; writes the timelines."""
    rate_rps = study.rate_of(RATE_RPS)
    env: Any = compose_setting(study.setting).environment.make().unwrapped
    env.reset(seed=study.config.first_seed)
    capacity = env.policy_spec.fleet.kv_capacity_tokens.astype(np.float64)
    lines = {
        name: timeline(study.records(name, rate_rps)[0], capacity, study.requests_at(rate_rps) / rate_rps)
        for name in POLICIES
    }
    _write(Path(study.config.out), lines)
    note = (
        f"{rate_rps:.1f} requests/s for {min(DURATION_S, study.requests_at(rate_rps) / rate_rps):.0f} s, first seed; "
        f"timelines in {FILE_NAME}."
    )
    found = []
    for name, one in lines.items():
        stated = name in (LEAST_REQUEST, MINIMUM_USE)
        found += [
            make_claim(
                SECTION, f"{name}: share of seconds with an instance above 95 % of its KV and another below 80 %", None,
                one.unbalanced, "share",
                above(0.0) if stated else shown("the figure has LR and MU alone"), note=note,
            ),
            make_claim(
                SECTION, f"{name}: KV usage of the fullest instance less that of the emptiest, mean", None, one.spread,
                "share", shown("the figure has no numbers in the text"), note=note,
            ),
        ]  # fmt: skip
    return found


def _write(out: Path, lines: dict[str, Timeline]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / FILE_NAME).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("policy", "time_s", "instance", "queued_tokens", "kv_usage", "normalised_latency_s"))
        writer.writerows(_rows(lines))


def _rows(lines: dict[str, Timeline]) -> Iterator[tuple[str, float, int, int, float, float]]:
    for name, one in lines.items():
        for place, step in np.ndindex(one.kv_usage.shape):
            values = (one.queued_tokens, one.kv_usage, one.normalised_s)
            queued, usage, latency = (float(value[place, step]) for value in values)
            yield name, float(one.time_s[step]), place, round(queued), round(usage, 4), round(latency, 4)
