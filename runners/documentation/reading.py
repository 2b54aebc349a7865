"""What a policy reads of its environment's state: names of the state's tables in its code and in what that calls."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from serving_gym.envs.interface import scaling, sharing
from serving_gym.envs.interface import state as interface_state

# Modules whose tables states hold, beside their own.
_TABLES = {"AutoscalingState": (interface_state, scaling), "SharingState": (sharing,)}
_SOURCES = ("serving_gym.baselines.", "serving_gym.agents.environments.")
_NOT_STATE = ("self", "config", "np", "spec", "setting")  # names whose attributes are no state
_OBSERVATION = "observation"
# What every policy of an environment reads to find the rest.
_STEPS = (
    "now_s",
    "request",
    "endpoint",
    "endpoints",
    "can_take",
    "event",
    "index",
    "place",
    "model",
    "held_before",
)


def reads_of(policy: type) -> list[str]:
    """Columns and fields of the state that a policy, or a function or class of the same packages that it uses, names.

    `observation` among them: it reads the encoded observation.

    Args:
        policy: The class.
    """
    known = {_OBSERVATION}.union(*map(_names_of_tables, state_classes(policy)))
    named = known & {name for thing in _used_by(policy) for name in _names_in(thing)}
    return sorted(named - set(_STEPS)) or sorted(named)


def state_classes(policy: type) -> tuple[type, ...]:
    """The state classes that `act` takes; none where it does not say."""
    owner = next(base for base in policy.__mro__ if "act" in vars(base))
    hint = get_type_hints(vars(owner)["act"]).get("state")
    if get_origin(hint) in (Union, UnionType):
        return tuple(get_args(hint))
    return (hint,) if isinstance(hint, type) else ()


def _names_of_tables(state: type) -> set[str]:
    """Fields of a state and of the dataclasses beside it, and columns of the tables that it may hold."""
    names: set[str] = set()
    beside = sys.modules[state.__module__]
    for module in (beside, *_TABLES.get(state.__name__, (interface_state,))):
        for value in vars(module).values():
            if isinstance(value, np.dtype) and value.names:
                names |= set(value.names)
            elif module is beside and _is_state(value):
                names |= {entry.name for entry in fields(value)}
    return names


def _is_state(value: Any) -> bool:
    return isinstance(value, type) and is_dataclass(value) and value.__name__.endswith(("State", "Request"))


def _used_by(policy: type) -> Iterator[Any]:
    """The class, and every function and class of `_SOURCES` that its code names, directly or not."""
    waiting: list[Any] = [policy]
    found: set[Any] = set()
    while waiting:
        thing = waiting.pop()
        if thing in found or not thing.__module__.startswith(_SOURCES):
            continue
        found.add(thing)
        yield thing
        waiting += thing.__mro__[1:] if isinstance(thing, type) else ()
        known = vars(sys.modules[thing.__module__])
        names = {node.id for node in ast.walk(_tree_of(thing)) if isinstance(node, ast.Name)}
        waiting += [known[name] for name in sorted(names & known.keys()) if _has_code(known[name])]


def _has_code(value: Any) -> bool:
    return inspect.isfunction(value) or inspect.isclass(value)


def _tree_of(thing: Any) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(thing)))


def _names_in(thing: Any) -> Iterator[str]:
    """Column names in brackets, attributes of local names, and the observation."""
    for node in ast.walk(_tree_of(thing)):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            on_observation = isinstance(node.value, ast.Name) and node.value.id == _OBSERVATION
            yield _OBSERVATION if on_observation else str(node.slice.value)
        elif isinstance(node, ast.Attribute) and _is_local(node.value):
            yield node.attr


def _is_local(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id not in _NOT_STATE
