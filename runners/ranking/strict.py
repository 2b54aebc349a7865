"""Dataclasses from YAML: no key too many, none missing, each of its type."""

from __future__ import annotations

import dataclasses
import datetime
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from serving_gym.calibration.lookup import check_choice, read_yaml

T = TypeVar("T")
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def read_file(cls: type[T], path: Path, **further: Any) -> T:
    """A dataclass from a YAML file.

    Args:
        cls: The dataclass.
        path: The file.
        further: Values of fields that the file does not hold.

    Raises:
        ValueError: There is no such file, or it does not hold this dataclass; names the key.
    """
    if not path.is_file():
        raise ValueError(f"no file {str(path)!r}")
    try:
        values = read_yaml(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, Mapping):
        raise ValueError(f"{path} must hold keys and values")
    try:
        return strictly(cls, {**values, **further})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def strictly(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """A dataclass from plain values; every field must be given.

    Args:
        cls: The dataclass, its nested ones included.
        values: Its fields.
        prefix: Of the fields' names in messages, as "policy.".

    Raises:
        ValueError: A key is unknown or missing, or a value has another type.
    """
    hints = get_type_hints(cls)
    names = [entry.name for entry in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in values:
        check_choice("key", f"{prefix}{key}", [f"{prefix}{name}" for name in names])
    for name in names:
        if name not in values:
            raise ValueError(f"{prefix}{name} is missing")
    return cls(**{name: _typed(hints[name], values[name], f"{prefix}{name}") for name in names})


def _typed(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _typed(next(each for each in arguments if each is not type(None)), value, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return strictly(hint, _checked(value, Mapping, where, "keys and values"), f"{where}.")
    if origin is tuple:
        entries = _checked(value, list, where, "a list")
        return tuple(_typed(arguments[0], entry, where) for entry in entries)
    if origin is dict:
        entries = _checked(value, Mapping, where, "keys and values")
        return {str(key): _typed(arguments[1], entry, f"{where}.{key}") for key, entry in entries.items()}
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is datetime.date:
        return _checked(value, datetime.date, where, "a date, as 2026-12-01")
    if isinstance(value, bool) and hint is not bool:
        raise ValueError(f"{where} must be {_WORDS[hint]}, got {value!r}")
    return _checked(value, hint, where, _WORDS[hint])


def _checked(value: Any, kind: Any, where: str, what: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{where} must be {what}, got {value!r}")
    return value
