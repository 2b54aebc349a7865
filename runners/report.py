"""Writes a report of a run: one HTML page that needs nothing else.

    python -m runners.report runs/evaluate/DATE
    python -m runners.report runs/compare/DATE pdf=true
    python -m runners.compare env=routing policies=[jsq,preserve] report=true

The run is that of evaluate, compare, train, simulate, replay or monitor. The page has what was run, warnings, results
with paired differences, gates, load, queues, KV cache and layouts over time with decisions marked, latency
distributions, cost against quality, the learning curve, and the worst stretch request by request. What the run
directory does not hold is named at the end of the page.

Writes `report.html` into the run directory, and with `pdf=true` each figure as `figures/NAME.pdf`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serving_gym.runners.command_line.cli import command
from serving_gym.runners.html.report import write_report


@dataclass(frozen=True)
class ReportConfig:
    """Configuration of `runners.report`.

    Attributes:
        run: The run directory.
        out: Directory of this command's own files.
        pdf: Whether to write each figure as PDF too.
    """

    run: str
    out: str
    pdf: bool = False


@command("report", ReportConfig)
def _report(config: ReportConfig, out: Path) -> None:
    """Runs the command."""
    print(f"Report in {write_report(Path(config.run), config.pdf)}")


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command; the run directory may stand by itself."""
    given = list(sys.argv[1:] if words is None else words)
    runs = [word for word in given if "=" not in word and not word.startswith("-")]
    return _report([*(word for word in given if word not in runs), *(f"run={run}" for run in runs)])


if __name__ == "__main__":
    sys.exit(main(None))
