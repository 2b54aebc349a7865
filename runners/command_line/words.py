"""``key=value`` words of the commands that Hydra does not compose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import yaml

from serving_gym.calibration.lookup import check_choice, read_yaml

Words = dict[str, Any]
Reader = Callable[[str], Any]


def truth(text: str) -> bool:
    """A word that is true or false.

    Raises:
        ValueError: It is neither.
    """
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def mapping(text: str) -> dict[str, Any]:
    """Keys and values, as ``{weight: 0.5}``.

    Raises:
        ValueError: It is none.
    """
    return {str(key): value for key, value in _yaml(text, dict).items()}


def names(text: str) -> dict[str, str]:
    """A mapping of names, as ``{input_tokens: prompt_len}``.

    Raises:
        ValueError: It is none.
    """
    return {key: str(name) for key, name in mapping(text).items()}


def listing(text: str) -> list[Any]:
    """A list, as ``[train,validation]``.

    Raises:
        ValueError: It is none.
    """
    found: list[Any] = _yaml(text, list)
    return found


_KINDS: dict[Reader, str] = {
    int: "a whole number",
    float: "a number",
    truth: "true or false",
    names: "a mapping, as {ours: theirs}",
    mapping: "keys and values, as {weight: 0.5}",
    listing: "a list, as [train,validation]",
}


def parse_words(arguments: Iterable[str], allowed: Mapping[str, Reader]) -> Words:
    """Parses ``key=value`` arguments; those whose value is empty or null are left out.

    Args:
        arguments: The arguments.
        allowed: What reads the value of each key: `str`, `int`, `float`, or a function of this module.

    Raises:
        ValueError: An argument has no "=", a key is unknown (with the nearest match) or repeated, or a value has the
            wrong type.
    """
    words: Words = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise ValueError(f"expected key=value, got {argument!r}")
        check_choice("word", key, allowed)
        if key in words:
            raise ValueError(f"{key} is given twice")
        if value in ("null", ""):
            continue
        try:
            words[key] = allowed[key](value)
        except ValueError:
            raise ValueError(f"{key} must be {_KINDS[allowed[key]]}, got {value!r}") from None
    return words


def _yaml(text: str, kind: type) -> Any:
    try:
        value = read_yaml(text)
    except yaml.YAMLError:
        value = None
    if not isinstance(value, kind):
        raise ValueError(text)
    return value
