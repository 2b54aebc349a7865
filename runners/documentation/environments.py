"""Pages of the environments, one form for all, from their classes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_type_hints

import yaml

from serving_gym.envs.base.features import Feature, Part
from serving_gym.envs.registration import ENVS, EnvEntry
from serving_gym.runners.configuration.folders import CONFIG_DIR
from serving_gym.runners.configuration.schema import SHARED_ENV_FIELDS
from serving_gym.runners.documentation.code_blocks import COMMAND_LINE, PYTHON
from serving_gym.runners.documentation.markdown import block, code, importable, table
from serving_gym.runners.documentation.results import Results
from serving_gym.runners.documentation.schemas import arguments_of
from serving_gym.runners.documentation.tree import ROOT

SECTIONS = (
    "Action space",
    "Observation space",
    "Reward",
    "Start and end",
    "The default task",
    "What there is to gain",
    "Arguments",
    "Version history",
)
# What further pages say of an environment.
_MORE = {
    "routing": "[Admission under overload](overload.md): a task in which requests are also refused or deferred.",
    "deployment": "[Rivals](rivals.md): the planners with exact profiles.",
    "autoscaling": "[Rivals](rivals.md): autoscalers as published, tuned, and at periods of their own.",
}
_HIGH = "64"


def environment_page(name: str) -> str:
    """The page of an environment.

    Args:
        name: As in `env=NAME`.

    Raises:
        ValueError: Its docstring has other sections than `SECTIONS`.
    """
    entry = ENVS[name]
    env_class, config_class = entry.load(entry.entry_point), entry.load(entry.config)
    lead, sections = manual_of(env_class)
    kind = entry.env_id.partition("/")[2].partition("-")[0].replace("DPTP", "DP/TP")
    written = {
        "Observation space": [part_text(part, config_class) for part in env_class.parts],
        "What there is to gain": [Results.of(name).as_text()],
        "Arguments": [arguments_text(name, config_class)],
    }
    text = [
        f"# {kind}: `{entry.env_id}`",
        f"<!-- Written by `python -m runners.documentation` from {entry.entry_point.partition(':')[0]}. -->",
        lead,
        picture_text(name, kind),
        facts(name, entry, env_class),
        _MORE.get(name, ""),
        use(name, entry),
    ]
    for title in SECTIONS:
        text += [f"## {title}", sections[title], *written.get(title, [])]
    return "\n\n".join(importable(part.strip("\n")) for part in text if part) + "\n"


def manual_of(env_class: type) -> tuple[str, dict[str, str]]:
    """What a class says of itself: the lead, and its sections by title.

    Raises:
        ValueError: The sections are not `SECTIONS`, in this order.
    """
    lead, *rest = re.split(r"(?m)^## (.+)$", inspect.cleandoc(env_class.__doc__ or ""))
    titles, texts = rest[::2], rest[1::2]
    if tuple(titles) != SECTIONS:
        raise ValueError(
            f"the docstring of {env_class.__name__} must have the sections {', '.join(SECTIONS)}; "
            f"got {', '.join(titles)}"
        )
    return re.sub(r" `Serving/[\w-]+`\.", "", lead, count=1), dict(zip(titles, texts, strict=True))


def picture_text(name: str, kind: str) -> str:
    """The picture of an environment and its animation, as far as docs/images has them."""
    images = [f"images/{name}.{suffix}" for suffix in ("png", "gif")]
    still, moving = (image if (ROOT / "docs" / image).is_file() else "" for image in images)
    lines = [f"![{kind}: an episode]({still})"] if still else []
    if moving:
        lines.append(f"[Animated]({moving}), with a policy beside another ([how](figures.md)).")
    return "\n\n".join(lines)


def facts(name: str, entry: EnvEntry, env_class: Any) -> str:
    """Where it is, and how large its observation is."""
    commands = [code(command.__name__) for command in env_class.commands]
    always = [part for part in env_class.parts if not part.when]
    rows = [
        ["Names", f"`{entry.env_id}`, `env={name}`"],
        ["Class", f"`{entry.package}.{entry.entry_point.replace(':', '.')}`"],
        ["Vector environment", f"`{entry.package}.{entry.vector_entry_point.replace(':', '.')}`"],
        ["Observation", f"`Dict({', '.join(map(shape_of, always))})`, float32 in [0, {_HIGH}]"],
        ["State that policies read", code(entry.state)],
    ]
    if commands:
        rows.append(["Commands that `step` takes too", ", ".join(commands)])
    return table(["", ""], rows)


def use(name: str, entry: EnvEntry) -> str:
    """How to run it, on the command line and in Python."""
    policies = Results.of(name).ranked()[-3:]
    lines = [
        COMMAND_LINE,
        block(f"python -m runners.compare env={name} seeds=3 'policies=[{','.join(policies)}]'"),
        PYTHON,
        block(
            "import gymnasium\nimport serving_gym\n\n"
            f'env = gymnasium.make("{entry.env_id}").unwrapped\n'
            f'policy = serving_gym.load_policy("{policies[-1]}")\n'
            "observation, info = env.reset(seed=0)\n"
            "policy.reset(env.policy_spec, 0)\n"
            "action = policy.act(observation, env.state)\n"
            "observation, reward, terminated, truncated, info = env.step(action)"
        ),
    ]
    return "\n\n".join(lines)


def shape_of(part: Part) -> str:
    """The shape of a part, in words: `places=(places, 20)`."""
    size = str(len(part.features))
    if part.each:
        times = "" if len(part.repeated) == 1 else f"{len(part.repeated)} × "
        size += f" + {times}{_plural(part.each)}"
    return f"{part.name}=({f'{_plural(part.rows)}, {size}' if part.rows else f'{size},'})"


def part_text(part: Part, config_class: type) -> str:
    """A part of the observation: its tables."""
    scales = scales_of(config_class)
    rows = f": one row for each {part.rows}" if part.rows else ""
    when = f" (with `{part.when}`)" if part.when else ""
    text = [f"### `{part.name}`{rows}{when}", features_table(part.features, scales)]
    if part.each:
        text += [f"Behind them, for each {part.each}:", features_table(part.repeated, scales)]
    return "\n\n".join(text)


def features_table(features: tuple[Feature, ...], scales: dict[str, float]) -> str:
    """A row a feature."""
    return table(
        ["feature", "meaning", "unit", "shown as", "range"],
        ([f"`{item.name}`", item.meaning, item.unit, *shown_as(item, scales)] for item in features),
    )


def shown_as(feature: Feature, scales: dict[str, float]) -> tuple[str, str]:
    """How a quantity is shown with the default scales, and the range of what is shown."""
    high = _HIGH if feature.high > 1 else "1"
    if feature.binary:
        return "0 or 1", "{0, 1}"
    if feature.scale is None:
        return "as it is", f"[0, {high}]"
    scale = scales[feature.scale] if isinstance(feature.scale, str) else feature.scale
    return ("log1p(x)" if scale == 1 else f"log1p(x / {scale:,.10g})"), f"[0, {high}]"


def scales_of(config_class: type) -> dict[str, float]:
    """Default scales of an observation."""
    scales: Any = get_type_hints(config_class)["scales"]()
    return {entry.name: getattr(scales, entry.name) for entry in fields(scales)}


def arguments_text(name: str, config_class: type) -> str:
    """The fields of an environment's configuration, with the files that it chooses of config groups."""
    chosen = choices_of(name)
    rows = (
        [f"`{item.name}`", code(chosen.get(item.name, item.default)) or item.kind, item.meaning]
        for item in arguments_of(config_class)
    )
    shared = ", ".join(f"`{key}=`" for key in SHARED_ENV_FIELDS)
    return "\n\n".join(
        [
            table(["argument", "default", "meaning"], rows),
            "In Python these are keywords of `gymnasium.make`; commands take `env.ARGUMENT=VALUE`, and "
            f"{shared} without `env.`. Their class is `{config_class.__module__}.{config_class.__name__}`.",
        ]
    )


def choices_of(name: str) -> dict[str, str]:
    """Files of config groups that an environment chooses, by group."""
    values = yaml.safe_load((CONFIG_DIR / f"env/{name}.yaml").read_text(encoding="utf-8"))
    words = (word for entry in values["defaults"] if isinstance(entry, dict) for word in entry.items())
    return {key.removeprefix("override /"): choice for key, choice in words if key.startswith("override /")}


def environment_pages() -> Iterator[tuple[str, str]]:
    """Path in docs/ and content of the page of each environment of this package."""
    for name, entry in ENVS.items():
        if entry.package:
            yield f"docs/{name}.md", environment_page(name)


def _plural(what: str) -> str:
    """`past span, the latest first` becomes `spans`."""
    word = re.split(",| of ", what)[0].split()[-1]
    return f"{word}es" if word.endswith("s") else f"{word}s"
