"""A log of events, one JSON object a line."""

from __future__ import annotations

import json
import logging
import logging.handlers
from pathlib import Path
from typing import Any

LOG_FILE = "serve.jsonl"
_BYTES, _FILES = 16 * 2**20, 4


def event_log(folder: Path) -> logging.Logger:
    """A logger that writes to a file, which is begun with the first record.

    Args:
        folder: Folder of the file.
    """
    log = logging.Logger(f"serving_gym.serve.{folder}", logging.INFO)
    handler = _FileHandler(folder / LOG_FILE, maxBytes=_BYTES, backupCount=_FILES, delay=True)
    handler.setFormatter(_JsonLines())
    log.addHandler(handler)
    return log


class _JsonLines(logging.Formatter):
    """`at_s` (Unix time), `level`, `event`, the error if there is one, and the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at_s": round(record.created, 6),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = str(record.exc_info[1])
        return json.dumps(line | getattr(record, "fields", {}), default=str)


class _FileHandler(logging.handlers.RotatingFileHandler):
    """Makes the folder with the file."""

    def _open(self) -> Any:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()
