"""Markdown that pages are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MODULE = re.compile(r"`(envs|agents|baselines|runners|calibration)\.(?=\w)")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table.

    Args:
        head: Names of the columns.
        rows: Cells; `|` in them is escaped.
    """
    lines = [list(head), ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def code(text: str) -> str:
    """Code in a line of text; "": nothing."""
    return f"`{text}`" if text else ""


def block(text: str) -> str:
    """Lines of code."""
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def importable(text: str) -> str:
    """The text of a docstring with modules as one imports them: `envs.routing` becomes `serving_gym.envs.routing`."""
    return _MODULE.sub(r"`serving_gym.\1.", text)
