"""Forms of values on the wire: each reads a plain value (of JSON or MessagePack), writes one, and has a JSON schema.

A table is a structured NumPy array. On the wire it is a list of row objects, an object of columns, or its rows as bytes
(in JSON: base64 of them): packed, little-endian, columns in the order of the schema. An array is a list of numbers or
its bytes, little-endian, in C order. Whatever is read is checked: types, shapes, limits, number of rows.
"""

from __future__ import annotations

import base64
import binascii
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.lookup import check_choice

Limit = int | float | str | None  # a number, or the name of a size of the setting
_SHOWN = 60  # characters of a bad value in a message
_LONG = 32  # rows from which a table is written as bytes
_OPEN = 2**53  # beyond it JSON's numbers are not whole numbers everywhere


@dataclass(frozen=True)
class Context:
    """What reading needs of the setting.

    Attributes:
        sizes: Sizes by name, such as the number of places.
        spec: The policy specification, from which values that are left out follow.
        max_rows: Most rows of a table, and entries of a list.
    """

    sizes: Mapping[str, int]
    spec: Any
    max_rows: int = 20_000

    def limit(self, limit: Limit) -> int | float | None:
        """A limit as a number; a size limits an index, whose largest value is one less."""
        return self.sizes[limit] - 1 if isinstance(limit, str) else limit


class Form(ABC):
    """A kind of value on the wire."""

    @abstractmethod
    def read(self, value: Any, where: str, context: Context) -> Any:
        """The value that a plain value stands for.

        Args:
            value: The plain value.
            where: Its name in messages, as `state.now_s`.
            context: What reading needs of the setting.

        Raises:
            ValueError: It stands for none; the message names field, value and what is allowed.
        """

    @abstractmethod
    def write(self, value: Any) -> Any:
        """A value as a plain one, for JSON."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Its JSON schema."""


def key_of(name: Any) -> str:
    """A key of an object, cut to what a message shows."""
    return str(name)[:_SHOWN]


