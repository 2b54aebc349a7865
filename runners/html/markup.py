"""Pieces of a report's page: sections, tables, figures, and the page around them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from serving_gym.runners.reporting.tables import format_value

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; color: #222; margin: 0 auto; padding: 0 16px 40px; max-width: 980px; }
h1 { font-size: 1.5em; margin: 18px 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.15em; margin: 28px 0 6px; border-bottom: 1px solid #ccc; }
p { margin: 6px 0; } .note { color: #555; font-size: .9em; }
table { border-collapse: collapse; font-size: .87em; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 9px; border-bottom: 1px solid #e3e3e3; text-align: right; vertical-align: top; }
th, td { white-space: nowrap; }
th { border-bottom: 1px solid #888; font-weight: 600; } th:first-child, td:first-child { text-align: left; }
table.facts td { text-align: left; } table.facts td + td { overflow-wrap: anywhere; white-space: normal; }
table.facts td:first-child { color: #555; white-space: nowrap; }
.wide { overflow-x: auto; } figure { margin: 8px 0; overflow-x: auto; } figcaption { font-size: .88em; color: #444; }
figure svg { width: 100%; height: auto; max-width: 950px; min-width: 640px; } .gantt g:hover rect { opacity: .65; }
ul.warnings { background: #fdf3e1; border-left: 4px solid #E69F00; margin: 8px 0; padding: 8px 8px 8px 28px; }
ul.missing { color: #555; font-size: .9em; } code { font-size: .92em; background: #f3f3f3; overflow-wrap: anywhere; }
tr.best td { font-weight: 600; }
@media (max-width: 600px) { body { font-size: 14px; padding: 0 8px 24px; } }
@media print {
  body { max-width: none; font-size: 11px; } h2, figure, tr { break-inside: avoid; } .wide { overflow: visible; }
}
"""


def page(title: str, parts: Sequence[str]) -> str:
    """A whole HTML page without outside resources.

    Args:
        title: Of the page.
        parts: What stands in it.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(part for part in parts if part) + "\n</body></html>\n"
    )


def section(heading: str, *parts: str) -> str:
    """A section; empty without content."""
    content = [part for part in parts if part]
    return f"<section><h2>{escape(heading)}</h2>\n" + "\n".join(content) + "</section>" if content else ""


def paragraph(text: str, note: bool = False) -> str:
    """A paragraph."""
    return f'<p class="note">{escape(text)}</p>' if note else f"<p>{escape(text)}</p>"


def facts(rows: Sequence[tuple[str, Any]]) -> str:
    """Names and values one below the other; what is empty is left out."""
    cells = [
        f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>"
        for name, value in rows
        if value not in (None, "", [], {})
    ]
    return f'<table class="facts">{"".join(cells)}</table>' if cells else ""


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], best: Sequence[str] = ()) -> str:
    """A table, the first column of which names its rows.

    Args:
        columns: Headings.
        rows: Values, formatted as on the command line.
        best: Names of rows to emphasise.
    """
    if not rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = []
    for row in rows:
        cells = "".join(f"<td>{escape(format_value(value))}</td>" for value in row)
        body.append(f"<tr{' class=best' if row[0] in best else ''}>{cells}</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )


def figure(drawing: str, caption: str) -> str:
    """A drawing with its caption."""
    return f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"


def bullets(sentences: Sequence[str], kind: str) -> str:
    """A list of sentences; empty without any."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="{kind}">{items}</ul>' if sentences else ""
