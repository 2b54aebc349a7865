"""How far profiles are off that were not measured: what is known of other widths, GPUs, models or versions is carried.

Each part of the measured runs is left out in turn and predicted by the rule that stands for it in `find_profile`:

* `width`: overheads of the same model and GPU at the other widths of an engine;
* `gpu`: overheads of the same model on the engine's other GPUs;
* `model`: overheads of the engine's other models, dense or mixtures of experts (precisions of a model count as one);
* `version`: of the engine only one model is known, and the others move from another version by its step, as those of
  the engine measured live do (`live_engines`). Each dense model is that one in turn; on an engine without dense models
  each mixture of experts, whose errors are stated apart.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from serving_gym.calibration.deployments import Deployment
from serving_gym.calibration.describe import ERRORS_FILE
from serving_gym.calibration.engines import Engine, Frontend, family_of, get_engine, load_engines
from serving_gym.calibration.models import PRECISIONS, get_model
from serving_gym.calibration.profile import Profile
from serving_gym.runners.profile_fitting.hierarchy import fit_level, keys_of, profile_with, shortened
from serving_gym.runners.profile_fitting.live_engines import carried
from serving_gym.runners.validation.runs import ServingRun
from serving_gym.runners.validation.score import Score, score_run, summary

# Engines measured end to end, and the version that others' overheads come from where each is left out: the one that
# most models were measured on, as for the engine measured live; for that one the version before it.
VERSIONS = {
    "vllm-0.11": "vllm-0.15",
    "vllm-0.12": "vllm-0.15",
    "vllm-0.15": "vllm-0.12",
    "vllm-0.17": "vllm-0.15",
}
RUNS_OF_A_DEPLOYMENT = 4  # that a fit is made to; more would say little of other deployments
TARGETS = ("tpot", "ttft", "e2e")
METHOD = (
    "runs of each engine left out in turn by width, by GPU, by model (in all its precisions) or, but for one model, as "
    "a whole; predicted with the overheads that stand for them (runners/profile_fitting/transfers.py), each simulated"
)
COMMAND = "python -m runners.calibrate part=transfers"
Report = Callable[[str], None]


def base_of(model: str) -> str:
    """Name of a model without its precisions."""
    name, _, precision = model.rpartition("-")
    return base_of(name) if precision in PRECISIONS else model


@dataclass(frozen=True)
class LeftOut:
    """One way to leave runs out.

    Args:
        part: What of a deployment is left out in turn.
        levels: Levels of `hierarchy.keys_of` that are fitted to what is left: the overheads that stand in.
    """

    part: Callable[[Deployment], Any]
    levels: int


RELATIONS: Mapping[str, LeftOut] = {
    "width": LeftOut(lambda d: d.tp, 3),
    "gpu": LeftOut(lambda d: d.gpu, 2),
    "model": LeftOut(lambda d: base_of(d.model), 1),
}


def thinned(runs: Sequence[ServingRun]) -> list[ServingRun]:
    """A few runs of each deployment over the range of its loads, shortened."""
    groups: dict[str, list[ServingRun]] = {}
    for run in runs:
        groups.setdefault(run.deployment.name, []).append(run)
    kept = []
    for members in groups.values():
        stride = max(1, -(-len(members) // RUNS_OF_A_DEPLOYMENT))
        kept += [shortened(run) for run in members[::stride]]
    return kept


class Standing:
    """Overheads fitted to some runs, level by level, as they are asked for."""

    def __init__(self, runs: Sequence[ServingRun]) -> None:
        self.runs = thinned(runs)
        self.fitted: dict[str, Engine | None] = {}

    def of(self, deployment: Deployment, levels: int) -> Engine | None:
        """Overheads of the last of a deployment's first `levels` levels; None where no run tells of it."""
        overheads: Engine | None = None
        for level, key in enumerate(keys_of(deployment)[:levels]):
            if key not in self.fitted:
                members = [run for run in self.runs if keys_of(run.deployment)[level] == key]
                known = members and (level == 0 or overheads is not None)
                self.fitted[key] = fit_level(members, overheads, level) if known else None
            overheads = self.fitted[key]
        return overheads