def shown(value: Any) -> str:
    """A value in a message, cut to a line."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@dataclass(frozen=True)
class Number(Form):
    """A finite number.

    Attributes:
        whole: Whether it is a whole number.
        low: Least value; None: any.
        high: Largest value; None: any.
        missing: What null stands for; None: null is not allowed.
    """

    whole: bool
    low: Limit = 0
    high: Limit = None
    missing: float | None = None

    def read(self, value: Any, where: str, context: Context) -> Any:
        """A Python number."""
        if value is None and self.missing is not None:
            return self.missing
        good = type(value) is int or (type(value) is float and np.isfinite(value))
        if good and self.whole:
            good = (
                float(value).is_integer() and abs(value) <= _OPEN
                if type(value) is float
                else abs(value) < 2**63
            )
        if not good or (type(value) is int and not self.whole and abs(value) > 1e300):
            kind = "a whole number" if self.whole else "a finite number"
            raise ValueError(f"{where} must be {kind}, got {shown(value)}")
        low, high = context.limit(self.low), context.limit(self.high)
        if (low is not None and value < low) or (high is not None and value > high):
            raise ValueError(f"{where} must be {_between(low, high)}, got {shown(value)}")
        return int(value) if self.whole else float(value)

    def write(self, value: Any) -> Any:
        """A number; null if it is not finite."""
        if self.whole:
            return int(value)
        return float(value) if np.isfinite(value) else None

    def schema(self) -> dict[str, Any]:
        """An integer or a number."""
        kind = "integer" if self.whole else "number"
        schema: dict[str, Any] = {"type": kind if self.missing is None else [kind, "null"]}
        return schema | _limits(self.low, self.high)


def _between(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"from {low:g} to {high:g}"
    return f"at least {low:g}" if low is not None else f"at most {high:g}"


def _limits(low: Limit, high: Limit) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if isinstance(low, int | float):
        limits["minimum"] = low
    if isinstance(high, str):
        limits["x-less-than"] = high
    elif high is not None:
        limits["maximum"] = high
    return limits


@dataclass(frozen=True)
class Flag(Form):
    """True or false."""

    def read(self, value: Any, where: str, context: Context) -> bool:
        """A bool."""
        if not isinstance(value, bool):
            raise ValueError(f"{where} must be true or false, got {shown(value)}")
        return value

    def write(self, value: Any) -> bool:
        """A bool."""
        return bool(value)

    def schema(self) -> dict[str, Any]:
        """A boolean."""
        return {"type": "boolean"}


@dataclass(frozen=True)
class Text(Form):
    """A short text."""

    def read(self, value: Any, where: str, context: Context) -> str:
        """A str."""
        if not isinstance(value, str) or len(value) > 1000:
            raise ValueError(f"{where} must be a text of at most 1000 characters, got {shown(value)}")
        return value

    def write(self, value: Any) -> str:
        """A str."""
        return str(value)

    def schema(self) -> dict[str, Any]:
        """A string."""
        return {"type": "string", "maxLength": 1000}


@dataclass(frozen=True)
class Choice(Form):
    """A member of an enumeration: its name in lower case, or its number where it has one."""

    kind: type[Enum]

    def read(self, value: Any, where: str, context: Context) -> Enum:
        """A member."""
        if isinstance(value, str):
            names = {word(member): member for member in self.kind}
            check_choice(where, key_of(value), names)
            return names[value]
        if issubclass(self.kind, IntEnum) and type(value) is int and value in list(self.kind):
            return self.kind(value)
        raise ValueError(f"{where} must be one of {', '.join(map(word, self.kind))}, got {shown(value)}")

    def write(self, value: Any) -> str:
        """The name."""
        return word(self.kind(value))

    def schema(self) -> dict[str, Any]:
        """Names, or numbers."""
        names: list[Any] = [word(member) for member in self.kind]
        return {"enum": names + ([int(m) for m in self.kind] if issubclass(self.kind, IntEnum) else [])}


def word(member: Enum) -> str:
    """Name of a member on the wire: its value if that is a text, else its name in lower case."""
    return str(member.value) if isinstance(member.value, str) else member.name.lower()


@dataclass(frozen=True)
class Maybe(Form):
    """A value or null."""

    inner: Form

    def read(self, value: Any, where: str, context: Context) -> Any:
        """The value or None."""
        return None if value is None else self.inner.read(value, where, context)

    def write(self, value: Any) -> Any:
        """The value or None."""
        return None if value is None else self.inner.write(value)

    def schema(self) -> dict[str, Any]:
        """Either."""
        return {"anyOf": [self.inner.schema(), {"type": "null"}]}


@dataclass(frozen=True)
class Listed(Form):
    """A tuple of equal forms.

    Attributes:
        item: Form of the items.
        length: Name of their number; None: any.
    """

    item: Form
    length: str | None = None

    def read(self, value: Any, where: str, context: Context) -> tuple[Any, ...]:
        """A tuple."""
        if not isinstance(value, list) or len(value) > context.max_rows:
            what = shown(value) if not isinstance(value, list) else f"{len(value)}"
            raise ValueError(f"{where} must be a list of at most {context.max_rows} entries, got {what}")
        if self.length is not None and len(value) != context.sizes[self.length]:
            raise ValueError(f"{where} must have {context.sizes[self.length]} entries, got {len(value)}")
        return tuple(self.item.read(entry, f"{where}[{i}]", context) for i, entry in enumerate(value))

    def write(self, value: Sequence[Any]) -> list[Any]:
        """A list."""
        return [self.item.write(entry) for entry in value]

    def schema(self) -> dict[str, Any]:
        """An array."""
        return {"type": "array", "items": self.item.schema()}


@dataclass(frozen=True)
class Named(Form):
    """A mapping from names to equal forms.

    Attributes:
        item: Form of the values.
        keys: Attribute of the policy's setting with the names, all of which must be there.
    """

    item: Form
    keys: str

    def read(self, value: Any, where: str, context: Context) -> dict[str, Any]:
        """A dict."""
        names = getattr(context.spec.setting, self.keys)
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} must be an object, got {type(value).__name__}")
        for name in value:
            check_choice(f"key of {where}", key_of(name), names)
        for name in names:
            if name not in value:
                raise ValueError(f"{where}.{name} is missing")
        return {name: self.item.read(value[name], f"{where}.{name}", context) for name in names}

    def write(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """A dict."""
        return {name: self.item.write(entry) for name, entry in value.items()}

    def schema(self) -> dict[str, Any]:
        """An object."""
        return {"type": "object", "additionalProperties": self.item.schema(), "x-keys": self.keys}


Default = Callable[[dict[str, Any], Context], Any]  # from the fields that are known


@dataclass(frozen=True)
class Record(Form):
    """A dataclass or named tuple.

    Attributes:
        kind: Its class.
        fields: Forms of the fields that travel.
        defaults: What fields that are left out are, in the order in which they are worked out; others are needed.
        tag: Value of its key `kind`, which tells it from others; empty: none.
    """

    kind: type[Any]
    fields: Mapping[str, Form]
    defaults: Mapping[str, Default] = field(default_factory=dict)
    tag: str = ""

    def read(self, value: Any, where: str, context: Context) -> Any:
        """An instance."""
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} must be an object, got {type(value).__name__}")
        known: dict[str, Any] = {}
        for name, entry in value.items():
            if name in self.fields:
                known[name] = self.fields[name].read(entry, f"{where}.{name}", context)
            elif not (self.tag and name == "kind"):
                check_choice(f"key of {where}", key_of(name), self.fields)
        for name in self.fields:
            if name not in known and name not in self.defaults:
                raise ValueError(f"{where}.{name} is missing")
        for name, default in self.defaults.items():
            if name not in known:
                known[name] = default(known, context)
        try:
            return self.kind(**known)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def write(self, value: Any) -> dict[str, Any]:
        """A dict."""
        plain = {name: form.write(getattr(value, name)) for name, form in self.fields.items()}
        return {"kind": self.tag, **plain} if self.tag else plain

    def schema(self) -> dict[str, Any]:
        """An object."""
        properties = {name: form.schema() for name, form in self.fields.items()}
        needed = [name for name in self.fields if name not in self.defaults]
        if self.tag:
            properties, needed = {"kind": {"const": self.tag}, **properties}, ["kind", *needed]
        return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def snake(kind: type[Any]) -> str:
    """Name of a class on the wire: `ScaleChange` is scale_change."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()


@dataclass(frozen=True)
class Variants(Form):
    """One of several records, told apart by `kind`, or a whole number where `index` says so."""

    records: tuple[Record, ...]
    index: Form | None = None

    def read(self, value: Any, where: str, context: Context) -> Any:
        """An instance."""
        if self.index is not None and not isinstance(value, Mapping):
            return self.index.read(value, where, context)
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} must be an object, got {type(value).__name__}")
        by_tag = {record.tag: record for record in self.records}
        kind = value.get("kind")
        check_choice(f"{where}.kind", key_of(kind), by_tag)
        return by_tag[str(kind)].read(value, where, context)

    def write(self, value: Any) -> Any:
        """A dict or a number."""
        for record in self.records:
            if isinstance(value, record.kind):
                return record.write(value)
        if self.index is None:
            raise ValueError(f"{type(value).__name__} has no form on the wire")
        return self.index.write(value)

    def schema(self) -> dict[str, Any]:
        """Either."""
        either = [record.schema() for record in self.records]
        return {"oneOf": either + ([] if self.index is None else [self.index.schema()])}


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
        most = min(np.iinfo(dtype).max, _OPEN)
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
            raise ValueError(f"{where} must be {_between(low, high)}, got {shown(beyond[0].item())}")


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
