"""What is generated on the pages of papers (docs/papers): configured policies, and published figures beside ours.

The rest of a page is written by hand: the algorithm step by step, and where each step is implemented.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serving_gym.baselines.registry import POLICIES
from serving_gym.runners.documentation.markdown import block, table
from serving_gym.runners.documentation.policy_files import PolicyFile, files_table, policy_files
from serving_gym.runners.documentation.templates import INFINITE
from serving_gym.runners.documentation.tree import ROOT
from serving_gym.runners.reproduction.claims import RESULT, UNTESTED, VERDICTS
from serving_gym.runners.reproduction.config import PAPERS

FOLDER = ROOT / "docs/papers"
RESULTS = ROOT / "runners/reproduction/results"
_MARK = re.compile(r"(?s)(<!-- generated: (\w+) -->\n).*?(<!-- end -->)")
# Packages whose policies a paper's page lists.
PACKAGES = {
    "oserve": ("baselines.oserve", "baselines.llumnix.deployment"),
    "flying_serving": ("baselines.flying_serving",),
    "llm_mesh": ("baselines.llm_mesh", "baselines.serverless_llm"),
    "sageserve": ("baselines.sageserve",),
    "preserve": ("baselines.preserve",),
}


def paper_pages(results: Path = RESULTS) -> Iterator[tuple[str, str]]:
    """Path and content of the page of each paper, with its generated parts written again.

    Args:
        results: Folder of the kept claims, `PAPER.json`.
    """
    for paper in PAPERS:
        path = FOLDER / f"{paper}.md"
        yield (
            path.relative_to(ROOT).as_posix(),
            with_generated(path.read_text(encoding="utf-8"), paper, results),
        )


def write_paper_pages() -> list[str]:
    """Writes the pages with their generated parts; returns their paths in the repository."""
    pages = dict(paper_pages())
    for path, content in pages.items():
        (ROOT / path).write_text(content, encoding="utf-8")
    return list(pages)


def with_generated(page: str, paper: str, results: Path = RESULTS) -> str:
    """A page with the content between its marks written again.

    Args:
        page: Its present content, with `<!-- generated: policies -->`, `<!-- generated: claims -->` and an
            `<!-- end -->` behind each.
        paper: Which paper.
        results: Folder of the kept claims.

    Raises:
        ValueError: A mark is missing, stands twice, or names something else.
    """
    content = {"policies": policies_text(paper), "claims": claims_text(paper, results)}
    marks = [name for _, name, _ in _MARK.findall(page)]
    if sorted(marks) != sorted(content):
        raise ValueError(f"the page of {paper} must have one mark each of {', '.join(content)}; got {marks}")
    return _MARK.sub(lambda found: f"{found[1]}\n{content[found[2]]}\n\n{found[3]}", page)


def policies_text(paper: str) -> str:
    """The files of configs/policy that configure the policies of a paper."""
    files = [file for file in policy_files() if _is_of(file, PACKAGES[paper])]
    tuned = ", ".join(f"`{file.name}`" for file in files if file.is_tuned)
    parts = [files_table(file for file in files if not file.is_tuned)]
    if tuned:
        parts.append(f"With constants found by a tuner: {tuned}; the head of each file has the command.")
    return "\n\n".join(parts)


def _is_of(file: PolicyFile, packages: tuple[str, ...]) -> bool:
    return file.policy in POLICIES and POLICIES[file.policy].policy.startswith(packages)


def claims_text(paper: str, results: Path = RESULTS) -> str:
    """Published figures beside ours: counts by part, then every figure that is compared.

    Args:
        paper: Which.
        results: Folder of the kept claims.
    """
    command, file = f"python -m runners.reproduce paper={paper} save=true", results / f"{paper}.json"
    if not file.is_file():
        return "\n\n".join(["Not saved yet. This computes and keeps the figures:", block(command)])
    parts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    commands = "\n".join(dict.fromkeys(part["command"] for part in parts.values()))
    rows = [[f"`{name}`", *map(str, _counts(part))] for name, part in parts.items()]
    total = [sum(column) for column in zip(*map(_counts, parts.values()), strict=True)]
    return "\n\n".join(
        [
            block(commands),
            table(["part", *VERDICTS], [*rows, ["all", *map(str, total)]]),
            f"The rule of each verdict is in the file `runners/reproduction/results/{paper}.json`, as are the figures "
            "that cannot be compared. Ours: with the range over seeds, where it was computed. *Holds under stated "
            f"conditions*: see [the choices](../../REPRODUCTION.md#{paper}).",
            *(_details(name, part) for name, part in parts.items() if _compared(part)),
        ]
    )


def _counts(part: Mapping[str, Any]) -> list[int]:
    """Results of a part by verdict."""
    found = [row["verdict"] for row in part["claims"] if row["kind"] == RESULT]
    return [found.count(verdict) for verdict in VERDICTS]


def _compared(part: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row for row in part["claims"] if row["kind"] == RESULT and row["verdict"] != UNTESTED]


def _details(name: str, part: Mapping[str, Any]) -> str:
    """A table that opens on a click."""
    rows = _compared(part)
    shown = table(
        ["result", "section", "paper", "ours", "verdict"],
        ([row["claim"], row["section"], *_figures(row), row["verdict"]] for row in rows),
    )
    head = f'<details markdown="1"><summary>{name}: {len(rows)} compared figures</summary>'
    return "\n\n".join([head, shown, "</details>"])


def _figures(row: Mapping[str, Any]) -> tuple[str, str]:
    """The paper's figure and ours, with its range and unit; null is infinite in kept claims."""
    paper = "direction only" if row["paper_value"] is None else _number(row["paper_value"])
    ours = _number(row["ours"])
    if row["ours_low"] is not None:
        ours += f" [{_number(row['ours_low'])}, {_number(row['ours_high'])}]"
    return paper, f"{ours} {row['unit']}"


def _number(value: float | None) -> str:
    return INFINITE if value is None else f"{float(f'{value:.3g}'):,.10g}"
