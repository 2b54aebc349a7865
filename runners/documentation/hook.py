"""What MkDocs calls (`hooks` of mkdocs.yml): the files of the site, and pages that are written while it is built."""

from __future__ import annotations

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from serving_gym.runners.documentation.code_blocks import fenced, sides
from serving_gym.runners.documentation.pages import written_pages
from serving_gym.runners.documentation.tree import ROOT, address, expanded, shown_files, with_readmes


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Names the pages that the navigation has patterns for.

    Args:
        config: Of the site.
    """
    pages = [path for path in (*shown_files(), *written_pages()) if path.endswith(".md")]
    config.nav = expanded(config.nav, pages)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Puts documents where they lie in the repository, and adds the written pages.

    Args:
        files: What MkDocs has found: the theme's own files remain.
        config: Of the site.
    """
    site = Files([file for file in files if file.src_dir != config.docs_dir])
    for path in shown_files():
        site.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=address(path)))
    for path, content in written_pages().items():
        site.append(File.generated(config, path, content=content))
    return site


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Leads links to folders to their README.md, names the language of code, and puts two ways side by side.

    Args:
        markdown: Of the page.
        page: The page.
    """
    return sides(fenced(with_readmes(markdown, (ROOT / page.file.src_uri).parent)))
