"""Pages that are written while the site is built."""

from __future__ import annotations


def written_pages() -> dict[str, str]:
    """Content of each page in Markdown, by its path in the site."""
    return {"index.md": "# serving-gym\n"}
