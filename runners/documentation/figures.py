"""Figures in Markdown files: tables and cells between markers, filled in from result files.

    <!--figure:rivals.planners-->      a table; blank lines around it
    | `jsq` | <!--figure:gain.jsq-->return -134<!--end--> |      within a line, never at its beginning

`docs/results/figures.yaml` says of each figure which result file (docs/results/NAME.json) it shows and how. A result
file is either a comparison that was kept (`runners.documentation.keeping`) or `rows` of published figures with
`"regenerated": false`, the command that makes them, and the version they hold for.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.configuration.typed import build
from serving_gym.runners.documentation.claims import claim_counts
from serving_gym.runners.documentation.markdown import table
from serving_gym.runners.documentation.results import FOLDER
from serving_gym.runners.documentation.templates import Row, Rows, fields_in, filled
from serving_gym.runners.documentation.tree import ROOT

LIST = FOLDER / "figures.yaml"
PAGES = (
    "README.md",
    "docs/*.md",
    "configs/benchmark/README.md",
    "runners/reproduction/README.md",
    "agents/zoo/*/card.md",
)
COUNTS = "reproduction"  # its rows are completed by the kept claims of papers
_BEGIN, _END = "<!--figure:", "<!--end-->"
_MARKED = re.compile(rf"{_BEGIN}([\w.-]+)-->(.*?){_END}", re.DOTALL)
_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)")


@dataclass(frozen=True)
class Figure:
    """What a marker shows.

    Attributes:
        text: A line with figures in it; "": a table.
        rows: Result file of a table.
        columns: Of a table: what a cell shows, by the column's title.
        only: Rows of the result file in the table's order; empty: all.
        cells: What some cells show instead, by row and column.
        source: Whether a line below the table says how old its figures are and where their file lies.
    """

    text: str = ""
    rows: str = ""
    columns: dict[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    source: bool = False

    def __post_init__(self) -> None:
        if bool(self.text) == bool(self.rows):
            raise ValueError("a figure has either a text or rows")


@dataclass(frozen=True)
class Stale:
    """A figure whose page does not show what its result file says.

    Attributes:
        page: The Markdown file.
        name: The figure.
        has: First line that differs, as the page has it.
        should: The same line by the result file.
    """

    page: str
    name: str
    has: str
    should: str

    def __str__(self) -> str:
        return f"{self.page}: figure {self.name} has {self.has!r}, its result file says {self.should!r}"


def figures(path: Path = LIST) -> dict[str, Figure]:
    """The list of figures, by name.

    Raises:
        ValueError: An entry is not one of a `Figure`.
    """
    listed = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: build(Figure, values, f"{name}.") for name, values in listed.items()}


def result(name: str) -> dict[str, Any]:
    """A result file by its name.

    Raises:
        ValueError: There is none.
    """
    check_choice("result file in docs/results", name, sorted(path.stem for path in FOLDER.glob("*.json")))
    values: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return values


@cache
def rows_of(name: str) -> Rows:
    """Rows of a result file by name: of a comparison one a policy, with its metrics and the best one's gain over it."""
    values = result(name)
    if "policies" in values:
        gains = values["gains"]
        return {
            policy: {"row": policy, **metrics, "gain": gains.get(policy)}
            for policy, metrics in values["policies"].items()
        }
    counts = claim_counts() if name == COUNTS else {}
    rows = {row.get("row", str(place)): row for place, row in enumerate(values["rows"])}
    return {line: {**row, **counts.get(line, {})} for line, row in rows.items()}


def fields_needed(name: str) -> list[str]:
    """Fields of a result file's rows that tables show."""
    wanted = [
        template
        for figure in figures().values()
        if figure.rows == name
        for cells in (figure.columns, *figure.cells.values())
        for template in cells.values()
    ]
    return list(dict.fromkeys(one for template in wanted for one in fields_in(template)))


