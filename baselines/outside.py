"""Policies from outside this package: `module:Class`, `./file.py:Class`, and the entry points of installed packages."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from serving_gym.baselines.files import load_file
from serving_gym.baselines.policy import Policy

GROUP = "serving_gym.policies"
_METHODS = {"reset": ("spec", "seed"), "act": ("observation", "state")}
_ATTRIBUTES = {"name": str, "clairvoyant": bool}
_PLAIN = (bool, int, float, str, type(None))


@cache
def policy_entry_points() -> Mapping[str, EntryPoint]:
    """Entry points of the group `serving_gym.policies`, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def is_outside(name: str) -> bool:
    """Whether a policy's name is `module:Class`, `file.py:Class`, or one of an entry point."""
    return ":" in name or name in policy_entry_points()


def outside_policy(name: str) -> Callable[..., Policy]:
    """The class that a name stands for.

    Args:
        name: `module:Class`, where modules of the current folder count; `file.py:Class`; or an entry point's.

    Raises:
        ValueError: It cannot be imported, or is not a policy.
    """
    target = policy_entry_points()[name].value if name in policy_entry_points() else name
    module_name, _, attribute = target.rpartition(":")
    module = _module(module_name, name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            classes = [each for each, value in vars(module).items() if inspect.isclass(value)]
            near = get_close_matches(part, classes, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"cannot load policy {name!r}: {module_name} has no {part!r}{hint}")
        found = getattr(found, part)
    _check_methods(name, found)
    policy: Callable[..., Policy] = found
    return policy


def make_outside(name: str, params: Mapping[str, Any]) -> Policy:
    """A policy from outside.

    Args:
        name: See `outside_policy`.
        params: Arguments of its class.

    Raises:
        ValueError: It cannot be imported, is not a policy, or does not take such arguments.
    """
    policy_class = outside_policy(name)
    _check_arguments(name, policy_class, params)
    policy = policy_class(**params)
    for attribute, kind in _ATTRIBUTES.items():
        if not isinstance(getattr(policy, attribute, None), kind):
            raise ValueError(f"{name!r} is not a policy: it has no attribute {attribute} ({kind.__name__})")
    for method in _METHODS:
        _check_signature(name, method, getattr(policy, method, None))
    return policy


def outside_params(name: str) -> dict[str, Any]:
    """Arguments of a policy's class that have plain defaults, with these.

    Raises:
        ValueError: as `outside_policy`.
    """
    parameters = inspect.signature(outside_policy(name)).parameters.values()
    return {each.name: each.default for each in parameters if isinstance(each.default, _PLAIN)}


def outside_source(name: str) -> Path | None:
    """The file that a policy's class stands in; None: there is none.

    Raises:
        ValueError: as `outside_policy`.
    """
    found = inspect.getsourcefile(inspect.unwrap(outside_policy(name)))
    return None if found is None else Path(found)


def _module(module: str, name: str) -> ModuleType:
    """A module by name or by file.

    Raises:
        ValueError: It cannot be imported, for whatever reason.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return load_file(module) if module.endswith(".py") else import_module(module)
    except SyntaxError as error:
        raise ValueError(
            f"cannot load policy {name!r}: {error.filename}, line {error.lineno}: {error.msg}"
        ) from error
    except Exception as error:  # whatever a module does when it is imported
        raise ValueError(f"cannot load policy {name!r}: {error}") from error


def _check_methods(name: str, policy: Any) -> None:
    """Raises ValueError where a class lacks a method of `Policy`; what a function makes is looked at later."""
    if not callable(policy):
        raise ValueError(f"{name!r} is not a policy but a {type(policy).__name__}")
    if not inspect.isclass(policy):
        return
    for method, parameters in _METHODS.items():
        if not callable(getattr(policy, method, None)):
            raise ValueError(f"{name!r} is not a policy: it has no method {method}({', '.join(parameters)})")


def _check_signature(name: str, method: str, bound: Any) -> None:
    parameters = _METHODS[method]
    shown = f"{method}({', '.join(parameters)})"
    if not callable(bound):
        raise ValueError(f"{name!r} is not a policy: it has no method {shown}")
    try:
        inspect.signature(bound).bind(*parameters)
    except TypeError:
        raise ValueError(f"{name!r} is not a policy: its method {method} must take {shown}") from None


def _check_arguments(name: str, policy_class: Callable[..., Policy], params: Mapping[str, Any]) -> None:
    signature = inspect.signature(policy_class)
    try:
        signature.bind(**params)
    except TypeError as error:
        known = ", ".join(signature.parameters) or "none"
        raise ValueError(f"parameters of policy {name!r}: {error} (allowed: {known})") from None
