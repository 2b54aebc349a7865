"""The log of decisions, `decisions.jsonl`: one JSON object a line, which `runners.replay` reads.

{"v": 1, "at_s": Unix time, "env": ..., "policy": ..., "state": {wire form}, "action": policy's own decision or null,
"applied": whether the answer was to be followed, "by": policy | fallback | none, "chosen": the front end's own
decision or null, "taken": the decision that was carried out as far as known, or null, "fallback": the fallback's
decision or null, "propensity": probability of `action` or null, "reward": null, "us": microseconds, "error": ""}
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, TextIO

FILE = "decisions.jsonl"
VERSION = 1
_OLDER = 4  # rotated files that are kept: decisions.jsonl.1 is the latest


class DecisionLog:
    """Appends decisions to a file, which is rotated.

    A line that cannot be written is lost and said; the next one is tried again after a while.

    Args:
        folder: Folder of the file.
        most_bytes: Size after which it is rotated.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.path, self.most_bytes = folder / FILE, most_bytes
        self._file: TextIO | None = None
        self._bytes = 0
        self._retry_s = 0.0

    def write(self, line: dict[str, Any]) -> str:
        """Appends a decision; returns why it could not, once a minute."""
        now_s = time.time()
        if now_s < self._retry_s:
            return ""
        try:
            text = json.dumps({"v": VERSION, "at_s": round(now_s, 6), **line}, separators=(",", ":")) + "\n"
            if self._file is None or self._bytes + len(text) > self.most_bytes:
                self._rotate()
            assert self._file is not None
            self._file.write(text)
            self._file.flush()
            self._bytes += len(text)
        except OSError as error:
            self._retry_s = now_s + 60.0
            return f"decisions are not logged for a minute: {error}"
        return ""

    def _rotate(self) -> None:
        """Begins the file, or goes on with it if there is room."""
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        size = self.path.stat().st_size if self.path.exists() else 0
        if size >= self.most_bytes or self._bytes:
            for number in range(_OLDER - 1, 0, -1):
                older = self._older(number)
                if older.exists():
                    older.replace(self._older(number + 1))
            if self.path.exists():
                self.path.replace(self._older(1))
            size = 0
        self._file = self.path.open("a", encoding="utf-8")
        self._bytes = size

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{FILE}.{number}")

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
