"""The worst stretch of an episode, request by request, as an SVG chart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving_gym.runners.html.figures import tpot_of, ttft_of

Scale = Callable[[float], float]  # from seconds to the horizontal place

_ROWS = 60  # requests shown
_HEIGHT, _WIDTH, _LEFT, _TOP = 11, 900, 118, 34
WAITS, PREFILLS, DECODES, LOST = "#E69F00", "#56B4E9", "#0072B2", "#D55E00"
_LEGEND = (
    (WAITS, "waits"),
    (PREFILLS, "scheduled, no token yet"),
    (DECODES, "generates"),
    (LOST, "refused, failed or unfinished"),
)


def costs_of(requests: pd.DataFrame, slos_s: Sequence[Mapping[str, float]]) -> NDArray[np.float64]:
    """TTFT / SLO + TPOT / SLO of each request, infinite where one did not finish.

    Args:
        requests: The requests.
        slos_s: `ttft_s` and `tpot_s` of each class; empty: seconds instead of SLOs.
    """
    classes = requests["class_id"].to_numpy(np.int64)
    ttft_slo, tpot_slo = (
        np.array([slo[key] for slo in slos_s])[classes] if slos_s else np.ones(len(requests))
        for key in ("ttft_s", "tpot_s")
    )
    tpot = np.where(np.isnan(found := tpot_of(requests)), 0.0, found)
    return np.asarray(ttft_of(requests) / ttft_slo + tpot / tpot_slo)


def worst_rows(requests: pd.DataFrame, costs: NDArray[np.float64]) -> pd.DataFrame:
    """Consecutive arrivals around the request with the highest cost, which is the first of those of equal cost."""
    ordered = requests.assign(cost=costs).sort_values("arrival_s", kind="stable").reset_index(drop=True)
    worst = int(ordered["cost"].to_numpy().argmax())
    first = max(0, min(worst - _ROWS * 2 // 3, len(ordered) - _ROWS))
    return ordered.iloc[first : first + _ROWS]


def gantt(rows: pd.DataFrame, slos_s: Sequence[Mapping[str, float]]) -> str:
    """The chart; every bar says what it is under the pointer.

    Args:
        rows: Requests in order of arrival, with `cost`.
        slos_s: `ttft_s` and `tpot_s` of each class; empty: not known.
    """
    begin = float(rows["arrival_s"].min())
    ends = rows[["arrival_s", "first_token_s", "finish_s"]].to_numpy(np.float64)
    end = float(np.nanmax(np.where(np.isfinite(ends), ends, np.nan)))
    end = end if end > begin else begin + 1.0
    height = _TOP + _HEIGHT * len(rows) + 30

    def x(at_s: float) -> float:
        return _LEFT + (min(max(at_s, begin), end) - begin) / (end - begin) * (_WIDTH - _LEFT - 12)

    parts = [*_legend(), *_axis(begin, end, x, height)]
    worst = int(rows["cost"].to_numpy().argmax())
    for number, row in enumerate(rows.itertuples()):
        parts.append(_row(row, _TOP + _HEIGHT * number, x, end, number == worst, slos_s))
    return (
        f'<svg class="gantt" viewBox="0 0 {_WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg" '
        f'font-family="sans-serif" font-size="9">{"".join(parts)}</svg>'
    )


def _legend() -> list[str]:
    parts, left = [], _LEFT
    for colour, said in _LEGEND:
        parts.append(f'<rect x="{left}" y="4" width="12" height="8" fill="{colour}"/>')
        parts.append(f'<text x="{left + 16}" y="12">{said}</text>')
        left += 40 + 5 * len(said)
    parts.append(f'<path d="M{left} 3v10" stroke="black"/><text x="{left + 6}" y="12">TTFT SLO</text>')
    return parts


def _axis(begin: float, end: float, x: Scale, height: int) -> list[str]:
    step = 10.0 ** np.floor(np.log10((end - begin) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (end - begin) / (step * factor) <= 8)
    parts = []
    for at_s in np.arange(np.ceil(begin / step) * step, end, step):
        parts.append(f'<path d="M{x(at_s):.1f} {_TOP - 4}V{height - 24}" stroke="#ddd"/>')
        parts.append(f'<text x="{x(at_s):.1f}" y="{height - 12}" text-anchor="middle">{at_s:g}</text>')
    parts.append(f'<text x="{_WIDTH - 12}" y="{height - 1}" text-anchor="end">time, s</text>')
    return parts


def _row(
    row: Any, top: int, x: Scale, end: float, is_worst: bool, slos_s: Sequence[Mapping[str, float]]
) -> str:
    def get(name: str) -> float:
        return float(getattr(row, name))

    arrival, scheduled, first, finish = map(
        get, ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
    )
    outcome, bars = str(row.outcome), list[str]()
    lost = outcome != "finished"
    stop = finish if np.isfinite(finish) else end
    waits_until = (
        scheduled if np.isfinite(scheduled) else stop if not lost or outcome == "unfinished" else arrival
    )
    for left, right, colour in (
        (arrival, waits_until, WAITS),
        (scheduled, first if np.isfinite(first) else stop, PREFILLS),
        (first, stop, DECODES),
    ):
        if np.isfinite(left) and right > left:
            bars.append(
                f'<rect x="{x(left):.1f}" y="{top + 1}" width="{max(x(right) - x(left), 0.6):.1f}" '
                f'height="{_HEIGHT - 3}" fill="{colour}"/>'
            )
    if lost:
        at = x(stop if outcome == "unfinished" else arrival if not np.isfinite(finish) else finish)
        bars.append(
            f'<path d="M{at - 3:.1f} {top + 2}l6 6m0 -6l-6 6" stroke="{LOST}" stroke-width="2" fill="none"/>'
        )
    class_id = int(get("class_id"))
    if slos_s and arrival + slos_s[class_id]["ttft_s"] < end:
        at = x(arrival + slos_s[class_id]["ttft_s"])
        bars.append(f'<path d="M{at:.1f} {top}v{_HEIGHT - 1}" stroke="black" stroke-width="1"/>')
    engine = int(get("engine"))
    label = f"#{int(get('index'))} on {engine}" if engine >= 0 else f"#{int(get('index'))}"
    weight = ' font-weight="bold"' if is_worst else ""
    said = (
        f"request {int(get('index'))}, {outcome}: {int(get('input_tokens')):,} prompt and "
        f"{int(get('generated_tokens')):,} of {int(get('output_tokens')):,} output tokens; arrived {arrival:.3f} s, "
        f"scheduled {_shown(scheduled)}, first token {_shown(first)}, end {_shown(finish)}; "
        f"preempted {int(get('preemptions'))} times; cost {_shown(get('cost'), '')}"
    )
    return (
        f'<g><title>{escape(said)}</title><text x="{_LEFT - 5}" y="{top + 8}" text-anchor="end"{weight}>{label}</text>'
        f"{''.join(bars)}</g>"
    )


def _shown(value: float, unit: str = " s") -> str:
    return f"{value:.3f}{unit}" if np.isfinite(value) else "never"
