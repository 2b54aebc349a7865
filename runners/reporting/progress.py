"""Progress on standard error, so that standard output stays for results."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


def progress_bar(total: int, what: str, unit: str = "it") -> tqdm[Any]:
    """A progress bar to use with `with`, and to `update()`; in a log file it writes every few seconds at most."""
    interval_s = 0.1 if sys.stderr.isatty() else 5.0
    return tqdm(
        total=total, desc=what, unit=unit, mininterval=interval_s, dynamic_ncols=True, file=sys.stderr
    )


def say(bar: Any, line: str) -> None:
    """Writes a line above a bar."""
    bar.write(line, file=sys.stderr)