def scored(runs: Sequence[ServingRun], overheads: Callable[[Deployment], Engine | None]) -> list[Score]:
    """Scores of the runs that some overheads stand for."""

    def lookup(deployment: Deployment) -> tuple[Profile, Frontend]:
        known = overheads(deployment)
        assert known is not None
        return profile_with(deployment, known), known.frontend

    unusable: Counter[str] = Counter()
    known = [run for run in runs if overheads(run.deployment) is not None]
    return [score for run in known for score in score_run(run, lookup, unusable)]


def leave_out(relation: str, runs: Sequence[ServingRun], report: Report) -> list[Score]:
    """Scores of the runs of one engine, each part of them left out in turn.

    Args:
        relation: One of `RELATIONS`.
        runs: All runs of the engine.
        report: Called with progress messages.
    """
    way = RELATIONS[relation]
    scores: list[Score] = []
    for part in sorted({way.part(run.deployment) for run in runs}):
        standing = Standing([run for run in runs if way.part(run.deployment) != part])
        hidden = [run for run in runs if way.part(run.deployment) == part]
        found = scored(hidden, lambda d, standing=standing: standing.of(d, way.levels))  # type: ignore[misc]
        report(f"{runs[0].deployment.engine} without {relation} {part}: {len(found)} figures")
        scores += found
    return scores


def carried_from(anchor: str, runs: Sequence[ServingRun]) -> list[Score]:
    """Scores of the runs of one engine but those of a model, the only one measured on it.

    Args:
        anchor: That model.
        runs: All runs of the engine.
    """
    engine = runs[0].deployment.engine
    version = VERSIONS[engine]
    before = get_engine(version, anchor)
    members = [run for run in runs if run.deployment.model == anchor]
    after = fit_level(thinned(members), before, 0)

    def overheads(deployment: Deployment) -> Engine:
        return carried(load_engines()[family_of(version, deployment.model)], before, after)

    return scored([run for run in runs if base_of(run.deployment.model) != base_of(anchor)], overheads)


def errors(scores: Sequence[Score]) -> dict[str, dict[str, dict[str, float]]]:
    """Errors by family and target."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for family in ("dense", "moe"):
        kin = [score for score in scores if is_dense(score.deployment.model) == (family == "dense")]
        for target in TARGETS:
            members = [score for score in kin if score.target == target]
            if members:
                figures = summary(members)
                kept = {name: round(figures[name], 4) for name in ("ape_median", "ape_p90")}
                found.setdefault(family, {})[target] = {"n": len(members), **kept}
    return found


def anchors_of(runs: Sequence[ServingRun]) -> list[str]:
    """Models that stand in turn for the one measured live: dense as that is, where there are any."""
    models = sorted({run.deployment.model for run in runs})
    return [model for model in models if is_dense(model)] if has_dense(runs) else models


def has_dense(runs: Sequence[ServingRun]) -> bool:
    """Whether some run is of a dense model."""
    return any(is_dense(run.deployment.model) for run in runs)


def is_dense(model: str) -> bool:
    """Whether a model is no mixture of experts."""
    return not get_model(model).num_experts


def transfer_errors(runs: Sequence[ServingRun], report: Report) -> dict[str, Any]:
    """The content of the file of errors."""
    pooled: dict[str, list[Score]] = {}
    by_engine: dict[str, Any] = {}
    for engine in VERSIONS:
        members = [run for run in runs if run.deployment.engine == engine]
        parts = {relation: leave_out(relation, members, report) for relation in RELATIONS}
        steps = {anchor: carried_from(anchor, members) for anchor in anchors_of(members)}
        report(f"{engine} but for one model: {len(steps)} models in turn")
        parts["version"] = [score for scores in steps.values() for score in scores]
        by_engine[engine] = {name: errors(scores) for name, scores in parts.items()}
        by_engine[engine]["version_by_model"] = {anchor: errors(scores) for anchor, scores in steps.items()}
        if not has_dense(members):
            del parts["version"]
        for name, scores in parts.items():
            pooled.setdefault(name, []).extend(scores)
    left_out = {name: errors(scores) for name, scores in pooled.items()}
    return {"method": METHOD, "command": COMMAND, "left_out": left_out, "by_engine": by_engine}


def write_transfer_errors(runs: Sequence[ServingRun], folder: Path, report: Report) -> Path:
    """Writes the errors of transferred profiles."""
    path = folder / ERRORS_FILE
    content = transfer_errors(runs, report)
    path.write_text(yaml.safe_dump(content, sort_keys=False, width=110), encoding="utf-8")
    return path
