"""Names: the nearest to a mistyped one, and what an internal `module:attribute` stands for."""

import importlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


def nearest(name: str, known: Iterable[str]) -> str:
    """Says which known name is closest and what is allowed, as the second half of an error message."""
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower(), lowered, n=1, cutoff=0.0)
    guess = f"did you mean {lowered[close[0]]!r}? " if close else ""
    return f"{guess}allowed: {', '.join(names)}"


def load_attribute(target: str, package: str = "serving_gym") -> Any:
    """An attribute of a module, imported on demand.

    Args:
        target: `module:attribute`, as "baselines.common.static:StaticDPPolicy".
        package: What the module lies in; empty: it is a whole name.
    """
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(f"{package}.{module}" if package else module), attribute)
