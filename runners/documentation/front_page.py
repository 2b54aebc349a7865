"""The first page of the site: what this is, one result, the environments, how to start, and how far to trust it."""

from __future__ import annotations

import json
import re
from typing import Any

from serving_gym.envs.registration import ENVS
from serving_gym.runners.documentation.environments import manual_of
from serving_gym.runners.documentation.markdown import block, code, table
from serving_gym.runners.documentation.results import Results, shown
from serving_gym.runners.documentation.tree import ROOT
from serving_gym.runners.validation.fidelity_page import cell

SHOWN = "routing"  # environment of the result
_LEARNED = "zoo/"


def front_page() -> str:
    """The page, whose links lead from the root of the repository, where README.md has them too."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    result = Results.of(SHOWN)
    lead = readme.partition("\n\n")[2].partition("\n## ")[0].strip()
    return (
        "\n\n".join(
            [
                "---\nhide: [navigation]\n---",
                "# serving-gym",
                lead,
                "## One result",
                f"[`{result.env_id}`](docs/{SHOWN}.md): a router sends each request to one of four engines of three "
                "speeds.",
                block(result.command),
                verdict(result),
                result.as_table(),
                f"Interquartile means over {result.seeds} test episodes; all policies meet the same arrivals. "
                "[Results](docs/findings.md) and the [benchmark](configs/benchmark/README.md) have more, and "
                "the losses.",
                "## Start",
                section(readme, "Two commands"),
                "Then: [in Python](docs/python.md), [commands](docs/commands.md), "
                "[a policy of your own](examples/own_policy/README.md), [real servers](docs/live.md).",
                "## Environments",
                environments_table(),
                "## Can I trust it?",
                trust(),
            ]
        )
        + "\n"
    )


def verdict(result: Results) -> str:
    """The best policy against the best heuristic and against one that everybody knows, in a sentence."""
    best = result.best()
    rivals = [name for name in reversed(result.ranked()) if name != best and not name.startswith(_LEARNED)]
    heuristic = next(name for name in rivals if name not in result.clairvoyant)
    low, high = result.gains[heuristic]["ci95"]
    word = "no difference" if low <= 0 <= high else "a difference"
    return (
        f"`{best}` has the highest return: {result.gain_over('jsq')} over join-the-shortest-queue (`jsq`), and "
        f"{result.gain_over(heuristic)} over the best tuned heuristic, `{heuristic}`: {word} at 95 %. Gains are "
        "paired, episode by episode, in per cent of the other's cost."
    )


def section(readme: str, title: str) -> str:
    """A section of the README, without its title.

    Raises:
        ValueError: It has none of this title.
    """
    found = re.search(rf"(?ms)^## {re.escape(title)}\n(.*?)(?=^## |\Z)", readme)
    if found is None:
        raise ValueError(f"README.md must have a section {title!r}, which the front page of the site shows")
    return found[1].strip()


def environments_table() -> str:
    """A row an environment: what is decided, and the return from random to the best policy."""
    rows = []
    for name, entry in ENVS.items():
        if not entry.package:
            continue
        result = Results.of(name)
        lead, _ = manual_of(entry.load(entry.entry_point))
        figures = [
            f"{code(policy)} {shown(result.policies[policy]['return'], interval=False)}"
            for policy in (result.ranked()[0], result.best())
        ]
        rows.append([f"[`{entry.env_id}`](docs/{name}.md)", lead.partition("\n")[0], " → ".join(figures)])
    return table(["environment", "what a policy does", "return of the worst and of the best policy"], rows)


def trust() -> str:
    """Errors of the simulator on deployments that no fit has seen, and what else is held."""
    record = newest_errors()
    groups: dict[str, dict[str, Any]] = {}
    for entry in record["held_out"]:
        if entry["left_out"] == "deployments":
            groups.setdefault(entry["runs"], {})[entry["figure"]] = entry
    rows = [
        [
            runs,
            str(max(entry["n"] for entry in found.values())),
            *(cell(found.get(key)) for key in ("tpot", "ttft")),
        ]
        for runs, found in groups.items()
    ]
    return "\n\n".join(
        [
            f"Errors of version {record['version']} on measured deployments that the fit was not shown, absolute, "
            "per cent, median / 90th percentile:",
            table(["measurements", "runs", "TPOT", "TTFT"], rows),
            "* [Fidelity](FIDELITY.md): every profile, by load, and against live servers.\n"
            "* The compiled scheduler takes the same steps as [vLLM's own](tests/vllm/README.md).\n"
            "* [Reproductions](REPRODUCTION.md): headline figures of five papers beside ours, those that fail too.\n"
            "* Learned policies are held to [gates](docs/benchmark.md) on tail latency, fairness and lost requests.",
        ]
    )


def newest_errors() -> dict[str, Any]:
    """The errors of the newest version in calibration/fidelity."""
    files = (ROOT / "calibration/fidelity").glob("*.json")
    newest = max(files, key=lambda path: [int(part) for part in path.stem.split(".")])
    record: dict[str, Any] = json.loads(newest.read_text(encoding="utf-8"))
    return record
