"""Counts of the papers' figures that hold, from the claims that `runners.reproduce save=true` keeps."""

from __future__ import annotations

import json
from typing import Any

from serving_gym.runners.reproduction.claims import RESULT
from serving_gym.runners.reproduction.page import FOLDER


def claim_counts() -> dict[str, dict[str, Any]]:
    """Of each paper whose claims are kept: `holding` and `compared` results."""
    counts = {}
    for path in sorted(FOLDER.glob("*.json")):
        parts = json.loads(path.read_text(encoding="utf-8"))
        results = [row for part in parts.values() for row in part["claims"] if row["kind"] == RESULT]
        compared = [row["holds"] for row in results if row["holds"] is not None]
        counts[path.stem] = {"holding": sum(compared), "compared": len(compared)}
    return counts
