"""Forms of arrays and tables on the wire.

A table is a structured NumPy array. On the wire it is a list of row objects, an object of columns, or its rows as bytes
(in JSON: base64 of them): packed, little-endian, columns in the order of the schema. An array is a list of numbers or
its bytes, little-endian, in C order. Whatever is read is checked: types, shapes, limits, number of rows.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.serving.forms import (
    EXACT,
    Context,
    Form,
    Limit,
    Number,
    between,
    key_of,
    shown,
    word,
)

_LONG = 32  # rows from which a table is written as bytes


def as_bytes(value: Any, where: str) -> bytes | None:
    """Bytes, or what base64 stands for; None: the value is neither.

    Raises:
        ValueError: A text is no base64.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        return None
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{where} is a text that is no base64") from None


def numbers(
    values: Sequence[Any], dtype: np.dtype[Any], where: str, missing: float | None = None
) -> NDArray[Any]:
    """A list of numbers as an array; no conversion loses anything.

    Raises:
        ValueError: An entry is no number, not finite, or beyond the type's range.
    """
    kinds = set(map(type, values))
    if missing is not None and type(None) in kinds:
        values, kinds = (
            [missing if value is None else value for value in values],
            kinds - {type(None)} | {float},
        )
    allowed = {bool} if dtype.kind == "b" else {int, float}
    if not kinds <= allowed:
        i = next(i for i, value in enumerate(values) if type(value) not in allowed)
        raise ValueError(f"{where}[{i}] must be {_NAMES[dtype.kind]}, got {shown(values[i])}")
    try:
        array = np.array(values, np.float64 if float in kinds or dtype.kind == "f" else dtype)
    except OverflowError:
        raise ValueError(f"{where} has a number beyond the range of {dtype}") from None
    return typed(array, dtype, where, missing)


_NAMES = {"b": "true or false", "i": "a whole number", "f": "a finite number"}


def typed(
    array: NDArray[Any], dtype: np.dtype[Any], where: str, missing: float | None = None
) -> NDArray[Any]:
    """An array of numbers in a type.

    Raises:
        ValueError: An entry is not finite (unless `missing` stands for it), not whole, or beyond the type's range.
    """
    if array.dtype.kind == "f" and missing is None and not np.isfinite(array).all():
        raise ValueError(f"{where} must have finite numbers only")
    if dtype.kind == "i" and array.dtype.kind == "f":
        most = min(np.iinfo(dtype).max, EXACT)
        if not ((array == np.rint(array)) & (np.abs(array) <= most)).all():
            raise ValueError(f"{where} must have whole numbers of {dtype} only")
    return array.astype(dtype, copy=False)


@dataclass(frozen=True)
class Limits:
    """Limits of a column or array.

    Attributes:
        low: Least value; None: any.
        high: Largest value, or size that it must stay below; None: any.
        missing: What null stands for; None: null is not allowed.
    """

    low: Limit = 0
    high: Limit = None
    missing: float | None = None

    def check(self, array: NDArray[Any], where: str, context: Context) -> None:
        """Raises ValueError where an entry is beyond the limits."""
        low, high = context.limit(self.low), context.limit(self.high)
        if not array.size or array.dtype.kind == "b":
            return
        beyond = [array.min()] if low is not None and array.min() < low else []
        beyond += [array.max()] if high is not None and array.max() > high else []
        if beyond:
            raise ValueError(f"{where} must be {between(low, high)}, got {shown(beyond[0].item())}")


