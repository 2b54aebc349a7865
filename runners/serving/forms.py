"""Forms of values on the wire: each reads a plain value (of JSON or MessagePack), writes one, and has a JSON schema.

Whatever is read is checked: types, limits, number of entries.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import numpy as np

from serving_gym.calibration.lookup import check_choice

Limit = int | float | str | None  # a number, or the name of a size of the setting
_SHOWN = 60  # characters of a bad value in a message
EXACT = 2**53  # beyond it JSON's numbers are not whole numbers everywhere


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
                float(value).is_integer() and abs(value) <= EXACT
                if type(value) is float
                else abs(value) < 2**63
            )
        if not good or (type(value) is int and not self.whole and abs(value) > 1e300):
            kind = "a whole number" if self.whole else "a finite number"
            raise ValueError(f"{where} must be {kind}, got {shown(value)}")
        low, high = context.limit(self.low), context.limit(self.high)
        if (low is not None and value < low) or (high is not None and value > high):
            raise ValueError(f"{where} must be {between(low, high)}, got {shown(value)}")
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


def between(low: float | None, high: float | None) -> str:
    """Limits in a message."""
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
