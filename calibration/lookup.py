"""What to tell a user who mistyped a name."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """Says which known name is closest and what is allowed, as the second half of an error message."""
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower(), lowered, n=1, cutoff=0.0)
    guess = f"did you mean {lowered[close[0]]!r}? " if close else ""
    return f"{guess}allowed: {', '.join(names)}"