@dataclass(frozen=True)
class Array(Form):
    """An array of numbers.

    Attributes:
        dtype: Type of the entries.
        dims: Size of each dimension: a number, a name of a size, or None: any.
        limits: Limits of the entries.
    """

    dtype: np.dtype[Any]
    dims: tuple[int | str | None, ...]
    limits: Limits = Limits()

    def read(self, value: Any, where: str, context: Context) -> NDArray[Any]:
        """An array."""
        dims = [context.sizes[dim] if isinstance(dim, str) else dim for dim in self.dims]
        data = as_bytes(value, where)
        if data is not None:
            array = self._of_bytes(data, dims, where)
        else:
            array = self._of_list(value, dims, where, context)
        self.limits.check(array, where, context)
        return array

    def _of_bytes(self, data: bytes, dims: list[int | None], where: str) -> NDArray[Any]:
        plain = self.dtype.newbyteorder("<")
        rest = int(np.prod([dim for dim in dims if dim is not None], dtype=np.int64)) * plain.itemsize
        if len(data) % max(rest, 1) if None in dims else len(data) != rest:
            raise ValueError(
                f"{where} must have {rest} bytes{' a row' if None in dims else ''}, got {len(data)}"
            )
        shape = [-1 if dim is None else dim for dim in dims]
        if plain.kind == "b":
            return (np.frombuffer(data, np.uint8) != 0).reshape(shape)
        array = np.frombuffer(data, plain).astype(self.dtype)
        return typed(array, self.dtype, where, self.limits.missing).reshape(shape)

    def _of_list(self, value: Any, dims: list[int | None], where: str, context: Context) -> NDArray[Any]:
        if not isinstance(value, list) or len(value) > context.max_rows:
            raise ValueError(
                f"{where} must be a list of at most {context.max_rows} entries, got {shown(value)}"
            )
        if dims[0] is not None and len(value) != dims[0]:
            raise ValueError(f"{where} must have {dims[0]} entries, got {len(value)}")
        if len(dims) == 1:
            return numbers(value, self.dtype, where, self.limits.missing)
        rows = [self._of_list(row, dims[1:], f"{where}[{i}]", context) for i, row in enumerate(value)]
        return np.array(rows, self.dtype).reshape(len(value), *[0 if d is None else d for d in dims[1:]])

    def write(self, value: Any) -> Any:
        """Nested lists; null where an entry is not finite."""
        array = np.asarray(value)
        if array.dtype.kind != "f" or np.isfinite(array).all():
            return array.tolist()
        entries = array.astype(object)
        entries[~np.isfinite(array)] = None
        return entries.tolist()

    def schema(self) -> dict[str, Any]:
        """Nested arrays of numbers, or base64."""
        inner = _entry_schema(self.dtype, self.limits)
        for dim in reversed(self.dims):
            inner = {"type": "array", "items": inner}
            inner |= {"minItems": dim, "maxItems": dim} if isinstance(dim, int) else {}
            inner |= {"x-length": dim} if isinstance(dim, str) else {}
        return {"anyOf": [inner, _bytes_schema(str(self.dtype.newbyteorder("<").str))]}


def _entry_schema(dtype: np.dtype[Any], limits: Limits) -> dict[str, Any]:
    if dtype.kind == "b":
        return {"type": "boolean"}
    return Number(dtype.kind == "i", limits.low, limits.high, limits.missing).schema()


def _bytes_schema(dtype: Any) -> dict[str, Any]:
    return {"type": "string", "contentEncoding": "base64", "x-dtype": dtype}


