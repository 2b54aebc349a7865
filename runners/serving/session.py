"""Sessions: the state stays with the service, and a caller sends what has changed.

A change names fields of the state. A table may come whole, or as

    {"set": ROWS, "rows": [NUMBER, ...]}     rows by number: engines, instances, nodes
    {"set": ROWS, "remove": [INDEX, ...]}    rows by their column `index`: in_flight, requests; new ones are added

where ROWS is a table in any form; only the columns that it has are changed. All other fields are replaced.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.serving.forms import Context, Listed, Number, key_of
from serving_gym.runners.serving.tables import Table
from serving_gym.runners.serving.wire import Wire

_MOST = 64  # sessions; the one that has not been used for the longest is dropped
_KEY = "index"
_KEYED = ("in_flight", "requests")  # tables whose rows have an index
_PARTS = frozenset(("set", "rows", "remove"))
_INDICES = Listed(Number(True))


class OutOfStepError(ValueError):
    """The session is unknown, or has moved on: the caller must open another."""


class Rows:
    """Rows that come and go by their index."""

    def __init__(self, table: NDArray[np.void]) -> None:
        self._data, self._size = table.copy(), len(table)
        self._place = {int(index): row for row, index in enumerate(table[_KEY])}
        if len(self._place) < len(table):
            raise ValueError("rows must have different values of index")

    @property
    def table(self) -> NDArray[np.void]:
        """All rows."""
        return self._data[: self._size]

    def remove(self, indices: list[int], where: str) -> None:
        """Removes rows; the last one takes the place of each."""
        for index in indices:
            row = self._place.pop(index, None)
            if row is None:
                raise ValueError(f"{where}.remove: there is no row with index {index}")
            self._size -= 1
            if row < self._size:
                self._data[row] = self._data[self._size]
                self._place[int(self._data[row][_KEY])] = row

    def set(self, table: NDArray[np.void], given: tuple[str, ...], where: str, most: int) -> None:
        """Changes the given columns of rows that are there, and adds the others."""
        if _KEY not in given:
            raise ValueError(f"{where}.set must have the column {_KEY}")
        indices = table[_KEY].tolist()
        if len(set(indices)) < len(indices):
            raise ValueError(f"{where}.set must have different values of {_KEY}")
        known = np.array([self._place.get(index, -1) for index in indices], np.int64)
        old = known >= 0
        for name in given:
            self._data[name][known[old]] = table[name][old]
        self._add(table[~old], where, most)

    def _add(self, new: NDArray[np.void], where: str, most: int) -> None:
        if self._size + len(new) > most:
            raise ValueError(f"{where} must have at most {most} rows, got {self._size + len(new)}")
        if self._size + len(new) > len(self._data):
            grown = np.zeros(max(2 * len(self._data), self._size + len(new)), self._data.dtype)
            grown[: self._size] = self.table
            self._data = grown
        self._data[self._size : self._size + len(new)] = new
        for row, index in enumerate(new[_KEY].tolist(), self._size):
            self._place[index] = row
        self._size += len(new)


class Session:
    """A state that is changed.

    Attributes:
        step: Number of changes so far.
        state: The state.

    Args:
        wire: The wire form.
        state: The state to begin with.
    """

    def __init__(self, wire: Wire, state: Any) -> None:
        self._wire, self.state, self.step = wire, state, 0
        self._rows = {name: Rows(getattr(state, name)) for name in wire.state.fields if name in _KEYED}

    def change(self, values: Any) -> Any:
        """The state after a change.

        Raises:
            ValueError: The change is none, and part of it may have been made: the session is of no use any more.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"changes must be an object, got {type(values).__name__}")
        form, context = self._wire.state, self._wire.context
        changed: dict[str, Any] = {}
        for name, value in values.items():
            if name not in form.fields:
                check_choice("key of changes", key_of(name), form.fields)
            field, where = form.fields[name], f"changes.{name}"
            if isinstance(field, Table) and isinstance(value, Mapping) and not _PARTS.isdisjoint(value):
                changed[name] = self._changed(name, field, value, where)
            else:
                changed[name] = field.read(value, where, context)
                if name in self._rows:
                    self._rows[name] = Rows(changed[name])
        state = dataclasses.replace(self.state, **changed)
        self._wire.check(state)
        self.state = state
        self.step += 1
        return state

    def _changed(self, name: str, field: Table, value: Mapping[str, Any], where: str) -> NDArray[np.void]:
        """A table after a change of some rows."""
        context, keyed = self._wire.context, name in self._rows
        for part in value:
            check_choice(f"key of {where}", key_of(part), ("set", "remove") if keyed else ("set", "rows"))
        new, given = field.read_rows(value.get("set", []), f"{where}.set", context)
        if keyed:
            rows = self._rows[name]
            rows.remove(_indices(value.get("remove", []), f"{where}.remove", context), where)
            if len(new):
                rows.set(new, given, where, context.max_rows)
            return rows.table.copy()  # earlier states stay what they were
        table: NDArray[np.void] = getattr(self.state, name).copy()
        numbers = _indices(value.get("rows", []), f"{where}.rows", context)
        if len(numbers) != len(new) or any(number >= len(table) for number in numbers):
            raise ValueError(f"{where}.rows must name one of {len(table)} rows for each of {len(new)} in set")
        for column in given:
            table[column][numbers] = new[column]
        return table


def _indices(value: Any, where: str, context: Context) -> list[int]:
    return list(_INDICES.read(value, where, context))


class Sessions:
    """The open sessions of a service.

    Args:
        wire: The wire form.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._open: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        """Number of open sessions."""
        return len(self._open)

    def open(self, state: Any) -> str:
        """Opens a session with a state; returns its name."""
        name = secrets.token_hex(8)
        self._open[name] = Session(self._wire, state)
        while len(self._open) > _MOST:
            self._open.popitem(last=False)
        return name

    def change(self, name: Any, since: Any, values: Any) -> tuple[Any, int]:
        """The state of a session after a change, and the number of changes.

        Args:
            name: The session.
            since: Number of changes that the caller knows of.
            values: The change.

        Raises:
            OutOfStepError: There is no such session, or it has had another number of changes.
            ValueError: The change is none; the session is closed.
        """
        session = self._open.get(name) if isinstance(name, str) else None
        if session is None:
            raise OutOfStepError("there is no such session; open one with a whole state")
        if type(since) is not int or since != session.step:
            raise OutOfStepError(f"the session has had {session.step} changes, not {since!r}; open another")
        self._open.move_to_end(name)
        try:
            return session.change(values), session.step
        except ValueError:
            del self._open[name]
            raise

    def close(self, name: Any) -> None:
        """Closes a session, if it is open."""
        self._open.pop(name if isinstance(name, str) else "", None)
