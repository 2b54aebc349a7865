"""One reading of one file: what is refused, what looks wrong, and what was done."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.workload.reading.options import ReadOptions

SHOWN_OF_EACH_KIND = 20
_LONGEST_VALUE = 60


class MalformedError(Exception):
    """What is wrong inside a file, in one sentence; the file's name is put before it."""


@dataclass(frozen=True)
class Problem:
    """An entry that is refused.

    Attributes:
        where: the row (from 0, after the header), or the place in a nested file.
        column: name in the file.
        text: value and reason.
    """

    where: str
    column: str
    text: str

    def __str__(self) -> str:
        """One sentence."""
        return f"{self.where}, column {self.column!r}: {self.text}"


@dataclass
class Reading:
    """State of a reading.

    Attributes:
        path: the file.
        options: what the user says about it.
        strict: whether the first problem ends the reading; else problems are collected.
        notes: what was done to the requests, each a clause.
        warnings: what looks wrong, each a sentence.
        problems: refused entries, at most `SHOWN_OF_EACH_KIND` of each kind.
        refused: number of refused entries of each kind (column and reason).
        bad: by column, the rows that were refused.
        container: how the file is packed, as "CSV, gzip".
        decimal_comma: whether "0,5" is a number.
        times: unit and base of the times as understood, and whether they count from the first arrival.
    """

    path: Path
    options: ReadOptions
    strict: bool = True
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    refused: dict[tuple[str, str], int] = field(default_factory=dict)
    bad: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    container: str = ""
    decimal_comma: bool = False
    times: tuple[str, str, bool] = ("s", "0 s", False)

    def refuse(
        self,
        places: Any,
        column: str,
        values: Any,
        bad: NDArray[np.bool_],
        why: str,
        shown: str | None = None,
    ) -> None:
        """Refuses entries of a column.

        Args:
            places: what names a row: a table, or anything with `place(row)`.
            column: name in the file.
            values: (N,), entries of the column.
            bad: (N,), which of them.
            why: end of the sentence.
            shown: in place of the value.

        Raises:
            MalformedError: any is bad, and the reading is strict.
        """
        rows = np.flatnonzero(bad)
        for row in rows[:SHOWN_OF_EACH_KIND].tolist():
            value = _shown(values[row]) if shown is None else shown
            problem = Problem(places.place(row), column, f"{value} {why}".strip())
            if self.strict:
                raise MalformedError(str(problem))
            self.problems.append(problem)
        if rows.size:
            self.bad[column] = self.bad.get(column, False) | bad
            self.refused[column, why] = self.refused.get((column, why), 0) + int(rows.size)

    def warn(self, sentence: str) -> None:
        """Says that something looks wrong."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def note(self, clause: str) -> None:
        """Says what was done to the requests."""
        self.notes.append(clause)


def counted(number: int, noun: str) -> str:
    """A number of things, as "1 row" and "2,000 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)) or value == "":
        return "a missing value"
    text = str(value)
    return repr(text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "...")
