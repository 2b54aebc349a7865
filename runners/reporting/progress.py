"""Progress on standard error, so that standard output stays for results."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm

_INTERVAL_S = 5.0  # between two lines in a pipe or a log file
_LINE = "{desc}: {percentage:3.0f} % | {n_fmt} of {total_fmt} {unit} | {elapsed}, {remaining} left{postfix}"


class ProgressLines(tqdm):  # type: ignore[type-arg]
    """Progress for a pipe or a file: a line every few seconds, and one at the end of what took longer than that."""

    _last_line_s = 0.0

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:  # type: ignore[override]
        """Writes a line, unless the last one is of just now."""
        now_s = time.monotonic()
        if msg == "" or now_s - self._last_line_s < _INTERVAL_S:
            return False
        self._last_line_s = now_s
        print(str(self) if msg is None else msg, file=sys.stderr, flush=True)
        return True

    def clear(self, nolock: bool = False) -> None:
        """Leaves what is written as it is."""

    def close(self) -> None:
        """Writes the last line where there were others."""
        if not self.disable and self._last_line_s:
            self._last_line_s = 0.0
            self.display()
        self.leave = False
        super().close()


def progress_bar(total: int, what: str, unit: str = "it", shown: bool = True) -> tqdm[Any]:
    """Progress to use with `with`, and to `update()`: a bar in a terminal, else a line every few seconds.

    Args:
        total: Steps; 0: not known yet.
        what: What is done, in a word or two.
        unit: What a step is called.
        shown: False: it counts and writes nothing, for a worker process.
    """
    if sys.stderr.isatty():
        return tqdm(total=total, desc=what, unit=unit, dynamic_ncols=True, file=sys.stderr, disable=not shown)
    return ProgressLines(
        total=total,
        desc=what,
        unit=unit,
        mininterval=_INTERVAL_S,
        miniters=1,
        delay=_INTERVAL_S,
        bar_format=_LINE,
        file=sys.stderr,
        disable=not shown,
    )


def say(bar: Any, line: str) -> None:
    """Writes a line above a bar."""
    bar.write(line, file=sys.stderr)
