"""Which files of the repository the site shows: the documents, and whatever they link to."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(?:\]\(|<img [^>]*?src=\")(?!\w+:)([^)#\s\"]+)")
# Beside what the pages in docs/ link to.
_ALSO = ("README.md", "CONTRIBUTING.md", "agents/zoo/*/card.md", "examples/*/README.md")
# Pages whose address does not follow from their path: that of the repository, and the index for readers there.
_ADDRESSES = {
    "README.md": "readme/",
    "docs/README.md": "contents/",
    "leaderboard/README.md": "leaderboard/rules/",
}


def shown_files(root: Path = ROOT) -> list[str]:
    """Paths in the repository of all files of the site, which keep them, so that links lead to the same file there.

    Args:
        root: The repository.
    """
    first = [
        *(root / "docs").rglob("*.md"),
        *(root / "docs/images").glob("*.png"),
        root / "docs/site.css",
        *(path for pattern in _ALSO for path in root.glob(pattern)),
    ]
    shown: set[Path] = set()
    waiting = sorted(first)
    while waiting:
        path = waiting.pop()
        if path in shown:
            continue
        shown.add(path)
        if path.suffix == ".md":
            waiting += linked_files(path)
    return sorted(path.relative_to(root).as_posix() for path in shown)


def linked_files(page: Path) -> Iterator[Path]:
    """Files that a page links to, where they are."""
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        if path.is_dir():
            path /= "README.md"
        if path.is_file():
            yield path


def with_readmes(markdown: str, folder: Path) -> str:
    """A document whose links to folders lead to their README.md, which code hosts show there.

    Args:
        markdown: The document.
        folder: Where it lies.
    """

    def file_of(link: re.Match[str]) -> str:
        if not (folder / link[1] / "README.md").is_file():
            return link[0]
        return f"]({link[1].rstrip('/')}/README.md"

    return _LINK.sub(file_of, markdown)


def address(path: str) -> str:
    """Where a page or file lies in the site, from its root.

    Args:
        path: In the repository.
    """
    if path in _ADDRESSES:
        return f"{_ADDRESSES[path]}index.html"
    pure = PurePosixPath(path)
    if pure.suffix != ".md":
        return path
    inner = pure.relative_to("docs") if pure.parts[0] == "docs" else pure
    folder = inner.parent if inner.name == "README.md" else inner.with_suffix("")
    return f"{folder.as_posix().lower()}/index.html"


def expanded(nav: Any, paths: Iterable[str]) -> Any:
    """A navigation in which patterns are the files that they match.

    Args:
        nav: Of mkdocs.yml: lists of paths, or of mappings of a title to a path or a list; `reference/commands/*` stands
            for a list of all files there.
        paths: Files of the site.

    Raises:
        ValueError: A pattern matches no file.
    """
    if isinstance(nav, list):
        return [expanded(entry, paths) for entry in nav]
    if isinstance(nav, dict):
        return {title: expanded(entry, paths) for title, entry in nav.items()}
    if "*" not in nav:
        return nav
    found = sorted(fnmatch.filter(paths, nav))
    if not found:
        raise ValueError(f"nav: {nav} of mkdocs.yml matches no file of the site")
    return found


def clashes(paths: Iterable[str]) -> list[str]:
    """Addresses that two files would have."""
    addresses = [address(path) for path in paths]
    return sorted({name for name in addresses if addresses.count(name) > 1})
