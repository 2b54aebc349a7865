"""Which environments a policy decides in, by what it declares or by the state that its `act` takes."""

from __future__ import annotations

import inspect
import re
from typing import Any

from serving_gym.baselines.outside import is_outside, outside_policy
from serving_gym.baselines.registry import POLICIES, parts_of
from serving_gym.calibration.lookup import load_attribute
from serving_gym.envs.registration import ENVS


def environments_of(policy: Any) -> tuple[str, ...] | None:
    """Names of the environments that a policy decides in.

    Args:
        policy: The policy or its class. It may declare `environments`, a tuple of names; else the annotation of the
            argument `state` of its `act` counts.

    Returns:
        None: it says nothing about it, and may decide in any.
    """
    declared = getattr(policy, "environments", None)
    if declared is not None:
        return tuple(declared)
    parameters = list(inspect.signature(policy.act).parameters.values())
    annotation = parameters[-1].annotation if parameters else ""
    names = set(re.findall(r"\w+", annotation if isinstance(annotation, str) else _names_of(annotation)))
    found = tuple(name for name, entry in ENVS.items() if entry.state and entry.state in names)
    return found or None


def fits(name: str, env: str) -> bool:
    """Whether a policy, by the name that `make_policy` knows, may decide in an environment.

    Args:
        name: Of the policy; a static layout (`static_4x2`) as well.
        env: Of the environment.
    """
    name = parts_of(name)[0]
    if is_outside(name):
        found = environments_of(outside_policy(name))
    else:
        entry = POLICIES.get(name, POLICIES["static"])
        found = environments_of(load_attribute(entry.policy))
    return found is None or env in found


def check_fits(label: str, policy: Any, env: str) -> None:
    """Refuses a policy that decides about something else.

    Args:
        label: What the policy is called.
        policy: The policy.
        env: Name of the environment.

    Raises:
        ValueError: names the policy and where it belongs.
    """
    found = environments_of(policy)
    if found is not None and env not in found:
        raise ValueError(f"policy {label!r} does not fit env={env}: it decides in env={' or '.join(found)}")


def _names_of(annotation: Any) -> str:
    """Names in an annotation that is no text: of a class, or of the members of a union."""
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation)
