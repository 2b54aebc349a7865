"""The page of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serving_gym.runners.html import markup
from serving_gym.runners.html.folder import MONITOR, REPLAY, RunFolder
from serving_gym.runners.html.over_time import OverTime
from serving_gym.runners.html.results import Results
from serving_gym.runners.html.warnings import engines_of, warnings_of
from serving_gym.runners.html.watching import Replayed, Watched
from serving_gym.runners.reporting.output import write_text

REPORT_FILE = "report.html"


def write_report(path: Path, pdf: bool = False) -> Path:
    """Writes `report.html` into a run directory; returns its path.

    Args:
        path: The directory.
        pdf: Whether to write each figure as PDF too.

    Raises:
        ValueError: The directory holds no result of a known command.
    """
    run = RunFolder(path)
    if run.kind == REPLAY:
        parts = Replayed(run, pdf).parts()
    elif run.kind == MONITOR:
        parts = Watched(run, pdf).parts()
    else:
        parts = [*Results(run, pdf).parts(), *OverTime(run, pdf).parts()]
    what = _what(run)
    missing = markup.section("Not in this report", markup.bullets(run.missing, "missing"))
    text = markup.page(run.title, [what, *parts, missing])
    write_text(path / REPORT_FILE, text)
    return path / REPORT_FILE


def _what(run: RunFolder) -> str:
    """What was run, and warnings."""
    found = run.comparison or run.replay or run.summary
    workload = run.config.get("workload")
    workload = workload if isinstance(workload, Mapping) else {}
    if not run.provenance:
        run.note_missing("Versions and command: the run has no provenance.json.")
    words = " ".join(run.provenance.get("words", ()))
    versions = ", ".join(f"{name} {number}" for name, number in run.provenance.get("versions", {}).items())
    first = run.config.get("first_seed", 0)
    seeds = found.get("seeds")
    if run.kind == REPLAY:  # its configuration is not that of the log
        workload, first, seeds = {}, 0, None
    rows = [
        ("command", f"python -m runners.{run.provenance['command']} {words}" if run.provenance else ""),
        ("started", run.provenance.get("started")),
        ("versions", versions),
        ("data", found.get("provenance") or _described(found.get("workload"), workload)),
        ("split", found.get("split")),
        (
            "seeds",
            _seeds(first, seeds)
            if isinstance(seeds, int)
            else None
            if run.kind == REPLAY
            else run.config.get("seed"),
        ),
        ("backend", found.get("backend", "")),
        ("live client", _client(run.summary.get("live"))),
        ("engines", "; ".join(engines_of(run))),
        ("directory", run.path.resolve().name),
    ]
    return markup.facts(rows) + markup.bullets(warnings_of(run), "warnings")


def _seeds(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first} to {first + count - 1}"


def _described(name: Any, workload: Mapping[str, Any]) -> str:
    words = [
        f"{key}={workload[key]}"
        for key in ("path", "num_requests", "rate_rps")
        if workload.get(key) is not None
    ]
    if workload.get("rate_scale") not in (None, 1, 1.0):
        words.append(f"rate_scale={workload['rate_scale']}")
    return f"{name or ''}{' (' + ', '.join(words) + ')' if words else ''}"


def _client(live: Mapping[str, Any] | None) -> str:
    """What the client of live servers says of itself, in a few words."""
    if not live:
        return ""
    share, client = live["overrides"]["share"], live["client"]
    said = [f"{share:.1%} of the decisions overridden"]
    if "send_lag_p99_s" in client:
        said.append(f"P99 of its lag {1e3 * client['send_lag_p99_s']:.3g} ms")
    if "load" in client:
        said.append(f"load {client['load']:.3g} of {client.get('cores', 1)} cores")
    return ", ".join(said)