def content(name: str, figure: Figure, page: str) -> str:
    """What stands between a figure's markers.

    Args:
        name: The figure's name.
        figure: The figure.
        page: The Markdown file, from the root of the repository.
    """
    if figure.text:
        return filled(figure.text, {}, rows_of, name)
    rows = rows_of(figure.rows)
    for line in (*figure.only, *figure.cells):
        check_choice(f"row of {figure.rows} in figure {name}", line, rows)
    lines = [_cells(name, figure, line, rows[line]) for line in figure.only or rows]
    head, rule, *body = table(list(map(str.strip, figure.columns)), lines).splitlines()
    text = "\n".join(["\n", head, rule.replace(" ", ""), *body, "\n"])
    return f"{text}{source_line(figure.rows, page)}\n\n" if figure.source else text


def _cells(name: str, figure: Figure, line: str, row: Row) -> list[str]:
    own = figure.cells.get(line, {})
    for column in own:
        check_choice(f"column of figure {name}", column, figure.columns)
    return [filled(own.get(column, text), row, rows_of, name) for column, text in figure.columns.items()]


def source_line(name: str, page: str) -> str:
    """Version and age of a result file, with a link to it."""
    values = result(name)
    link = Path(os.path.relpath(FOLDER / f"{name}.json", (ROOT / page).parent)).as_posix()
    if values["regenerated"]:
        return f"Version {values['versions']['serving-gym']}, [measured]({link}) {values['started'][:10]}."
    return f"Version {values['version']}, [not run again]({link})."


def pages() -> Iterator[str]:
    """Markdown files that may have markers, from the root of the repository."""
    for pattern in PAGES:
        yield from sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))


def marked(text: str, page: str) -> Iterator[re.Match[str]]:
    """Markers of a page: name and content.

    Raises:
        ValueError: A marker without its end, or one that begins a line and stands within it.
    """
    found = list(_MARKED.finditer(text))
    if not len(found) == text.count(_BEGIN) == text.count(_END):
        raise ValueError(f"{page}: each {_BEGIN}NAME--> needs one {_END} behind it")
    for match in found:
        begins = match.start() == 0 or text[match.start() - 1] == "\n"
        if begins and not match[2].startswith("\n"):
            raise ValueError(
                f"{page}: figure {match[1]} begins a line, which makes the whole line raw HTML; put a word before it"
            )
    yield from found


def filled_page(text: str, page: str, listed: Mapping[str, Figure]) -> str:
    """A page with all of its figures.

    Raises:
        ValueError: A marker names no figure of the list.
    """
    for match in marked(text, page):
        check_choice(f"figure in {page}", match[1], listed)
    return _MARKED.sub(
        lambda match: f"{_BEGIN}{match[1]}-->{content(match[1], listed[match[1]], page)}{_END}", text
    )


def fill() -> list[str]:
    """Writes the figures into all pages; returns the pages that changed."""
    listed, changed = figures(), []
    for page in pages():
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        new = filled_page(text, page, listed)
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed.append(page)
    return changed


def stale_figures() -> list[Stale]:
    """Figures whose pages show something else than their result files say."""
    listed, found = figures(), []
    for page in pages():
        for match in marked((ROOT / page).read_text(encoding="utf-8"), page):
            check_choice(f"figure in {page}", match[1], listed)
            expected = content(match[1], listed[match[1]], page)
            if match[2] != expected:
                found.append(Stale(page, match[1], *_first_difference(match[2], expected)))
    return found


def unused_figures() -> list[str]:
    """Figures of the list that no page shows."""
    used = {match[1] for page in pages() for match in marked((ROOT / page).read_text(encoding="utf-8"), page)}
    return [name for name in figures() if name not in used]


def typed_rows(text: str, number: str = r"\d") -> list[str]:
    """Rows of tables with figures outside of markers, of code and of links' addresses.

    Args:
        text: A Markdown file.
        number: Pattern of what counts as a figure.
    """
    unmarked = _MARKED.sub(lambda match: "\n" if match[2].startswith("\n") else "", text)
    rows = (line for line in unmarked.splitlines() if line.startswith("|"))
    return [line for line in rows if re.search(number, _CODE.sub("", line))]


def _first_difference(has: str, should: str) -> tuple[str, str]:
    old, new = has.strip("\n").split("\n"), should.strip("\n").split("\n")
    for place in range(max(len(old), len(new))):
        pair = (old[place] if place < len(old) else "", new[place] if place < len(new) else "")
        if pair[0] != pair[1]:
            return pair
    return has, should
