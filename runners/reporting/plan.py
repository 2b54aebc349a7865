"""What the results of a run directory have in common, so that a command that goes on there adds no others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from serving_gym.runners.reporting.output import write_json

PLAN = "plan.json"


def keep_plan(out: Path, words: Sequence[str]) -> None:
    """Writes words of the command line that hold for all results of a directory.

    Args:
        out: Run directory.
        words: In any order.

    Raises:
        ValueError: Its results have other words.
    """
    path, own = out / PLAN, sorted(words)
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else own
    differ = sorted({*kept} ^ {*own})
    if differ:
        which = "with" if differ[0] in kept else "without"
        raise ValueError(
            f"out={str(out)!r} holds results {which} {differ[0]}; repeat the words, or choose another folder"
        )
    write_json(path, own)
