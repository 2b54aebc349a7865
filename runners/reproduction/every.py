"""All papers at once: their parts in several processes, resumed where a run was stopped, and one table at the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from serving_gym.runners.configuration.schema import register_schemas
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_table
from serving_gym.runners.reproduction.claims import RESULT, VERDICTS, claim_rows, write_rows
from serving_gym.runners.reproduction.config import DEFAULT_SEEDS, ReproduceConfig
from serving_gym.runners.reproduction.papers import PAPERS
from serving_gym.runners.reproduction.parts import run_parts
from serving_gym.runners.rollouts.processes import call_in_processes

Rows = list[dict[str, Any]]
# The longest first, so that processes end together.
_ORDER = ("oserve", "sageserve", "preserve", "llm_mesh", "flying_serving")
_WORDS = ("quick", "seeds", "first_seed", "requests", "split")


@dataclass(frozen=True)
class Unit:
    """Parts of a paper that run in one process, because they share what they measure.

    Attributes:
        config: Words of the paper's own command.
        parts: Names of the parts.
    """

    config: ReproduceConfig
    parts: tuple[str, ...]

    @property
    def paper(self) -> str:
        """Name of the paper."""
        return self.config.paper


def run_all(config: ReproduceConfig, out: Path) -> None:
    """Runs what is not in `out` yet, writes `claims.json` and `PAPER/PART.json`, and prints a table of verdicts.

    Args:
        config: Words of the command, with `paper=all`.
        out: Run directory.

    Raises:
        ValueError: `out` has parts of a run with other words.
    """
    papers = [paper_config(config, name) for name in _ORDER]
    units = [unit for paper in papers for unit in units_of(paper)]
    missing = [unit for unit in (_missing(unit, out) for unit in units) if unit.parts]
    parts = sum(len(unit.parts) for unit in units)
    with progress_bar(parts, "reproduce all", "part") as bar:
        bar.update(parts - sum(len(unit.parts) for unit in missing))
        for unit in _done(missing, config.processes, out):
            bar.update(len(unit.parts))
            _write(papers, out)
    print_verdicts(_write(papers, out), papers)


def paper_config(config: ReproduceConfig, paper: str) -> ReproduceConfig:
    """Words of the command of one paper; where no seeds are given, as many as let all papers end within an hour."""
    seeds = config.seeds or PAPERS[paper].seeds or DEFAULT_SEEDS
    return replace(config, paper=paper, seeds=1 if config.quick else seeds)


def units_of(config: ReproduceConfig) -> list[Unit]:
    """Units of a paper: each part that shares nothing, and the others together."""
    paper = PAPERS[config.paper]
    chosen = paper.evaluation(config, None).chosen(config)
    together = tuple(name for name in chosen if name not in paper.alone)
    units = [Unit(config, together), *(Unit(config, (name,)) for name in chosen if name in paper.alone)]
    return [unit for unit in units if unit.parts]


def _missing(unit: Unit, out: Path) -> Unit:
    """A unit without the parts that are there."""
    return replace(unit, parts=tuple(name for name in unit.parts if not _is_there(unit.config, name, out)))


def _done(units: Sequence[Unit], processes: int, out: Path) -> Iterator[Unit]:
    """Runs units; yields each as soon as all of its parts are written."""
    if processes == 1 or len(units) < 2:
        for unit in units:
            run_unit(unit, out)
            yield unit
        return
    arguments = [(unit, out) for unit in units]
    for position, _ in call_in_processes(run_unit, arguments, processes, register_schemas):
        yield units[position]


def run_unit(unit: Unit, out: Path) -> None:
    """Runs parts of a paper, writes each down when it is done, and says so."""
    config, paper = replace(unit.config, only=unit.parts), PAPERS[unit.paper]
    for name, claims in run_parts(config, paper, quiet=True, bar=False):
        path, rows = _path(config, name, out), claim_rows(claims, paper.cut if config.quick else "")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"words": _words(config), "claims": rows})
        print(f"{unit.paper}, {name}: {_verdicts_line(rows)}", file=sys.stderr, flush=True)


def _path(config: ReproduceConfig, part: str, out: Path) -> Path:
    return out / config.paper / f"{part}.json"


def _words(config: ReproduceConfig) -> dict[str, Any]:
    """What a part's figures depend on."""
    return {name: getattr(config, name) for name in _WORDS}


def _is_there(config: ReproduceConfig, part: str, out: Path) -> bool:
    path = _path(config, part, out)
    if not path.is_file():
        return False
    words = json.loads(path.read_text(encoding="utf-8"))["words"]
    if words != _words(config):
        raise ValueError(
            f"out={str(out)!r} has {config.paper}, {part} of a run with {_text(words)}, and this one has "
            f"{_text(_words(config))}; choose another folder"
        )
    return True


def _text(words: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={json.dumps(value).strip(chr(34))}" for name, value in words.items())


def _read(config: ReproduceConfig, part: str, out: Path) -> Rows:
    rows: Rows = json.loads(_path(config, part, out).read_text(encoding="utf-8"))["claims"]
    return rows


def _write(papers: Sequence[ReproduceConfig], out: Path) -> dict[str, Rows]:
    """Claims of the parts that are there, by paper; written as `claims.json`."""
    found = {
        paper.paper: [
            row
            for unit in units_of(paper)
            for part in unit.parts
            if _is_there(paper, part, out)
            for row in _read(paper, part, out)
        ]
        for paper in papers
    }
    write_rows(out, [row for rows in found.values() for row in rows])
    return found


def verdicts_of(rows: Rows) -> dict[str, int]:
    """Number of results by verdict, in the order of `VERDICTS`."""
    verdicts = [row["verdict"] for row in rows if row["kind"] == RESULT]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def _verdicts_line(rows: Rows) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in verdicts_of(rows).items())


def print_verdicts(found: Mapping[str, Rows], papers: Sequence[ReproduceConfig]) -> None:
    """Prints a row a paper, and what a quick run has cut."""
    seeds = {paper.paper: paper.seeds for paper in papers}
    rows = [(name, seeds[name], *verdicts_of(rows).values()) for name, rows in found.items()]
    print_table("Published results in this simulator", ("paper", "seeds", *VERDICTS), rows)
    if any(paper.quick for paper in papers):
        for name in found:
            print(f"{name}, quick: {PAPERS[name].cut}.")
