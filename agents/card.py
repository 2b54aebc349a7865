"""The card of a checkpoint: what it is, how it was trained, its results and its limits. All cards have this form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

SECTIONS = ("Training", "Results", "Limits")


def card_text(
    config: Mapping[str, Any],
    figures: Mapping[str, Any],
    results: Mapping[str, Any],
    versions: Mapping[str, str],
    command: str = "",
) -> str:
    """Text of the card of a checkpoint that a command writes.

    Args:
        config: `agent`, `env` and `workload`, as plain values.
        figures: Of the training, by name.
        results: Of the policy, by name.
        versions: Of the packages, by name.
        command: The command that trained it; "": it is not known.
    """
    return "\n\n".join(_parts(config, figures, results, versions, command)) + "\n"


def _parts(
    config: Mapping[str, Any],
    figures: Mapping[str, Any],
    results: Mapping[str, Any],
    versions: Mapping[str, str],
    command: str,
) -> Iterator[str]:
    agent, env, workload = (config[key]["name"] for key in ("agent", "env", "workload"))
    yield f"# {agent} on {env}"
    yield f"A policy for the environment `{env}`, trained with `agent={agent}` on `workload={workload}`."
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield _table({**figures, "versions": listed})
    yield f"## {SECTIONS[0]}"
    if command:
        yield f"    {command}"
    yield "All settings are in `config.yaml`."
    yield f"## {SECTIONS[1]}"
    if results:
        yield _table(results)
    yield (
        "On test episodes, paired with other policies: "
        f"`python -m runners.compare env={env} 'policies=[POLICY,FOLDER]'`."
    )
    yield f"## {SECTIONS[2]}"
    yield (
        f"It has seen the traffic of `workload={workload}` and the settings of `config.yaml`. Where observations or "
        "actions have other shapes it is refused; other traffic and clusters of the same shapes are untested."
    )


def _table(values: Mapping[str, Any]) -> str:
    rows = (f"| {name} | {_shown(value)} |" for name, value in values.items())
    return "\n".join(["| | |", "|---|---|", *rows])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
