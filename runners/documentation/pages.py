"""Pages that are written while the site is built."""

from __future__ import annotations

from functools import cache

from serving_gym.runners.documentation.api import api_pages
from serving_gym.runners.documentation.front_page import front_page
from serving_gym.runners.documentation.reference import reference_pages


@cache
def written_pages() -> dict[str, str]:
    """Content of each page in Markdown, by its path in the site."""
    return {"index.md": front_page(), **reference_pages(), **api_pages()}
