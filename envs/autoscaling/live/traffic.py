"""Traffic in time bins, from the books of a live run: the columns of `TRAFFIC_DTYPE`, as the simulator counts them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.metrics import FINISHED, UNFINISHED
from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE, Traffic
from serving_gym.envs.live.ledger import Ledger

FloatArray = NDArray[np.float64]


@dataclass
class RunningTime:
    """How many servers were in service, as it changed.

    Attributes:
        times_s: (K,) when.
        counts: (K,) from then on.
    """

    times_s: list[float]
    counts: list[int]

    def note(self, now_s: float, count: int) -> None:
        """The number now."""
        if not self.counts or self.counts[-1] != count:
            self.times_s.append(now_s)
            self.counts.append(count)

    def means(self, edges_s: FloatArray) -> FloatArray:
        """(T,) means over bins between (T + 1,) edges."""
        if not self.counts:
            return np.zeros(len(edges_s) - 1)
        steps = np.diff(np.array([0, *self.counts], np.float64))
        served_s = (np.maximum(edges_s[:, None] - np.array(self.times_s), 0.0) * steps).sum(axis=1)
        return np.asarray(np.diff(served_s) / np.diff(edges_s))


def traffic_of(
    ledger: Ledger, interactive: NDArray[np.bool_], running: RunningTime, bin_s: float, now_s: float
) -> Traffic:
    """Bins since the run began that have ended.

    Args:
        ledger: Books of the run, of one endpoint.
        interactive: (C,) which classes are.
        running: Servers in service.
        bin_s: Length of a bin, s.
        now_s: Seconds since the run began.
    """
    count = int(now_s // bin_s)
    edges_s = np.asarray(bin_s * np.arange(count + 1), np.float64)
    bins = np.zeros(count, TRAFFIC_DTYPE)
    if not count:
        return Traffic(bin_s, 0.0, bins)
    rows = ledger.here
    workload, own = ledger.workload, interactive[ledger.workload.class_id[rows]]
    arrival_s, first_s = ledger.arrival_s[rows], ledger.first_token_s[rows]
    end_s = np.where(ledger.outcome[rows] == UNFINISHED, np.inf, ledger.end_s[rows])

    def book(
        name: str, when_s: FloatArray, which: NDArray[np.bool_], amounts: FloatArray | None = None
    ) -> None:
        """Adds to the bins that times fall into; a time that is not a number or infinite falls into none."""
        number = np.floor(np.where(which & np.isfinite(when_s), when_s, -bin_s) / bin_s).astype(np.int64)
        into = (number >= 0) & (number < count)
        weights = None if amounts is None else amounts[into]
        bins[name] += np.bincount(number[into], weights, count)

    generated = ledger.generated[rows].astype(np.float64)
    prompts = workload.input_tokens[rows].astype(np.float64)
    for prefix, which in (("", own), ("niw_", ~own)):
        book(f"{prefix}requests", arrival_s, which)
        book(f"{prefix}input_tokens", arrival_s, which, prompts)
        book(f"{prefix}output_tokens", end_s, which, generated)
    ttft_slo_s, tpot_slo_s = (
        np.array([getattr(slo, name) for slo in ledger.slos])[workload.class_id[rows]]
        for name in ("ttft_s", "tpot_s")
    )
    done = ledger.outcome[rows] == FINISHED
    ttft_s, tpot_s = first_s - arrival_s, (end_s - first_s) / np.maximum(generated - 1, 1)
    late = ttft_s > ttft_slo_s
    book("first_tokens", first_s, own)
    book("ttft_sum_s", first_s, own, ttft_s)
    book("finished", end_s, own & done)
    book("tpot_sum_s", end_s, own & done, tpot_s)
    book("violations", first_s, own & late)
    book("violations", end_s, own & ~late & ~(done & (tpot_s <= tpot_slo_s)))
    inside_s = np.where(np.isfinite(end_s), end_s, now_s)
    spent_s = (
        np.clip(edges_s[:, None] - arrival_s, 0.0, None) - np.clip(edges_s[:, None] - inside_s, 0.0, None)
    ).sum(axis=1)
    bins["mean_concurrency"] = np.diff(spent_s) / bin_s
    bins["mean_instances"] = running.means(edges_s)
    return Traffic(bin_s, float(edges_s[-1]), bins)


def with_past(past: NDArray[np.void], present: Traffic) -> Traffic:
    """Traffic since the run began behind that of the days before.

    Args:
        past: (T,) TRAFFIC_DTYPE, bins of the same length that end where the run begins.
        present: Bins since.
    """
    return Traffic(present.bin_s, present.end_s, np.concatenate([past, present.rows]))
