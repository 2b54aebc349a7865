"""Writes the pages in docs/ that come from classes and kept results, and keeps results that pages show.

python -m runners.documentation
python -m runners.documentation runs/compare/DATE/comparison.json ...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from serving_gym.runners.documentation import traces
from serving_gym.runners.documentation.environments import environment_pages
from serving_gym.runners.documentation.papers import write_paper_pages
from serving_gym.runners.documentation.results import keep
from serving_gym.runners.documentation.tree import ROOT


def main(words: Sequence[str]) -> None:
    """Keeps the comparisons that are named, then writes the pages.

    Args:
        words: Files named comparison.json.
    """
    for word in words:
        print(keep(Path(word)))
    for path, content in environment_pages():
        (ROOT / path).write_text(content, encoding="utf-8")
        print(path)
    for path in write_paper_pages():
        print(path)
    (ROOT / traces.PATH).write_text(traces.traces_page(), encoding="utf-8")
    print(traces.PATH)


if __name__ == "__main__":
    main(sys.argv[1:])