@dataclass(frozen=True)
class Table(Form):
    """A structured array.

    Attributes:
        dtype: Its type.
        length: Name of the number of rows; None: any.
        limits: Limits by column; others are from 0 on.
        defaults: Values of columns that are left out; others are 0.
        allowed: Numbers allowed in a column, by column.
    """

    dtype: np.dtype[Any]
    length: str | None = None
    limits: Mapping[str, Limits] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)
    allowed: Mapping[str, type[IntEnum]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Columns."""
        return self.dtype.names or ()

    @property
    def packed(self) -> np.dtype[Any]:
        """Type of the rows as bytes."""
        return np.dtype([(name, self.dtype[name].newbyteorder("<")) for name in self.names])

    def blank(self, rows: int) -> NDArray[np.void]:
        """Rows whose columns have been left out."""
        table = np.zeros(rows, self.dtype)
        for name, value in self.defaults.items():
            table[name] = value
        return table

    def read(self, value: Any, where: str, context: Context) -> NDArray[np.void]:
        """A structured array."""
        table, _ = self.read_rows(value, where, context)
        if self.length is not None and len(table) != context.sizes[self.length]:
            raise ValueError(
                f"{where} must have a row for each of {context.sizes[self.length]} {self.length}, got {len(table)}"
            )
        return table

    def read_rows(self, value: Any, where: str, context: Context) -> tuple[NDArray[np.void], tuple[str, ...]]:
        """Any number of rows, and the columns that are given."""
        data = as_bytes(value, where)
        if data is not None:
            table, given = self._of_bytes(data, where, context), tuple(self.names)
        else:
            columns, rows = self._columns(value, where, context)
            table, given = self.blank(rows), tuple(columns)
            for name, values in columns.items():
                missing = self._limits(name).missing
                table[name] = numbers(values, self.dtype[name], f"{where}.{name}", missing)
        for name in given:
            self._limits(name).check(table[name], f"{where}.{name}", context)
            if name in self.allowed:
                self._check_allowed(name, table[name], where)
        return table, given

    def _limits(self, name: str) -> Limits:
        return self.limits.get(name, Limits())

    def _check_allowed(self, name: str, column: NDArray[Any], where: str) -> None:
        kind = self.allowed[name]
        if not len(column) or (column.min() >= 0 and column.max() < len(kind)):
            return  # these enumerations count from 0
        bad = column[~np.isin(column, [int(member) for member in kind])]
        if len(bad):
            allowed = ", ".join(f"{int(member)} ({word(member)})" for member in kind)
            raise ValueError(f"{where}.{name} must be one of {allowed}, got {bad[0]}")

    def _of_bytes(self, data: bytes, where: str, context: Context) -> NDArray[np.void]:
        packed = self.packed
        if len(data) % packed.itemsize or len(data) > context.max_rows * packed.itemsize:
            raise ValueError(
                f"{where} must have at most {context.max_rows} rows of {packed.itemsize} bytes, got {len(data)} bytes"
            )
        table = np.frombuffer(data, packed).astype(self.dtype)
        for name in self.names:
            missing = self._limits(name).missing
            if table[name].dtype.kind == "f" and missing is None and not np.isfinite(table[name]).all():
                raise ValueError(f"{where}.{name} must have finite numbers only")
        return table

    def _columns(self, value: Any, where: str, context: Context) -> tuple[dict[str, list[Any]], int]:
        """Columns that are given, and the number of rows."""
        if isinstance(value, Mapping):
            columns = {str(name): entries for name, entries in value.items()}
            self._check_names(columns, where)
            for name, entries in columns.items():
                if not isinstance(entries, list):
                    raise ValueError(f"{where}.{name} must be a list, got {type(entries).__name__}")
            lengths = {len(entries) for entries in columns.values()}
            if len(lengths) > 1:
                raise ValueError(f"{where} must have columns of one length, got {sorted(lengths)}")
            rows = next(iter(lengths), 0)
        elif isinstance(value, list):
            rows = len(value)
            columns = self._of_rows(value, where) if rows <= context.max_rows else {}
        else:
            raise ValueError(f"{where} must be a list of objects or an object of columns, got {shown(value)}")
        if rows > context.max_rows:
            raise ValueError(f"{where} must have at most {context.max_rows} rows, got {rows}")
        return columns, rows

    def _of_rows(self, rows: list[Any], where: str) -> dict[str, list[Any]]:
        given: dict[str, None] = {}
        for i, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise ValueError(f"{where}[{i}] must be an object, got {type(row).__name__}")
            given.update(dict.fromkeys(row))
        self._check_names(given, where)
        return {
            name: [row.get(name, default) for row in rows]
            for name in given
            for default in (self._default(name),)
        }

    def _default(self, name: str) -> float:
        value = self.defaults.get(name, 0)
        return int(value) if self.dtype[name].kind == "i" else float(value)

    def _check_names(self, names: Mapping[str, Any], where: str) -> None:
        for name in names:
            if name not in self.names:
                check_choice(f"key of {where}", key_of(name), self.names)

    def write(self, value: NDArray[np.void]) -> Any:
        """Columns; base64 of the rows where there are many."""
        if len(value) >= _LONG:
            return base64.b64encode(value.astype(self.packed).tobytes()).decode()
        return {name: Array(self.dtype[name], (None,)).write(value[name]) for name in self.names}

    def schema(self) -> dict[str, Any]:
        """A list of row objects, an object of columns, or base64."""
        entries = {name: self._column_schema(name) for name in self.names}
        rows = {
            "type": "array",
            "items": {"type": "object", "properties": entries, "additionalProperties": False},
        }
        columns = {
            "type": "object",
            "properties": {name: {"type": "array", "items": entry} for name, entry in entries.items()},
            "additionalProperties": False,
        }
        packed = [[name, self.packed[name].str] for name in self.names]
        of_rows = {"x-rows": self.length} if self.length else {}
        return {"anyOf": [rows, columns, _bytes_schema(packed)], **of_rows}

    def _column_schema(self, name: str) -> dict[str, Any]:
        if name in self.allowed:
            members = [{"const": int(member), "title": word(member)} for member in self.allowed[name]]
            return {"oneOf": members, "default": self._default(name)}
        limits = self._limits(name)
        schema = _entry_schema(self.dtype[name], limits)
        default = self._default(name)
        return schema | {"default": default if np.isfinite(default) else None}
