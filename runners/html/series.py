"""Time series of an episode, from its requests and decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_BINS = 240
_MOST_SEEN = 800  # entries of the log that are drawn


@dataclass(frozen=True, eq=False)
class Mark:
    """A decision worth marking.

    Attributes:
        at_s: When.
        said: What it was.
    """

    at_s: float
    said: str


@dataclass(frozen=True, eq=False)
class Series:
    """An episode over time.

    Attributes:
        edges_s: (B + 1,), s.
        arrivals_rps: (B,), arrivals a second.
        waiting: (B + 1,), requests that have arrived and no engine has scheduled.
        running: (B + 1,), requests that an engine has scheduled and that are not done.
        kv_tokens: (B + 1,), prompt and generated tokens of the running ones.
        seen_s: (D,), times at which the log has the cluster; empty: it has not.
        kv_usage_ratio: (D,), share of the KV blocks in use; empty: not logged.
        serving: (D,), engines or instances in service; empty: not logged.
        layouts: What the cluster was divided into, with the time from which on.
        marks: Decisions that changed something other than a request's place.
    """

    edges_s: Floats
    arrivals_rps: Floats
    waiting: Floats
    running: Floats
    kv_tokens: Floats
    seen_s: Floats = field(default_factory=lambda: np.zeros(0))
    kv_usage_ratio: Floats = field(default_factory=lambda: np.zeros(0))
    serving: Floats = field(default_factory=lambda: np.zeros(0))
    layouts: Sequence[tuple[float, str]] = ()
    marks: Sequence[Mark] = ()


def series_of(requests: pd.DataFrame, decisions: pd.DataFrame | None) -> Series:
    """The time series of one episode.

    Args:
        requests: Its requests.
        decisions: Its decisions; None: not logged.
    """
    arrival, scheduled, first, gone = _times(requests)
    ends = [column[np.isfinite(column)].max(initial=0.0) for column in (arrival, gone)]
    edges = np.linspace(0.0, max(*ends, 1e-3), _BINS + 1)
    arrived = np.searchsorted(np.sort(arrival), edges, side="right")
    left = np.searchsorted(np.sort(gone), edges, side="right")
    started = np.searchsorted(np.sort(np.minimum(scheduled, gone)), edges, side="right")
    values = {
        "edges_s": edges,
        "arrivals_rps": np.histogram(arrival, edges)[0] / (edges[1] - edges[0]),
        "waiting": (arrived - started).astype(np.float64),
        "running": (started - left).astype(np.float64),
        "kv_tokens": _kv_tokens(requests, scheduled, first, gone, edges),
    }
    if decisions is None or decisions.empty:
        return Series(**values)
    return Series(**values, **_of_clusters(decisions), marks=_marks(decisions))


def _times(requests: pd.DataFrame) -> tuple[Floats, Floats, Floats, Floats]:
    """Arrival, first schedule, first token and end, infinite where there was none."""
    arrival, scheduled, first, finish = (
        np.nan_to_num(requests[name].to_numpy(np.float64), nan=np.inf)
        for name in ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
    )
    refused = (requests["outcome"] == "refused").to_numpy()
    return arrival, scheduled, first, np.where(refused & np.isinf(finish), arrival, finish)


def _kv_tokens(
    requests: pd.DataFrame, scheduled: Floats, first: Floats, gone: Floats, edges: Floats
) -> Floats:
    """Tokens of the running requests, as if each generated evenly."""
    finite = np.isfinite(scheduled) & np.isfinite(gone)
    prompt = requests["input_tokens"].to_numpy(np.float64)[finite]
    tokens = _sums(scheduled[finite], gone[finite], prompt, edges)
    spans = np.isfinite(first) & np.isfinite(gone) & (gone > first)
    rate = requests["generated_tokens"].to_numpy(np.float64)[spans] / (gone[spans] - first[spans])
    begin, end = first[spans], gone[spans]
    return tokens + edges * _sums(begin, end, rate, edges) - _sums(begin, end, rate * begin, edges)


def _sums(begin: Floats, end: Floats, values: Floats, at: Floats) -> Floats:
    """Sum of the values of spans that hold each time."""

    def before(times: Floats) -> Floats:
        order = np.argsort(times)
        running = np.concatenate([[0.0], np.cumsum(values[order])])
        return np.asarray(running[np.searchsorted(times[order], at, side="right")])

    return before(begin) - before(end)


def _of_clusters(decisions: pd.DataFrame) -> dict[str, Any]:
    """What the log says of the cluster."""
    rows = [
        (at_s, cluster)
        for at_s, cluster in zip(decisions["now_s"], decisions["cluster"], strict=True)
        if isinstance(cluster, dict)
    ]
    if not rows:
        return {}
    shown = rows[:: max(len(rows) // _MOST_SEEN, 1)]
    found: dict[str, Any] = {"seen_s": np.array([at_s for at_s, _ in shown], np.float64)}
    for name in ("kv_usage_ratio", "serving"):
        if all(name in cluster for _, cluster in rows):
            found[name] = np.array([cluster[name] for _, cluster in shown], np.float64)
    layouts = [(at_s, str(cluster["layout"])) for at_s, cluster in rows if "layout" in cluster]
    changed = [i for i, (_, layout) in enumerate(layouts) if i == 0 or layout != layouts[i - 1][1]]
    return found | {"layouts": [layouts[i] for i in changed]}


def _marks(decisions: pd.DataFrame) -> list[Mark]:
    """Decisions with commands, and those that were refused or overridden; places of requests are not marked."""
    marks, last = list[Mark](), None
    for at_s, action, refused, overrides in zip(
        *(decisions[name] for name in ("now_s", "action", "refused", "overrides")), strict=True
    ):
        if refused:
            marks.append(Mark(float(at_s), f"refused: {refused}"))
        elif overrides:
            marks.append(Mark(float(at_s), "overridden"))
        elif isinstance(action, dict) or (
            isinstance(action, list) and action and isinstance(action[0], dict)
        ):
            if action != last:  # a controller that orders the same again changes nothing
                marks.append(Mark(float(at_s), _said(action)))
            last = action
    return marks


def _said(action: Any) -> str:
    changes = action if isinstance(action, list) else [action]
    names = [str(change.get("operation") or change.get("command")) for change in changes]
    return ", ".join(dict.fromkeys(names)).lower()
