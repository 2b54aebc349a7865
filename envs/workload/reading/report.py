"""What was understood of a trace file, to be read before it is played."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from serving_gym.envs.workload.reading.context import counted
from serving_gym.envs.workload.schema import TokenArray, Workload


@dataclass(frozen=True)
class TraceReport:
    """A trace as it was read.

    Attributes:
        path: the file.
        format: name of its format and container, as "Mooncake (JSON Lines, gzip)".
        rows: requests read.
        span_s: seconds from the first arrival to the last.
        rate_rps: mean arrival rate, requests per second; None where all arrive at once.
        input_tokens: mean, p50, p99 and largest prompt, tokens.
        output_tokens: the same of answers.
        hash_block_tokens: tokens that a prefix id covers; None where there are none.
        rows_with_ids: requests with prefix ids.
        repeated_block_ratio: share of prefix blocks that an earlier request had: the best hit ratio; None without ids.
        sessions: number of sessions.
        waiting_rows: requests that wait for an answer.
        models: names of the models that requests ask for; empty: any.
        time_unit: unit of the file's times, as understood.
        time_base: the file's time of the first arrival, in its own words.
        rebased: whether times count from the first arrival.
        unused_columns: columns of the file that are not read.
        notes: what was done to the requests, each a clause.
        warnings: what looks wrong, each a sentence.
    """

    path: str
    format: str
    rows: int
    span_s: float
    rate_rps: float | None
    input_tokens: dict[str, float]
    output_tokens: dict[str, float]
    hash_block_tokens: int | None
    rows_with_ids: int
    repeated_block_ratio: float | None
    sessions: int
    waiting_rows: int
    models: tuple[str, ...]
    time_unit: str
    time_base: str
    rebased: bool
    unused_columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """All of it in one line, but for the warnings."""
        rate = "all at once" if self.rate_rps is None else f"{_short(self.rate_rps)} requests/s"
        parts = [
            f"{counted(self.rows, 'request')} over {duration(self.span_s)} ({rate})",
            f"prompts {_lengths(self.input_tokens)}, answers {_lengths(self.output_tokens)} tokens (mean, p99)",
            self._prefixes(),
            *([self._sessions()] * bool(self.sessions or self.waiting_rows)),
            self._times(),
            *self.notes,
        ]
        if self.unused_columns:
            parts.append(f"columns not used: {', '.join(self.unused_columns)}")
        return f"{self.path}: {self.format}; {'; '.join(parts)}"

    def to_json(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return asdict(self)

    def _sessions(self) -> str:
        waiting = f"{counted(self.waiting_rows, 'request')} wait{'s' * (self.waiting_rows == 1)} for answers"
        return f"{counted(self.sessions, 'session')}, {waiting}"

    def _prefixes(self) -> str:
        if self.repeated_block_ratio is None:
            return "no prefix ids"
        missing = self.rows - self.rows_with_ids
        rest = f", {counted(missing, 'request')} without" if missing else ""
        return (
            f"{self.repeated_block_ratio:.0%} of prefix blocks ({self.hash_block_tokens} tokens) repeat{rest}"
        )

    def _times(self) -> str:
        counted = "counted from the first arrival" if self.rebased else "kept"
        return f"times in {self.time_unit}, the first at {self.time_base}, {counted}"


def make_report(
    path: str,
    format_name: str,
    workload: Workload,
    times: tuple[str, str, bool],
    unused: tuple[str, ...],
    notes: list[str],
    warnings: list[str],
) -> TraceReport:
    """The report on a workload that was read.

    Args:
        path: the file.
        format_name: its format.
        workload: its requests.
        times: unit and base as understood, and whether times count from the first arrival.
        unused: columns that were not read.
        notes: what was done.
        warnings: what looks wrong.
    """
    hashed = workload.hash_ids is not None and workload.hash_ids.size > 0
    repeated = None
    with_ids = 0
    if workload.hash_ids is not None and workload.hash_offsets is not None and hashed:
        repeated = 1.0 - np.unique(workload.hash_ids).size / workload.hash_ids.size
        with_ids = int((np.diff(workload.hash_offsets) > 0).sum())
    sessions = workload.session_id
    unit, base, rebased = times
    return TraceReport(
        path=path,
        format=format_name,
        rows=len(workload),
        span_s=workload.whole_duration_s,
        rate_rps=(len(workload) - 1) / workload.whole_duration_s if workload.whole_duration_s > 0 else None,
        input_tokens=_figures(workload.input_tokens),
        output_tokens=_figures(workload.output_tokens),
        hash_block_tokens=workload.hash_block_tokens if hashed else None,
        rows_with_ids=with_ids,
        repeated_block_ratio=repeated,
        sessions=0 if sessions is None else int(np.unique(sessions[sessions >= 0]).size),
        waiting_rows=int((workload.num_awaited > 0).sum()),
        models=() if workload.models == ("",) else workload.models,
        time_unit=unit,
        time_base=base,
        rebased=rebased,
        unused_columns=unused,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def duration(seconds: float) -> str:
    """A duration as people say it: "25 s", "3.2 h", "121 days"."""
    for size, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return (
                f"{seconds / size:,.0f} {name}" if seconds >= 1000 * size else f"{seconds / size:.4g} {name}"
            )
    return f"{seconds:.4g} s"


def _figures(values: TokenArray) -> dict[str, float]:
    p50, p99 = np.percentile(values, (50, 99))
    return {
        "mean": float(values.mean()), "p50": float(p50), "p99": float(p99), "max": float(values.max()),
    }  # fmt: skip


def _lengths(figures: dict[str, float]) -> str:
    return f"{figures['mean']:,.0f} ({figures['p99']:,.0f})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
