"""Tables on standard output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_MOST_WIDTH = 400

# Metrics in tables, in this order; files have all metrics.
SHOWN_METRICS = (
    "return",
    "slo_attainment",
    "goodput_rps",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "tpot_p99_s",
    "throughput_tokens_per_s",
    "peak_throughput_tokens_per_s",
    "completed",
    "refused",
    "failed",
    "unfinished",
    "cached_prompt_ratio",
    "preemptions",
    "gpu_hours",
    "cost_usd",
)

# Shown where there are sessions.
SESSION_METRICS = (
    "sessions",
    "session_completed_ratio",
    "session_abandoned_ratio",
    "session_time_p50_s",
    "session_time_p90_s",
    "ttft_p50_s/first_turn",
    "ttft_p50_s/later_turns",
    "cached_prompt_ratio/first_turn",
    "cached_prompt_ratio/later_turns",
)
# Shown where they are not zero.
LENGTH_METRICS = ("abandoned", "cut_at_max_model_len", "prompt_beyond_max_model_len")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints a table; the first column is left-aligned, the others have numbers."""
    console = Console()
    table = Table(title=escape(title), title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(escape(column), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(format_value(value)) for value in row))
    if not console.is_terminal:  # a file or a pipe has no width
        console = Console(width=_MOST_WIDTH)
        console = Console(width=console.measure(table).maximum)
    console.print(table)


def print_summary(title: str, summary: Mapping[str, Any], names: Sequence[str] = SHOWN_METRICS) -> None:
    """Prints metrics one below the other."""
    shown = [(name, summary[name]) for name in dict.fromkeys(names) if name in summary]
    print_table(title, ("figure", "value"), shown)


def print_warnings(warnings: Sequence[str]) -> None:
    """Prints sentences below a table."""
    for sentence in warnings:
        Console().print(f"warning: {sentence}", soft_wrap=True, highlight=False, markup=False)


def print_results_in(out: Path) -> None:
    """Prints the path of the results."""
    Console().print(f"Results in {out}", soft_wrap=True, highlight=False, markup=False)


def format_value(value: Any) -> str:
    """A value in at most eight characters or so."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, tuple):
        return f"{format_value(value[0])} [{format_value(value[1])}, {format_value(value[2])}]"
    if isinstance(value, float):
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return str(value)
