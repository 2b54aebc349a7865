"""Cells and sentences with figures of result files in them: `{return:ci .3g}`, `{routing | jsq | return:.1f}`.

A name alone is a field of the table's present row; `RESULT | ROW | FIELD` is a field of any row of a result file. After
the colon stands how a figure is shown: a format of Python's, `3` (three digits) or `short` (three digits below a
hundred, whole numbers above), `ci` before it for the 95 % interval, and ` %` behind it for shares in per cent.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from typing import Any

from serving_gym.calibration.lookup import check_choice

INFINITE = "∞"
_PERCENT = " %"
_INTERVAL = "ci "
_BETWEEN = " | "

Row = Mapping[str, Any]
Rows = Mapping[str, Row]  # by name, in the file's order


def filled(template: str, row: Row, rows_of: Callable[[str], Rows], where: str) -> str:
    """A template with its figures.

    Args:
        template: Text with fields in braces.
        row: Fields that are named alone.
        rows_of: Rows of a result file by its name.
        where: What the template is of, for errors.

    Raises:
        ValueError: A field, row or format that does not exist.
    """
    parts = []
    for text, name, spec, _ in string.Formatter().parse(template):
        parts.append(text)
        if name is not None:
            try:
                parts.append(shown(_found(name, row, rows_of), spec or ""))
            except ValueError as error:
                raise ValueError(f"{where}: {{{name}}}: {error}") from None
    return "".join(parts)


def fields_in(template: str) -> list[str]:
    """Fields of a table's own rows that a template names."""
    names = (name for _, name, _, _ in string.Formatter().parse(template) if name)
    return [name for name in names if _BETWEEN not in name]


def shown(value: Any, spec: str = "") -> str:
    """A figure as text.

    Args:
        value: A number; a mapping of `iqm` and `ci95` (None: infinite); a list of either; words; None: nothing.
        spec: As the module says; words are shown as they are.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(shown(each, spec) for each in value)
    interval, spec = spec.startswith(_INTERVAL), spec.removeprefix(_INTERVAL)
    if not isinstance(value, Mapping):
        return number(value, spec)
    text = number(value["iqm"], spec)
    if interval and value.get("ci95") is not None:
        plain = spec.removeprefix("+").removesuffix(_PERCENT)
        scale = 100.0 if spec.endswith(_PERCENT) else 1.0
        low, high = (number(None if bound is None else scale * bound, plain) for bound in value["ci95"])
        text += f" [{low}, {high}]"
    return text


def number(value: float | None, spec: str) -> str:
    """A number in a format; None is infinite."""
    if value is None:
        return INFINITE
    if spec.endswith(_PERCENT):
        return number(100.0 * value, spec.removesuffix(_PERCENT)) + _PERCENT
    if spec == "3":
        return f"{float(f'{value:.3g}'):,.10g}"
    if spec == "short":
        return f"{value:.0f}" if abs(value) >= 100.0 else f"{value:.3g}"
    return format(value, spec or ".10g")


def _found(name: str, row: Row, rows_of: Callable[[str], Rows]) -> Any:
    if _BETWEEN not in name:
        check_choice("field", name, row)
        return row[name]
    words = name.split(_BETWEEN)
    if len(words) != 3:
        raise ValueError("must be FIELD or 'RESULT | ROW | FIELD'")
    result, line, field = words
    rows = rows_of(result)
    check_choice(f"row of {result}", line, rows)
    check_choice(f"field of {line} in {result}", field, rows[line])
    return rows[line][field]
