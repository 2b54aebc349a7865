"""Fields of configuration dataclasses: meaning, type and default, from their docstrings and annotations."""

from __future__ import annotations

import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

_SECTION = re.compile(r"(?m)^(?:Attributes|Args):\n")
_SECTIONS = re.compile(r"(?m)^(?:Attributes|Args|Raises|Returns|Example):\n")
_ENTRY = re.compile(r"(?m)^(\w+(?:, \w+)*): ")
_MOST_DEFAULT = 40  # characters of a default that are shown


@dataclass(frozen=True)
class Argument:
    """A field of a configuration dataclass.

    Attributes:
        name: Its name.
        kind: Its type, as one would write it.
        default: Its default, as one would write it; "": it has none.
        meaning: What it is.
        nested: The dataclass that it holds, if any.
    """

    name: str
    kind: str
    default: str
    meaning: str
    nested: type | None


def arguments_of(cls: type, like: type | None = None) -> list[Argument]:
    """Fields of a dataclass, in order.

    Args:
        cls: The dataclass.
        like: Another one, in which fields of the same name mean the same.

    Raises:
        ValueError: A field has no entry under `Attributes` or `Args` in the docstrings of the class and its bases.
    """
    hints, meanings = get_type_hints(cls), (meanings_of(like) if like else {}) | meanings_of(cls)
    missing = [entry.name for entry in fields(cls) if entry.name not in meanings]
    if missing:
        raise ValueError(
            f"{cls.__name__} does not say what {', '.join(missing)} are: add them to its docstring"
        )
    return [
        Argument(
            entry.name,
            type_name(hints[entry.name]),
            _default_of(entry),
            meanings[entry.name],
            next(_dataclasses_in(hints[entry.name]), None),
        )
        for entry in fields(cls)
    ]


def meanings_of(cls: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of each attribute."""
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        section = (_SECTION.split(text, maxsplit=1)[1:] or [""])[0]
        body = textwrap.dedent("\n".join(_indented(section)))
        parts = _ENTRY.split(body)[1:]
        for names, said in zip(parts[::2], parts[1::2], strict=True):
            meanings |= dict.fromkeys(names.split(", "), " ".join(said.split()))
    return meanings


def prose_of(thing: Any) -> str:
    """What the docstring of a class or module says, without the sections of Google's form."""
    return _SECTIONS.split(inspect.cleandoc(thing.__doc__ or ""), maxsplit=1)[0].strip()


def type_name(hint: Any) -> str:
    """A type as one would write it."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(type_name(part) for part in get_args(hint))
    if hint is types.NoneType:
        return "null"
    if get_origin(hint) is None:
        return str(getattr(hint, "__name__", hint))
    inner = ", ".join("..." if part is Ellipsis else type_name(part) for part in get_args(hint))
    return f"{getattr(get_origin(hint), '__name__', hint)}[{inner}]"


def _indented(text: str) -> Iterator[str]:
    """Lines of a section of a docstring, up to the next one."""
    for line in text.splitlines():
        if line and not line.startswith(" "):
            return
        yield line


def _dataclasses_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for part in get_args(hint):
        yield from _dataclasses_in(part)


def _default_of(entry: Field[Any]) -> str:
    if entry.default is not MISSING:
        return _written(entry.default)
    if entry.default_factory is MISSING:
        return ""
    return _written(entry.default_factory())


def _written(value: Any) -> str:
    """A value as in YAML, where it is short."""
    if is_dataclass(value) or callable(value):
        return ""
    if isinstance(value, dict) and any(is_dataclass(item) for item in value.values()):
        return ""
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        text = f"{{{', '.join(f'{key}: {item}' for key, item in value.items())}}}"
    else:
        text = f"[{', '.join(map(str, value))}]" if isinstance(value, tuple | list) else str(value)
    return text if len(text) <= _MOST_DEFAULT else "..."
