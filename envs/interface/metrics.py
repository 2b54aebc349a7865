"""Request records, and metrics computed from them.

Every request that arrived counts. A request that was refused, failed or has not finished misses its
SLO, is infinite in percentiles, and is excluded only from means, as their names say (`*_mean_finished_s`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.slo import SLO

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]

# Outcomes of a request.
FINISHED, REFUSED, FAILED, UNFINISHED, ABANDONED = range(5)
OUTCOME_NAMES = ("finished", "refused", "failed", "unfinished", "abandoned")

# Why a request ended so. Of a finished one vLLM's finish reason: it has all its tokens, or the limit was reached.
NO_REASON, STOP, LENGTH, TOO_LONG, PATIENCE, TIMEOUT = range(6)
REASON_NAMES = ("", "stop", "length", "prompt longer than max_model_len", "patience", "request_timeout_s")

PERCENTILES = (50, 90, 99)
_PEAK_BIN_S = 1.0
_AT_ONCE_S = 1e-6  # tokens closer together than this count as simultaneous


@dataclass(frozen=True, eq=False)
class RequestRecords:
    """Records of every request that has arrived, one row each, in order of arrival.

    Attributes:
        index: (N,), row in the workload.
        arrival_s: (N,), seconds since the episode began, as the other times; NaN: it did not happen.
        input_tokens: (N,), prompt length.
        output_tokens: (N,), requested output tokens.
        class_id: (N,), request class.
        priority: (N,), the lower value is served first.
        first_scheduled_s: (N,), time when an engine first scheduled it.
        first_token_s: (N,), time of its first token.
        finish_s: (N,), time of its last token.
        generated_tokens: (N,), generated tokens.
        preemptions: (N,), times it was preempted and recomputed.
        engine: (N,), last engine slot; -1 if it never reached one.
        outcome: (N,), FINISHED, REFUSED, FAILED, UNFINISHED, or ABANDONED: its client lost patience and hung up.
        cached_tokens: (N,), prompt tokens that were in the prefix cache when it was first scheduled; 0 if left out.
        session: (N,), session of each request, -1 if it has none; None: the workload has no sessions.
        turn: (N,), its place in the session, from 0; None: the workload has no sessions.
        reason: (N,), index into REASON_NAMES. Of a finished request it follows from its tokens: LENGTH where its answer
            was cut at `max_model_len`, else STOP; of another it is what is given, NO_REASON if left out.
        error: (N,) str, what a live server or its connection failed with, empty if REASON_NAMES has the reason or there
            is an answer; None: simulated.
        send_lag_s: (N,), how much later than due the client had each request ready, seconds; None: simulated.
    """

    index: NDArray[np.int64]
    arrival_s: FloatArray
    input_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    class_id: NDArray[np.int32]
    priority: NDArray[np.int32]
    first_scheduled_s: FloatArray
    first_token_s: FloatArray
    finish_s: FloatArray
    generated_tokens: NDArray[np.int32]
    preemptions: NDArray[np.int32]
    engine: NDArray[np.int32]
    outcome: NDArray[np.int8]
    cached_tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    session: NDArray[np.int32] | None = None
    turn: NDArray[np.int32] | None = None
    reason: NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))
    error: NDArray[np.object_] | None = None
    send_lag_s: FloatArray | None = None

    def __post_init__(self) -> None:
        rows = np.size(self.index)
        if not self.cached_tokens.size:
            object.__setattr__(self, "cached_tokens", np.zeros(rows, np.int32))
        given = self.reason if self.reason.size else np.full(rows, NO_REASON, np.int8)
        if np.shape(given) == np.shape(self.outcome):
            of_finished = np.where(np.less(self.generated_tokens, self.output_tokens), LENGTH, STOP)
            given = np.where(np.equal(self.outcome, FINISHED), of_finished, given).astype(np.int8)
        object.__setattr__(self, "reason", given)
        sizes = {name: np.size(column) for name, column in self._columns().items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"columns of RequestRecords differ in length: {sizes}")

    def __len__(self) -> int:
        """Number of requests."""
        return int(self.arrival_s.size)

    def _columns(self) -> dict[str, NDArray[Any]]:
        """Columns that there are, by name."""
        named = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: column for name, column in named.items() if column is not None}

    def rows(self, which: NDArray[Any]) -> RequestRecords:
        """Some of the records: (M,) row numbers or an (N,) mask."""
        return replace(self, **{name: column[which] for name, column in self._columns().items()})

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Whether each request was completed, (N,)."""
        return self.outcome == FINISHED

    @property
    def ttft_s(self) -> FloatArray:
        """Time to first token, (N,) seconds, infinite if the request did not finish."""
        return self._elapsed(self.first_token_s)

    @property
    def e2e_s(self) -> FloatArray:
        """Arrival to last token, (N,) seconds, infinite if the request did not finish."""
        return self._elapsed(self.finish_s)

    @property
    def queue_s(self) -> FloatArray:
        """Arrival to first being scheduled, (N,) seconds, infinite if the request did not finish."""
        return self._elapsed(self.first_scheduled_s)

    @property
    def tpot_s(self) -> FloatArray:
        """Mean time per output token after the first, (N,) seconds, infinite if the request did not finish.

        NaN for an output of one token; percentiles exclude it, as `vllm bench serve` does,
        and it cannot miss its SLO.
        """
        gaps = self.generated_tokens - 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = np.where(gaps > 0, (self.finish_s - self.first_token_s) / gaps, np.nan)
        return np.where(self.finished, tpot, np.inf)

    def to_frame(self) -> pd.DataFrame:
        """One row per request, with the names of outcome and reason; of live failures the server's error."""
        import pandas as pd

        columns = self._columns()
        columns["outcome"] = np.array(OUTCOME_NAMES)[self.outcome]
        columns["reason"] = np.array(self._reasons(), object)
        columns.pop("error", None)
        return pd.DataFrame(columns)

    def to_parquet(self, path: str | Path) -> None:
        """Writes `to_frame` to a file."""
        self.to_frame().to_parquet(path, index=False)

    def to_vllm_json(
        self,
        duration_s: float | None = None,
        slos: Mapping[str, SLO] | None = None,
        classes: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Results under the keys of `vllm bench serve --save-result --save-detailed`, ready for `to_jsonable`.

        Lists have an entry for every request that arrived. Without an answer, where vLLM writes 0, the value is
        infinity (null in the file), and `errors` has the reason; `finish_reasons` has that of an answer. Single tokens
        are not timed: `itls` spreads them evenly between first and last.

        Args:
            duration_s: length of the run, seconds; None: to the last token.
            slos: SLOs by class name, for `request_goodput`; None: null.
            classes: class names in the order of `class_id`; needed with `slos`.
        """
        length_s = self.last_event_s if duration_s is None else duration_s
        done = self.finished
        tokens_in, tokens_out = int(self.input_tokens[done].sum()), int(self.generated_tokens[done].sum())
        good = None if slos is None else int(_meets(self, slos, classes).all(axis=0).sum())
        gaps = np.maximum(self.generated_tokens - 1, 0)
        tpot_s = np.round(np.where(done, np.nan_to_num(self.tpot_s), 0.0), 6).tolist()
        return {
            "duration": length_s,
            "completed": int(done.sum()),
            "failed": int((~done).sum()),
            "total_input_tokens": tokens_in,
            "total_output_tokens": tokens_out,
            "request_throughput": _rate(int(done.sum()), length_s),
            "request_goodput": None if good is None else _rate(good, length_s),
            "output_throughput": _rate(tokens_out, length_s),
            "total_token_throughput": _rate(tokens_in + tokens_out, length_s),
            "input_lens": self.input_tokens.tolist(),
            "output_lens": self.generated_tokens.tolist(),
            "ttfts": self.ttft_s.tolist(),
            "itls": [
                [gap_s] * n if d else []
                for gap_s, n, d in zip(tpot_s, gaps.tolist(), done.tolist(), strict=True)
            ],
            "latencies": self.e2e_s.tolist(),
            "start_times": self.arrival_s.tolist(),
            "queue_times": self.queue_s.tolist(),
            "errors": [
                "" if o == FINISHED else reason or OUTCOME_NAMES[o]
                for o, reason in zip(self.outcome.tolist(), self._reasons(), strict=True)
            ],
            "finish_reasons": [
                REASON_NAMES[r] if d else "" for d, r in zip(done.tolist(), self.reason.tolist(), strict=True)
            ],
        }

    @property
    def last_event_s(self) -> float:
        """Time of the last arrival or token on record, seconds; 0 without requests."""
        times = (self.arrival_s, self.first_token_s, self.finish_s)
        return max((float(np.nanmax(t)) for t in times if not np.isnan(t).all()), default=0.0)

    def _reasons(self) -> list[str]:
        """Why each request ended so, in words."""
        named = [REASON_NAMES[code] for code in self.reason.tolist()]
        return (
            named if self.error is None else [n or e for n, e in zip(named, self.error.tolist(), strict=True)]
        )

    def _elapsed(self, event_s: FloatArray) -> FloatArray:
        return np.where(self.finished, event_s - self.arrival_s, np.inf)


def summarise(
    records: RequestRecords, slos: Mapping[str, SLO], classes: Sequence[str], duration_s: float
) -> dict[str, float]:
    """Metrics of one episode, over all requests that arrived.

    Keys: `ttft_ tpot_ e2e_ queue_` with `p50_s p90_s p99_s` (over all requests) and `mean_finished_s` (over those that
    finished); `ttft_served_p50_s p90_s p99_s`, over those that finished, as reports on admission have them; as shares
    of all requests `refused_share`, `slo_attainment` (both SLOs attained), `ttft_attainment`, `tpot_attainment`;
    the same with `/CLASS` behind it for each class; `goodput_rps` (requests/s that attain both SLOs),
    `request_throughput_rps`, `throughput_tokens_per_s` (all generated tokens), `peak_throughput_tokens_per_s` (most
    in a whole second, each answer's tokens spread evenly between its first and its last); counts `arrived completed
    refused failed unfinished abandoned preemptions`, and of those completed `cut_at_max_model_len`, of those refused
    `prompt_beyond_max_model_len`; `cached_prompt_ratio`, the share of prompt tokens that were in the prefix cache. With
    sessions also what `session_figures` gives. A metric over no request is NaN.

    Args:
        records: the request records.
        slos: SLOs by class name.
        classes: class names in the order of `class_id`.
        duration_s: length of the episode, seconds.

    Raises:
        ValueError: a class has no SLO, or `duration_s` is not positive.
    """
    if not duration_s > 0:
        raise ValueError(f"duration_s must be positive, got {duration_s}")
    latencies = {
        "ttft": records.ttft_s,
        "tpot": records.tpot_s,
        "e2e": records.e2e_s,
        "queue": records.queue_s,
    }
    ttft_met, tpot_met = _meets(records, slos, classes)
    met = {"slo": ttft_met & tpot_met, "ttft": ttft_met, "tpot": tpot_met}
    refused = records.outcome == REFUSED
    summary = _latency_figures(latencies, met, refused)
    if len(classes) > 1:
        for class_id, name in enumerate(classes):
            rows = records.class_id == class_id
            of_class = _latency_figures(
                {k: v[rows] for k, v in latencies.items()},
                {k: v[rows] for k, v in met.items()},
                refused[rows],
            )
            summary |= {f"{key}/{name}": value for key, value in of_class.items()}
    else:
        summary |= {f"{key}/{name}": value for name in classes for key, value in list(summary.items())}
    counts = np.bincount(records.outcome, minlength=len(OUTCOME_NAMES))
    summary |= {
        "goodput_rps": float(met["slo"].sum()) / duration_s,
        "request_throughput_rps": float(counts[FINISHED]) / duration_s,
        "throughput_tokens_per_s": float(records.generated_tokens.sum(dtype=np.int64)) / duration_s,
        "peak_throughput_tokens_per_s": _peak_throughput(records, duration_s),
        "arrived": float(len(records)),
        "completed": float(counts[FINISHED]),
        "refused": float(counts[REFUSED]),
        "failed": float(counts[FAILED]),
        "unfinished": float(counts[UNFINISHED]),
        "abandoned": float(counts[ABANDONED]),
        "cut_at_max_model_len": float((records.reason == LENGTH).sum()),
        "prompt_beyond_max_model_len": float((records.reason == TOO_LONG).sum()),
        "preemptions": float(records.preemptions.sum(dtype=np.int64)),
        "cached_prompt_ratio": _share(records.cached_tokens, records.input_tokens),
    }
    return summary | session_figures(records, met["slo"])


def session_figures(records: RequestRecords, met: NDArray[np.bool_]) -> dict[str, float]:
    """Metrics by session and by turn; none where no request has a session.

    Keys: `sessions` that began; `session_completed_ratio`, those all of whose turns that came finished;
    `session_abandoned_ratio`, those in which a client hung up; `session_time_` with `p50_s p90_s p99_s`, from the first
    arrival to the last token, infinite where a turn did not finish, and `mean_finished_s` of the others; for
    `first_turn` and `later_turns`: `ttft_p50_s/first_turn` and so on, `slo_attainment/first_turn`,
    `cached_prompt_ratio/first_turn`.

    Args:
        records: the request records.
        met: (N,), whether each request attained its SLOs.
    """
    if records.session is None or records.turn is None:
        return {}
    inside = records.rows(records.session >= 0)
    assert inside.session is not None
    _, number = np.unique(inside.session, return_inverse=True)
    count = int(number.max(initial=-1)) + 1
    begin_s, end_s = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(begin_s, number, inside.arrival_s)
    np.maximum.at(end_s, number, np.where(inside.finished, inside.finish_s, np.inf))
    hung_up = np.zeros(count, bool)
    hung_up[number[inside.outcome == ABANDONED]] = True
    figures = {
        "sessions": float(count),
        "session_completed_ratio": float(np.isfinite(end_s).mean()) if count else math.nan,
        "session_abandoned_ratio": float(hung_up.mean()) if count else math.nan,
    }
    figures |= _latency_figures({"session_time": end_s - begin_s}, {})
    for name, which in (("first_turn", records.turn == 0), ("later_turns", records.turn > 0)):
        own = which & (records.session >= 0)
        of_turn = _latency_figures({"ttft": records.ttft_s[own]}, {"slo": met[own]})
        of_turn["cached_prompt_ratio"] = _share(records.cached_tokens[own], records.input_tokens[own])
        figures |= {f"{key}/{name}": value for key, value in of_turn.items()}
    return figures


def _share(part: NDArray[np.int32], whole: NDArray[np.int32]) -> float:
    """Sum over sum; 0 of nothing."""
    total = float(whole.sum(dtype=np.int64))
    return float(part.sum(dtype=np.int64)) / total if total else 0.0


def percentiles(values: FloatArray, which: Sequence[float] = PERCENTILES) -> list[float]:
    """Percentiles by linear interpolation, as `numpy.percentile`, for values that may be infinite.

    Args:
        values: (N,), any unit; NaN is left out.
        which: percentiles, 0 to 100.

    Returns:
        One value each: infinite as soon as an infinite value takes part, NaN where nothing is given.
    """
    ordered = np.sort(values[~np.isnan(values)])
    if not ordered.size:
        return [math.nan] * len(which)
    results = []
    for percentile in which:
        position = percentile / 100.0 * (ordered.size - 1)
        low, share = int(position), position - int(position)
        value = float(ordered[low])
        if share > 0 and math.isfinite(value):
            value += share * (float(ordered[low + 1]) - value)
        results.append(value)
    return results


def to_jsonable(value: Any) -> Any:
    """Converts a value to plain Python types of strict JSON.

    Infinity becomes null, which therefore means "infinite" in every file of this project; an entry of a mapping that is
    NaN (undefined) is dropped, and a NaN in a list becomes null too.
    """
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(entry) for key, entry in value.items() if not is_nan(entry)}
    if isinstance(value, np.ndarray):
        return to_jsonable(value.tolist())
    if isinstance(value, (list, tuple)):
        return [to_jsonable(entry) for entry in value]
    if isinstance(value, np.generic):
        return to_jsonable(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def is_nan(value: Any) -> bool:
    """Whether a value is a float and not a number."""
    return isinstance(value, (float, np.floating)) and math.isnan(value)


def _rate(amount: float, duration_s: float) -> float:
    return amount / duration_s if duration_s > 0 else 0.0


def _latency_figures(
    latencies: Mapping[str, FloatArray],
    met: Mapping[str, NDArray[np.bool_]],
    refused: NDArray[np.bool_] | None = None,
) -> dict[str, float]:
    figures: dict[str, float] = {}
    if refused is not None:
        figures["refused_share"] = float(refused.mean()) if refused.size else math.nan
        served = latencies["ttft"][np.isfinite(latencies["ttft"])]
        for percentile, value in zip(PERCENTILES, percentiles(served), strict=True):
            figures[f"ttft_served_p{percentile}_s"] = value
    for name, values in latencies.items():
        for percentile, value in zip(PERCENTILES, percentiles(values), strict=True):
            figures[f"{name}_p{percentile}_s"] = value
        finished = values[np.isfinite(values)]
        figures[f"{name}_mean_finished_s"] = float(finished.mean()) if finished.size else math.nan
    for name, flags in met.items():
        figures[f"{name}_attainment"] = float(flags.mean()) if flags.size else math.nan
    return figures


def _meets(records: RequestRecords, slos: Mapping[str, SLO], classes: Sequence[str]) -> NDArray[np.bool_]:
    """Whether each request attained its TTFT and its TPOT SLO: (2, N)."""
    missing = [name for name in classes if name not in slos]
    if missing:
        raise ValueError(
            f"no SLO for class {missing[0]!r}; slos are declared for: {', '.join(slos) or 'none'}"
        )
    if not classes:
        raise ValueError("classes must name at least one request class")
    rows = np.arange(len(records))
    ttft_limits = np.array([slos[name].ttft_limits_s(records.input_tokens) for name in classes])
    tpot_limits = np.array([slos[name].tpot_s for name in classes])[records.class_id]
    tpot_s = np.where(records.finished, np.nan_to_num(records.tpot_s, nan=0.0, posinf=np.inf), np.inf)
    return np.stack([records.ttft_s <= ttft_limits[records.class_id, rows], tpot_s <= tpot_limits])


def _peak_throughput(records: RequestRecords, duration_s: float) -> float:
    """Most tokens in a whole second, tokens per second.

    Tokens of a request are spread evenly from first to last, or to the episode's end if it has no last token.
    """
    begun = ~np.isnan(records.first_token_s) & (records.generated_tokens > 0)
    if not begun.any():
        return 0.0
    first, tokens = records.first_token_s[begun], records.generated_tokens[begun].astype(np.float64)
    end = np.where(np.isnan(records.finish_s[begun]), np.maximum(duration_s, first), records.finish_s[begun])
    bins = int(np.floor(end.max() / _PEAK_BIN_S)) + 1
    spread = (end - first > _AT_ONCE_S) & (tokens > 1)
    at_once = np.bincount(
        (first / _PEAK_BIN_S).astype(np.int64), np.where(spread, 1.0, tokens), minlength=bins
    )
    slope = (tokens[spread] - 1.0) / (end[spread] - first[spread])
    edges: FloatArray = np.arange(bins + 1, dtype=np.float64) * _PEAK_BIN_S
    cumulative = _ramp(edges, first[spread], slope) - _ramp(edges, end[spread], slope)
    return float((at_once + np.diff(cumulative)).max()) / _PEAK_BIN_S


def _ramp(at_s: FloatArray, start_s: FloatArray, slope: FloatArray) -> FloatArray:
    """Sum over i of slope[i] * max(0, at - start[i]), for every `at`: (len(at_s),)."""
    order = np.argsort(start_s)
    passed = np.searchsorted(start_s[order], at_s, side="right")
    slopes = np.concatenate([[0.0], np.cumsum(slope[order])])
    offsets = np.concatenate([[0.0], np.cumsum(slope[order] * start_s[order])])
    ramp: FloatArray = slopes[passed] * at_s - offsets[passed]
    return ramp
