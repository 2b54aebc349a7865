"""REPRODUCTION.md, made from the kept claims of every paper."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from serving_gym.envs.interface.metrics import to_jsonable
from serving_gym.runners.reporting.output import write_text
from serving_gym.runners.reproduction.choices import choices_in
from serving_gym.runners.reproduction.claims import (
    CONTRADICTED,
    HOLDS,
    KINDS,
    RESULT,
    UNDER,
    VERDICTS,
    Claim,
)
from serving_gym.runners.tuning.tuned_file import command_line

FOLDER = Path(__file__).resolve().parent / "results"
PAGE = Path(__file__).resolve().parents[2] / "REPRODUCTION.md"
_HEAD = """# The papers' figures, and ours

What each paper reports beside what this simulator gives, in the paper's own world: its models, rates, lengths, limits
and promises. Written by `python -m runners.reproduce paper=NAME save=true`, never by hand. Rules were fixed before our
figures were known, save where [the reproductions' README](runners/reproduction/README.md) says so.

*Holds under stated conditions*: not as the study is set up, but under one of the other choices that the paper's text
leaves open; so many are tried that some hold by chance. Figures that the simulator is given (inputs) and the papers'
worked examples are not counted as results. `python -m runners.reproduce paper=NAME sensitivity=[all]` repeats every
other choice, `choices.NAME=VALUE` one of them."""


def keep(paper: str, made: Mapping[str, Sequence[Claim]], folder: Path = FOLDER) -> None:
    """Keeps the claims of some parts of a paper's evaluation; the other parts stay as they were kept.

    Args:
        paper: Its name.
        made: Claims by part.
        folder: Where `PAPER.json` lies.
    """
    path = folder / f"{paper}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    command = command_line("reproduce")
    for name, claims in made.items():
        kept[name] = {"command": command, "claims": [claim.to_row() for claim in claims]}
    parts = (f" {json.dumps(name)}: {_part_text(part)}" for name, part in kept.items())
    write_text(path, "{\n" + ",\n".join(parts) + "\n}\n")


def _part_text(part: Mapping[str, Any]) -> str:
    """A part, one line for each claim."""
    claims = (f"  {json.dumps(to_jsonable(row), allow_nan=False)}" for row in part["claims"])
    return f'{{"command": {json.dumps(part["command"])}, "claims": [\n' + ",\n".join(claims) + "\n ]}"


def write_page(choices: Mapping[str, type[Any]], folder: Path = FOLDER, page: Path = PAGE) -> Path:
    """Writes the page from everything kept.

    Args:
        choices: Dataclass of the choices of each paper.
        folder: Where `PAPER.json` lies.
        page: File to write.

    Returns:
        The file.
    """
    write_text(page, page_text(choices, folder))
    return page


def page_text(choices: Mapping[str, type[Any]], folder: Path = FOLDER) -> str:
    """The page by everything kept; arguments as of `write_page`."""
    kept = {name: _read(folder / f"{name}.json") for name in choices if (folder / f"{name}.json").exists()}
    sections = [_HEAD, _summary(kept)]
    sections += [_paper(name, parts, choices[name]) for name, parts in kept.items()]
    return "\n\n".join(sections) + "\n"


def _read(path: Path) -> dict[str, Any]:
    parts: dict[str, Any] = json.loads(path.read_text())
    return parts


def _rows(parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row for part in parts.values() for row in part["claims"]]


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "/") for cell in line) + " |" for line in lines)


def _summary(kept: Mapping[str, Any]) -> str:
    def line(name: str, parts: Mapping[str, Any]) -> list[Any]:
        rows = _rows(parts)
        verdicts = [row["verdict"] for row in rows if row["kind"] == RESULT]
        others = [sum(row["kind"] == kind for row in rows) for kind in KINDS if kind != RESULT]
        return [name, *(verdicts.count(verdict) for verdict in VERDICTS), *others]

    header = ("paper", *VERDICTS, "inputs", "worked examples")
    return _table(header, [line(name, parts) for name, parts in kept.items()])


def _paper(name: str, parts: Mapping[str, Any], kind: type[Any]) -> str:
    commands = dict.fromkeys(part["command"] for part in parts.values())
    texts = [f"## {name}", "\n".join(f"    {command}" for command in commands)]
    known = choices_in(kind).values()
    if known:
        rows = [
            (one.name, one.default, _words(one.alternatives), ", ".join(one.parts), one.why) for one in known
        ]
        texts.append(_table(("choice", "here", "others", "parts", "why"), rows))
    missed = [
        row for row in _rows(parts) if row["kind"] == RESULT and row["verdict"] in (UNDER, CONTRADICTED)
    ]
    if missed:
        rows = [_missed(row) for row in missed]
        texts.append("Results that do not hold as set up:")
        texts.append(_table(("result", "section", "paper", "ours", "verdict", "with other choices"), rows))
    held = sum(row["verdict"] == HOLDS for row in _rows(parts) if row["kind"] == RESULT)
    texts.append(f"{held} results hold; all figures are in `runners/reproduction/results/{name}.json`.")
    return "\n\n".join(texts)


def _words(values: Iterable[Any]) -> str:
    return ", ".join(str(value) for value in values)


def _missed(row: Mapping[str, Any]) -> tuple[Any, ...]:
    ours = _figure(row["ours"])
    if row["ours_low"] is not None:
        ours += f" [{_figure(row['ours_low'])}, {_figure(row['ours_high'])}]"
    return (
        row["claim"],
        row["section"],
        _figure(row["paper_value"]),
        f"{ours} {row['unit']}",
        row["verdict"],
        "; ".join(_variations(row)),
    )


def _variations(row: Mapping[str, Any]) -> Iterator[str]:
    """Other choices under which a result holds; where there are none, the figure under each."""
    found = [one for one in row["sensitivity"] if one["holds"]] or row["sensitivity"]
    for one in found:
        yield f"{one['choice']}={one['value']}: {_figure(one['ours'])}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
