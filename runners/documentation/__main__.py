"""Writes pages that come from classes and results and the figures of Markdown files, and keeps results for them.

    python -m runners.documentation
    python -m runners.documentation check=true
    python -m runners.documentation from=runs/compare/DATE/comparison.json
    python -m runners.documentation results=first_run from=runs/train/DATE/comparison.json

`from=` keeps a run's results in docs/results, as `results=NAME` or for the page of its environment, and then writes.
`check=true` writes nothing and says which pages and figures are stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from serving_gym.runners.command_line.words import Reader, Words, parse_words, truth
from serving_gym.runners.documentation import traces
from serving_gym.runners.documentation.environments import environment_pages
from serving_gym.runners.documentation.figures import fields_needed, fill, rows_of, stale_figures
from serving_gym.runners.documentation.keeping import keep
from serving_gym.runners.documentation.papers import paper_pages
from serving_gym.runners.documentation.tree import ROOT
from serving_gym.runners.reproduction.page import PAGE, page_text
from serving_gym.runners.reproduction.papers import choices_of_papers

_WORDS: dict[str, Reader] = {"results": str, "from": str, "check": truth}


def main(words: Sequence[str]) -> int:
    """Runs the command; returns its exit code.

    Args:
        words: `results=NAME`, `from=FILE`, `check=true`.
    """
    try:
        given = _given(words)
        if given.get("check"):
            return _check()
        if "from" in given:
            name = given.get("results", "")
            print(keep(Path(given["from"]), name, fields_needed(name)))
            rows_of.cache_clear()
        _write()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _given(words: Sequence[str]) -> Words:
    """Values by key.

    Raises:
        ValueError: A word that there is not.
    """
    given = parse_words(words, _WORDS)
    if "results" in given and "from" not in given:
        raise ValueError(
            f"results={given['results']} needs from=FILE, the comparison.json or benchmark.json of a run"
        )
    return given


def _written() -> Iterator[tuple[str, str]]:
    """Path and content of the pages that are written as a whole."""
    yield from environment_pages()
    yield from paper_pages()
    yield traces.PATH, traces.traces_page()
    yield PAGE.name, page_text(choices_of_papers())


def _check() -> int:
    old = [path for path, content in _written() if (ROOT / path).read_text(encoding="utf-8") != content]
    lines = [*(f"{path}: not as its classes and results say" for path in old), *map(str, stale_figures())]
    for line in lines:
        print(line)
    print(f"{len(lines)} stale" + ("; python -m runners.documentation writes them again" if lines else ""))
    return 1 if lines else 0


def _write() -> None:
    for path, content in _written():
        (ROOT / path).write_text(content, encoding="utf-8")
        print(path)
    for path in fill():
        print(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
