"""Quotes command-line overrides for Hydra: paths with brackets, commas and equals signs."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable
from pathlib import Path

_SPECIAL = re.compile(r"[\[\](){}=,~'\" #:&;!]")
_QUOTES = ("'", '"')


def quoted(word: str) -> str:
    """Quotes values of an override that name existing files, folders or patterns, for Hydra to read as strings.

    Args:
        word: As typed: `key=value`, where the value may be a list. Anything else stays as it is.
    """
    key, equals, value = word.partition("=")
    if not equals or not value or value[0] in _QUOTES or key.startswith(("hydra.", "-")):
        return word
    if value.startswith("[") and value.endswith("]"):
        return f"{key}=[{','.join(_in_quotes(part) for part in parts_of(value[1:-1]))}]"
    return f"{key}={_in_quotes(value)}" if stands_for_path(value) else word


def parts_of(text: str) -> list[str]:
    """Splits a list at its commas, except for commas inside existing paths.

    Args:
        text: Values with commas between them.
    """
    return _joined(text.split(","), stands_for_path)


def stands_for_path(name: str) -> bool:
    """Whether a name is that of a file or folder, or a pattern that matches some."""
    return ("/" in name or name.endswith(".zip")) and (
        Path(name).exists() or bool(glob.glob(pattern_of(name)))  # noqa: PTH207 -- it may be absolute
    )


def pattern_of(name: str) -> str:
    """A pattern for `glob`, in which the parts of a path that exist as they are written stand for themselves.

    Args:
        name: As runs/seed=[1,2]/*.
    """
    so_far, parts = Path(), []
    for part in Path(name).parts:
        literal = (so_far / part).exists()
        parts.append(glob.escape(part) if literal else part)
        so_far /= part
    return str(Path(*parts)) if parts else name


def _in_quotes(value: str) -> str:
    if value[:1] in _QUOTES or not _SPECIAL.search(value) or not stands_for_path(value):
        return value
    escaped = value.replace("'", "\\'")
    return f"'{escaped}'"


def _joined(pieces: list[str], holds: Callable[[str], bool]) -> list[str]:
    """Pieces put together where that gives something that holds, as many as possible at a time."""
    out: list[str] = []
    begin = 0
    while begin < len(pieces):
        for end in range(len(pieces), begin + 1, -1):
            if holds(together := ",".join(pieces[begin:end])):
                break
        else:
            end, together = begin + 1, pieces[begin]
        out.append(together)
        begin = end
    return out
