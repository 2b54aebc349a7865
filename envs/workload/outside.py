"""Workloads of installed packages: the entry points `serving_gym.workloads`.

An entry point names a function that makes a workload, with the parameters `params`: a `Generator`, or a `Workload`, of
which episodes are windows as of a trace; or a mapping of the fields of a `WorkloadSpec`; or the path of a YAML file
that holds one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import yaml

from serving_gym.envs.workload.generators import Generator
from serving_gym.envs.workload.schema import Workload

GROUP = "serving_gym.workloads"
_MEMBERS = ("name", "num_requests", "rate_rps", "classes", "max_input_tokens", "max_output_tokens", "sample")


@cache
def workload_entry_points() -> Mapping[str, EntryPoint]:
    """Entry points of the group `serving_gym.workloads`, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


@cache
def outside_workload(name: str) -> Callable[..., Any] | Mapping[str, Any]:
    """The function that makes a workload of a package, or its fields.

    Raises:
        ValueError: it cannot be loaded, or is neither.
    """
    point = workload_entry_points()[name]
    try:
        found = point.load()
        if isinstance(found, str | Path):
            found = yaml.safe_load(Path(found).read_text(encoding="utf-8"))
    except Exception as error:  # whatever a module does when it is imported
        raise ValueError(f"cannot load workload {name!r} ({point.value}): {error}") from error
    if isinstance(found, Mapping) or callable(found):
        return found
    raise ValueError(
        f"workload {name!r} ({point.value}) must be a function, a mapping or the path of a YAML file, got "
        f"{type(found).__name__}"
    )


def outside_fields(name: str) -> Mapping[str, Any] | None:
    """Fields of the `WorkloadSpec` of a workload of a package; None: a function makes it.

    Raises:
        ValueError: as `outside_workload`.
    """
    found = outside_workload(name)
    return found if isinstance(found, Mapping) else None


def outside_parameters(name: str) -> tuple[str, ...]:
    """Parameters that a workload of a package takes.

    Raises:
        ValueError: as `outside_workload`.
    """
    found = outside_workload(name)
    return () if isinstance(found, Mapping) else tuple(inspect.signature(found).parameters)


def made_outside(name: str, params: Mapping[str, Any]) -> Generator | Workload:
    """The workload that a function of a package makes.

    Args:
        name: Of the entry point.
        params: Arguments of the function.

    Raises:
        ValueError: it is not a workload; names what it lacks.
    """
    found = outside_workload(name)
    assert callable(found)
    made = found(**params)
    if isinstance(made, Workload):
        return made
    missing = [member for member in _MEMBERS if not hasattr(made, member)]
    if missing:
        raise ValueError(f"workload {name!r} is not a generator: it has no {missing[0]}")
    generator: Generator = made
    return generator
