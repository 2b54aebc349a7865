"""Appends JSON lines to a file in a thread of its own, so that neither a decision nor a token waits for the disk."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from serving_gym.envs.interface.metrics import to_jsonable

_EVERY_S = 0.1  # lines of so long are written together: what a kill of this process can lose
_STALLED_S = 10.0


class LineWriter:
    """A file of JSON lines.

    When the file cannot be written (a full disk), `on_failure` is told once, and later lines are dropped.

    Args:
        path: The file, which is begun anew.
        on_failure: Called with the error.
    """

    def __init__(self, path: Path, on_failure: Callable[[OSError], object]) -> None:
        self.path, self._on_failure = path, on_failure
        self._failed, self._written = False, 0
        self._lines: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="serving-gym-records", daemon=True)
        self._thread.start()

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row, which must not change any more; callable from any thread."""
        self._lines.put(row)

    def close(self) -> bool:
        """Writes what is left and closes the file, unless the disk does not answer for long.

        Returns:
            Whether every line has been written.
        """
        self._lines.put(None)
        before = -1
        while self._thread.is_alive() and self._written > before:
            before = self._written
            self._thread.join(_STALLED_S)
        return not self._failed and not self._thread.is_alive()

    def _work(self) -> None:
        try:
            with self.path.open("w", encoding="utf-8") as file:
                while True:
                    rows, over = self._drained()
                    file.write("".join(map(_line, rows)))
                    file.flush()
                    self._written += len(rows)
                    if over:
                        return
                    time.sleep(_EVERY_S)
        except OSError as error:
            self._failed = True
            self._on_failure(error)
            while self._lines.get() is not None:
                pass

    def _drained(self) -> tuple[list[Mapping[str, Any]], bool]:
        """Rows that are there, at least one, and whether they are the last."""
        rows: list[Mapping[str, Any]] = []
        row = self._lines.get()
        while row is not None:
            rows.append(row)
            if self._lines.empty():
                return rows, False
            row = self._lines.get()
        return rows, True


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(to_jsonable(row), allow_nan=False, default=str) + "\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of JSON lines; none if it is not there. The end of a file whose writer was killed is left out."""
    rows: list[dict[str, Any]] = []
    if not path.is_file():
        return rows
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
