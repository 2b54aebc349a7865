"""Lists the commands, or runs one: `python -m runners NAME OVERRIDES`, `serving-gym NAME OVERRIDES`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

_FOLDER = Path(__file__).parent
_USER_ERROR = 2


def commands() -> dict[str, str]:
    """Every command with its purpose in one line."""
    files = sorted(path for path in _FOLDER.glob("*.py") if not path.stem.startswith("_"))
    return {path.stem: _purpose(path) for path in files}


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command named by the first argument; returns its exit status.

    Args:
        words: Command-line arguments; None: those of this process.
    """
    given = list(sys.argv[1:] if words is None else words)
    known = commands()
    if not given or given[0] in ("-h", "--help", "help"):
        print(_listing(known))
        return 0
    name, *rest = given
    if name not in known:
        near = get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        print(f"error: unknown command {name!r}{hint} (allowed: {', '.join(known)})", file=sys.stderr)
        return _USER_ERROR
    status: int = import_module(f"serving_gym.runners.{name}").main(rest)
    return status


def _purpose(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def _listing(known: dict[str, str]) -> str:
    width = max(map(len, known))
    return "\n".join(
        [
            "Commands, each as `python -m runners.NAME` or `serving-gym NAME`, with words key=value:",
            "",
            *(f"  {name:<{width}}  {purpose}" for name, purpose in known.items()),
            "",
            "`python -m runners.NAME --help` has examples and the keys that people change first.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
