"""Mirrors frozen dataclasses as mutable ones that Hydra merges YAML into, and builds them back.

OmegaConf refuses to merge into frozen dataclasses, so `schema_of` mirrors a dataclass without the freezing and without
its methods, and `build` builds the frozen dataclass from the merged container, which runs its own checks.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from serving_gym.calibration.lookup import check_choice

T = TypeVar("T")


@functools.cache
def schema_of(cls: type, omit: tuple[str, ...] = (), **extra: type) -> type:
    """Mutable mirror of a dataclass, for Hydra's ConfigStore.

    Args:
        cls: dataclass; its nested dataclasses are mirrored as well.
        omit: fields to leave out.
        extra: further fields, required.
    """
    hints = get_type_hints(cls)
    entries: list[Any] = list(extra.items())
    entries += [
        (entry.name, _mirrored(hints[entry.name]), _default(entry))
        for entry in dataclasses.fields(cls)
        if entry.name not in omit
    ]
    return dataclasses.make_dataclass(cls.__name__, entries, kw_only=True)


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """The dataclass `cls` from a plain container, nested dataclasses included.

    Args:
        cls: dataclass.
        values: its fields by name; typed values stay unchanged.
        prefix: prefix of field names in messages, as "env.".

    Raises:
        ValueError: a key that is no field (Hydra's `+key=value` brings such), or from the dataclasses' own checks.
    """
    hints = get_type_hints(cls)
    for name in values:
        check_choice("key", f"{prefix}{name}", [f"{prefix}{known}" for known in hints])
    return cls(**{name: _built(hints[name], value, f"{prefix}{name}.") for name, value in values.items()})


def field_values(config: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, as they are."""
    return {entry.name: getattr(config, entry.name) for entry in dataclasses.fields(config)}


def _default(entry: dataclasses.Field[Any]) -> Any:
    """The field's default in mirrored form; fields without a default are mandatory."""
    if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
        return dataclasses.field(default="???")
    factory = entry.default_factory
    value = entry.default if factory is dataclasses.MISSING else factory()
    return dataclasses.field(default_factory=functools.partial(_mirrored_value, value))


def _mirrored_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        values = {f.name: _mirrored_value(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return schema_of(type(value))(**values)
    if isinstance(value, dict):
        return {key: _mirrored_value(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_mirrored_value(entry) for entry in value)
    return value


def _mirrored(hint: Any) -> Any:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return schema_of(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return Union[tuple(_mirrored(argument) for argument in arguments)]  # noqa: UP007
    if origin is None:
        return hint
    return origin[tuple(argument if argument is ... else _mirrored(argument) for argument in arguments)]


def _built(hint: Any, value: Any, prefix: str) -> Any:
    if value is None:
        return None
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _built(next(argument for argument in arguments if argument is not type(None)), value, prefix)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return build(hint, value, prefix) if isinstance(value, Mapping) else value
    if origin is dict:
        return {key: _built(arguments[1], entry, f"{prefix}{key}.") for key, entry in value.items()}
    if origin is tuple:
        return tuple(_built(arguments[0], entry, prefix) for entry in value)
    if origin is list:
        return [_built(arguments[0], entry, prefix) for entry in value]
    return value
