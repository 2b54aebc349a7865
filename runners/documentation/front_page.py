"""The first page of the site: what it is, what to do with it, whether it wins, how to start, how far to trust it."""

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
_TASKS = (
    (
        "train an agent, compared with the baselines",
        "`python -m runners.train env=routing` · [agents](docs/agents.md)",
    ),
    (
        "compare my policy with published ones",
        "[twenty lines](examples/own_policy/README.md) · [baselines](docs/policies.md)",
    ),
    ("replay my traffic", "`workload=file workload.path=FILE` · [trace formats](docs/traces.md)"),
    (
        "size a cluster",
        "`python -m runners.simulate cluster=FILE workload=FILE` · [commands](docs/commands.md)",
    ),
    (
        "run a policy on vLLM servers, or behind another router",
        "[live](docs/live.md) · [serving](docs/serving.md)",
    ),
    ("check a paper", "`python -m runners.reproduce paper=oserve` · [papers](docs/papers/oserve.md)"),
    ("add a policy, trace, model, GPU or environment", "[one screen each](docs/adding.md)"),
)


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
                "## What is it?",
                environments_table(),
                "Each runs on a simulator of vLLM that is calibrated on measurements, or on vLLM servers "
                "([architecture](docs/architecture.md), [terms](docs/glossary.md)).",
                "## What can I do with it?",
                table(["I want to", "command or page"], _TASKS),
                "## Does it win?",
                "On the default tasks ([all results](docs/findings.md), the [benchmark](configs/benchmark/README.md) "
                "with its losses):",
                winners_table(),
                f"One of them in full, [`{result.env_id}`](docs/{SHOWN}.md): a router sends each request to one of "
                "four engines of three speeds.",
                block(result.command),
                verdict(result),
                result.as_table(),
                f"Interquartile means over {result.seeds} test episodes; all policies meet the same arrivals.",
                "## How do I start?",
                section(readme, "Two commands"),
                "Then: [in Python](docs/python.md), [commands](docs/commands.md), "
                "[a policy of your own](examples/own_policy/README.md), [real servers](docs/live.md).",
                "## Can I trust it?",
                trust(),
            ]
        )
        + "\n"
    )


def winners_table() -> str:
    """A row an environment: the best policy, and its gain over the best of the other kind, learned or heuristic."""
    rows = []
    for name, entry in ENVS.items():
        if not entry.package:
            continue
        result = Results.of(name)
        best = result.best()
        rival = _rival(result)
        rows.append(
            [
                f"[`{name}`](docs/{name}.md)",
                f"{code(best)}, {_kind(best)}",
                f"{code(rival)}, {_kind(rival)}" if rival else "no shipped agent is for this task",
                f"{result.gain_over(rival)}, {_difference(result, rival)}" if rival else "",
            ]
        )
    return table(
        ["environment", "best policy", "best of the other kind", "gain [95 %], of the other's cost"],
        rows,
    )


def _rival(result: Results) -> str:
    """The best policy of another kind than the best one, that does not see the future; "": there is none."""
    kind = _kind(result.best())
    others = (name for name in reversed(result.ranked()) if _kind(name) != kind)
    return next((name for name in others if name not in result.clairvoyant), "")


def _kind(name: str) -> str:
    return "learned" if name.startswith(_LEARNED) else "heuristic"


def _difference(result: Results, rival: str) -> str:
    low, high = result.gains[rival]["ci95"]
    return "no difference" if low <= 0 <= high else "a difference"


def verdict(result: Results) -> str:
    """The best policy against the best heuristic and against one that everybody knows, in a sentence."""
    best = result.best()
    rivals = [name for name in reversed(result.ranked()) if name != best and not name.startswith(_LEARNED)]
    heuristic = next(name for name in rivals if name not in result.clairvoyant)
    return (
        f"`{best}` has the highest return: {result.gain_over('jsq')} over join-the-shortest-queue (`jsq`), and "
        f"{result.gain_over(heuristic)} over the best tuned heuristic, `{heuristic}`: "
        f"{_difference(result, heuristic)} at 95 %. Gains are paired, episode by episode, in per cent of the other's "
        "cost."
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
