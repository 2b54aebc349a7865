"""Pages of policies, one for each family: what a policy is after, what it reads, when it is asked, its constants."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from serving_gym.baselines.fit import environments_of
from serving_gym.baselines.policy import Tunable, history_needed_of, period_of
from serving_gym.baselines.registry import POLICIES, is_admitter, make_policy, policy_tunables
from serving_gym.calibration.lookup import load_attribute
from serving_gym.runners.documentation.markdown import code, importable, table
from serving_gym.runners.documentation.policy_files import files_of, files_table
from serving_gym.runners.documentation.reading import reads_of, state_classes
from serving_gym.runners.documentation.schema_tables import Schemas
from serving_gym.runners.documentation.schemas import arguments_of, prose_of
from serving_gym.runners.documentation.units import unit_of
from serving_gym.runners.reproduction.config import PAPERS

_FOLDER = "policies"
_ADMISSION, _SEVERAL = "admission", "several"
_TERMS = (
    "*Asked*: its own period, else whenever the environment asks. *Tuned twins*: files of `configs/policy` with "
    "constants that a tuner found. A policy reads the fields and columns of the state that its code names; "
    "`observation` is the encoded one. `policy.params.NAME=VALUE` sets a constant."
)
# Title and lead of each family: an environment's name, admission, or what decides in several environments.
FAMILIES = {
    "dp_tp": (
        "Layout policies",
        "They choose the layout of a node's engines, in [dp_tp](../../docs/dp_tp.md).",
    ),
    "routing": (
        "Routing heuristics",
        "They choose the engine of a request, in [routing](../../docs/routing.md).",
    ),
    _ADMISSION: (
        "Admission policies",
        "They let requests in, hold, defer or refuse them before a router places them: "
        "[admission under overload](../../docs/overload.md).",
    ),
    "deployment": (
        "Deployment planners",
        "They choose replicas and their parallelism, in [deployment](../../docs/deployment.md).",
    ),
    "autoscaling": (
        "Autoscalers",
        "They choose the number of instances, in [autoscaling](../../docs/autoscaling.md).",
    ),
    "sharing": (
        "Sharing placers",
        "They place requests and instances of many models on shared nodes, in [sharing](../../docs/sharing.md).",
    ),
    _SEVERAL: ("Policies of several environments", "They decide in more than one environment."),
}


def family_of(name: str) -> str:
    """The family of a registered policy; an environment without a family here is one by its name."""
    if is_admitter(name):
        return _ADMISSION
    found = environments_of(load_attribute(POLICIES[name].policy)) or ()
    return found[0] if len(found) == 1 else _SEVERAL


def family_pages(schemas: Schemas) -> dict[str, str]:
    """Content of the page of each family, by its path in the reference."""
    families: dict[str, list[str]] = {}
    for name in POLICIES:
        families.setdefault(family_of(name), []).append(name)
    pages = {}
    for family, names in families.items():
        path = f"{_FOLDER}/{family}.md"
        title, lead = FAMILIES.get(family, (family.capitalize(), f"They decide in `env={family}`."))
        text = [f"# {title}", f"{lead} {_TERMS}", overview(names)]
        for name in names:
            text += [f"## `{name}`", *policy_text(name, schemas, path)]
        pages[path] = importable("\n\n".join(text)) + "\n"
    return pages


def overview(names: list[str]) -> str:
    """A row a policy; its period where one of the family has its own."""
    periods = {name: asked(name) for name in names}
    rows = []
    for name in names:
        tuned = ", ".join(code(file.name) for file in files_of(name) if file.is_tuned)
        row = [f"[`{name}`](#{name})", purpose_of(name), tuned]
        rows.append([*row, periods[name]] if any(periods.values()) else row)
    head = ["policy", "what it is", "tuned twins"]
    return table([*head, "asked"] if any(periods.values()) else head, rows)


def purpose_of(name: str) -> str:
    """What the policy's file in configs/policy says of it, else the first sentence of its class."""
    own = next((file.purpose for file in files_of(name) if file.name == name), "")
    return own or prose_of(load_attribute(POLICIES[name].policy)).partition("\n")[0]


def asked(name: str) -> str:
    """When a policy with its default constants is asked, and how much past it needs."""
    policy: Any = _made(name)
    if policy is None:
        return ""
    period, history = period_of(policy), history_needed_of(policy)
    said = "" if period is None else f"each {period:g} s"
    if history:
        said += f"{'; ' if said else ''}needs {history:g} s of traffic"
    return said


def _made(name: str) -> Any:
    """A policy with its defaults; None where a parameter has none."""
    entry = POLICIES[name]
    parameters = inspect.signature(load_attribute(entry.config or entry.policy)).parameters.values()
    if any(one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters):
        return None
    return make_policy(name)


def policy_text(name: str, schemas: Schemas, path: str) -> Iterator[str]:
    """What a policy does, its files, and its constants with the range in which a tuner searches."""
    entry = POLICIES[name]
    cls: Any = load_attribute(entry.policy)
    package = entry.policy.split(".")[1]
    if package in PAPERS:
        yield f"[Its paper, step by step, and figures beside ours](../../docs/papers/{package}.md)."
    yield f"`serving_gym.{entry.policy.replace(':', '.')}`. {prose_of(import_module(cls.__module__))}"
    yield prose_of(cls)
    if getattr(cls, "clairvoyant", False):
        yield "Clairvoyant: it sees the future, and is a reference, not a rival."
    reads = ", ".join(map(code, reads_of(cls)))
    yield f"Reads of {' or '.join(f'`{state.__name__}`' for state in state_classes(cls))}: {reads}."
    others = [file for file in files_of(name) if file.name != name]
    if others:
        yield _folded(f"Further files in configs/policy: {len(others)}", files_table(others))
    if entry.config:
        constants = constants_table(load_attribute(entry.config), policy_tunables(name), schemas, path)
        yield _folded("Constants", constants)


def constants_table(config: type, tunables: dict[str, Tunable], schemas: Schemas, path: str) -> str:
    """A row a constant.

    Args:
        config: The dataclass of the constants.
        tunables: Those that a tuner may search, with their ranges.
        schemas: Where dataclasses that they hold are written.
        path: Of the page.
    """
    return table(
        ["constant", "type", "default", "unit", "tuner's range", "meaning"],
        (
            [
                f"`{item.name}`",
                schemas.type_of(item, path),
                code(item.default),
                unit_of(item.name),
                range_of(tunables[item.name]) if item.name in tunables else "",
                item.meaning,
            ]
            for item in arguments_of(config)
        ),
    )


def range_of(tunable: Tunable) -> str:
    """The range in which a tuner searches, in words."""
    if tunable.values:
        return ", ".join(code(str(value)) for value in tunable.values)
    return f"{tunable.low:g} to {tunable.high:g}" + (", logarithmic" if tunable.log else "")


def _folded(title: str, content: str) -> str:
    """Content that opens on a click."""
    return f'<details markdown="1"><summary>{title}</summary>\n\n{content}\n\n</details>'
