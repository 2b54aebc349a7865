"""Names: the nearest to a mistyped one, and what an internal `module:attribute` stands for; and YAML, read fast."""

import importlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # both are safe; the first is in C


def read_yaml(text: str) -> Any:
    """Plain values of a YAML text.

    Raises:
        yaml.YAMLError: The text is no YAML.
    """
    return yaml.load(text, Loader=_LOADER)


def nearest(name: str, allowed: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the nearest match, if any, and all that is allowed."""
    choices = list(allowed)
    lowered = {choice.lower(): choice for choice in choices}
    close = get_close_matches(name.lower(), lowered, n=1, cutoff=0.4)
    hint = f"; did you mean {lowered[close[0]]!r}?" if close else ""
    return f"{hint} (allowed: {', '.join(choices) or 'none'})"


def check_choice(what: str, value: str, allowed: Iterable[str]) -> None:
    """Refuses a name that is not allowed.

    Args:
        what: What is chosen, for the message.
        value: The choice.
        allowed: The names allowed.

    Raises:
        ValueError: It is not among them; the message names the nearest match and all names.
    """
    choices = tuple(allowed)
    if value not in choices:
        raise ValueError(f"unknown {what} {value!r}{nearest(value, choices)}")


def load_attribute(target: str, package: str = "serving_gym") -> Any:
    """An attribute of a module, imported on demand.

    Args:
        target: `module:attribute`, as "baselines.common.static:StaticDPPolicy".
        package: What the module lies in; empty: it is a whole name.
    """
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(f"{package}.{module}" if package else module), attribute)
