"""Errors of every committed profile on the reference data, by figure and load: the content of VERSION.json."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from serving_gym.calibration.deployments import Deployment, find_profile, load_engine_profile
from serving_gym.calibration.engines import BENCHMARKED_ENGINES
from serving_gym.calibration.profile import profile_file_name
from serving_gym.runners.profile_fitting.engine_profiles import SOURCES, kind_of
from serving_gym.runners.profile_fitting.step_profiles import SOURCE as STEPS_SOURCE
from serving_gym.runners.validation.forms import Measurements, read_measurements, read_table
from serving_gym.runners.validation.score import BANDS, TARGETS, Score, score_all
from serving_gym.runners.validation.tails import tails

FOLDER = "calibration/fidelity"
FILES = tuple(source["file"] for source in (*SOURCES.values(), STEPS_SOURCE))
STEPS_ENGINE = BENCHMARKED_ENGINES["steps"]
ITERATION, ALL = "iteration", "all"  # loads beside `BANDS`: of a single iteration there is none
SPLITS = {
    "seen": "configurations",
    "unseen": "deployments",
}  # of a profile's `held_out`, and what was left out
FIGURES = {"ape_median": "median", "ape_p90": "p90"}
Scored = dict[str, tuple[list[Score], Counter[str]]]


@dataclass(frozen=True)
class Table:
    """One table of measurements.

    Args:
        name: Its place in the folder of reference data.
        found: Its content.
    """

    name: str
    found: Measurements

    @property
    def size(self) -> int:
        """Rows that can be predicted."""
        return sum(len(run.stages) for run in self.found.runs) + len(self.found.steps)


def project_version() -> str:
    """Version in pyproject.toml, or of the installed package where there is none."""
    file = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if file.is_file():
        return str(tomllib.loads(file.read_text(encoding="utf-8"))["project"]["version"])
    return metadata.version("serving-gym")


def tables_in(data: Path) -> list[Table]:
    """The tables of measured runs and iterations in a folder.

    Raises:
        ValueError: It has none of them.
    """
    there = [name for name in FILES if (data / name).is_file()]
    if not there:
        raise ValueError(f"data={str(data)!r} holds no table of measured runs; known are {', '.join(FILES)}")
    return [Table(name, read_measurements(read_table(data / name))) for name in there]


def score_folder(tables: Sequence[Table], advance: Callable[[int], object] = lambda _: None) -> Scored:
    """Scores of some tables by the committed profiles, and the rows that could not be predicted, by table."""
    return {table.name: score_all(table.found, find_profile, advance) for table in tables}


def record_of(version: str, scored: Scored) -> dict[str, Any]:
    """The content of VERSION.json."""
    scores = [score for members, _ in scored.values() for score in members]
    return {
        "version": version,
        "data": {
            name: {"rows": len({score.row for score in members}), "not_predicted": dict(reasons)}
            for name, (members, reasons) in scored.items()
        },
        "overall": [
            {"kind": kind, **entry}
            for kind in sorted({score.source for score in scores})
            for entry in errors([score for score in scores if score.source == kind])
        ],
        "held_out": pooled_held_out({score.deployment for score in scores}),
        "tails": tails(scores),
        "profiles": profiles_of(scores),
    }


def profiles_of(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Errors of each profile and kind of prediction, with the errors that the profile states for held-out data."""
    groups: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        groups.setdefault((profile_name(score.deployment), score.source), []).append(score)
    return [
        {
            "profile": name,
            "kind": kind,
            "rows": len({(score.row, score.deployment) for score in members}),
            "errors": errors(members),
            "held_out": held_out_here(members[0].deployment) if members[0].split == "seen" else {},
        }
        for (name, kind), members in sorted(groups.items())
    ]


def profile_name(deployment: Deployment) -> str:
    """Name of the profile of a deployment's model, GPU and engine, whether there is one or not."""
    file = profile_file_name(deployment.model, deployment.gpu, deployment.engine)
    return file.removesuffix(".yaml")


def errors(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Number, median and 90th percentile of the absolute errors by figure and load; `all` loads where several."""
    found = []
    for target in TARGETS:
        members = [score for score in scores if score.target == target]
        parts = {band: [s for s in members if (s.band or ITERATION) == band] for band in (*BANDS, ITERATION)}
        parts = {name: part for name, part in parts.items() if part}
        if len(parts) > 1:
            parts[ALL] = members
        found += [{"figure": target, "load": name, **spread(part)} for name, part in parts.items()]
    return found


def spread(scores: Sequence[Score]) -> dict[str, float]:
    """Number, median and 90th percentile of absolute errors, ratios to four digits."""
    values = [score.error for score in scores]
    median, p90 = (round(float(np.quantile(values, share)), 4) for share in (0.5, 0.9))
    return {"n": len(values), "median": median, "p90": p90}


def stated(block: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Held-out errors by figure as a profile states them, in the words of this record."""
    return {
        target: {"n": values["n"], **{ours: values[theirs] for theirs, ours in FIGURES.items()}}
        for target, values in block.items()
        if isinstance(values, Mapping) and target in TARGETS
    }


def held_out_blocks(deployment: Deployment, which: str) -> dict[str, dict[str, dict[str, float]]]:
    """A profile's held-out errors by what was left out; `which` is `here` or `all`."""
    profile = load_engine_profile(deployment.model, deployment.gpu, deployment.engine)
    known: Mapping[str, Any] = profile.held_out if profile else {}
    parts = {name: known.get(split, {}).get(which, {}) for split, name in SPLITS.items()}
    parts["configurations"] = parts["configurations"] or known.get(which, {})  # of iterations: one level less
    return {name: stated(block) for name, block in parts.items() if block}


def held_out_here(deployment: Deployment) -> dict[str, dict[str, dict[str, float]]]:
    """Errors that a profile states for held-out runs of its own model, GPU and engine."""
    return held_out_blocks(deployment, "here")


def pooled_held_out(deployments: set[Deployment]) -> list[dict[str, Any]]:
    """Held-out errors that profiles state for all models of one form of measurements together."""
    pools: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for d in sorted(deployments, key=lambda deployment: deployment.name):
        blocks = held_out_blocks(d, "all")
        if blocks:
            pools.setdefault(pool_of(d), blocks)
    return [
        {"runs": pool, "left_out": split, "figure": target, **values}
        for pool, blocks in sorted(pools.items())
        for split, by_target in blocks.items()
        for target, values in by_target.items()
    ]


def pool_of(deployment: Deployment) -> str:
    """What held-out errors of a deployment's profile are pooled over, in words."""
    if deployment.engine == STEPS_ENGINE:
        return "single iterations"
    form, experts = kind_of(deployment.engine, deployment.model)
    words = {
        "closed_loop": "fixed concurrency",
        "open_loop": "constant rate",
        "replicas": "Poisson, vLLM 0.6",
    }
    return f"{words[form]}, {'mixtures of experts' if experts else 'dense'}"


def read_versions(folder: Path) -> list[dict[str, Any]]:
    """Records of all scored versions, the oldest first.

    Raises:
        ValueError: There is none.
    """
    records = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    if not records:
        raise ValueError(f"{str(folder)!r} holds no scores; data=DIR makes them from the reference data")
    return sorted(records, key=lambda record: [int(part) for part in re.findall(r"\d+", record["version"])])
