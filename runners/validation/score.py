"""How far predictions lie from measurements: the content of `validation.json`."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from serving_gym.calibration.deployments import FITTED, Deployment
from serving_gym.calibration.engines import Frontend
from serving_gym.calibration.measured.steps import Step, predict_step
from serving_gym.calibration.profile import Profile
from serving_gym.runners.validation.forms import Measurements
from serving_gym.runners.validation.predict import BUSY, SATURATED, load, predict
from serving_gym.runners.validation.runs import ServingRun

TARGETS = ("prefill_step", "decode_step", "tpot", "ttft", "ttft_p99", "e2e")
ORDERING = "ordering"
ORDERED_WIDTHS = 2  # layouts of one model and load that it takes to speak of an order
BANDS = {
    "below_70": (0.0, BUSY),
    "70_to_95": (BUSY, SATURATED),
    "saturated": (SATURATED, np.inf),
}  # parts of the errors by load, ratio
Lookup = Callable[[Deployment], tuple[Profile, Frontend]]


@dataclass(frozen=True)
class Score:
    """One measured number and its prediction.

    Args:
        target: One of `TARGETS`.
        deployment: The engine.
        source: What the prediction stands on (`calibration.deployments`).
        measured: s.
        predicted: s.
        row: Row of the table.
        load: Demand over what the engine can take (`validation.predict.load`); 0 for a single iteration.
        comparison: Rows with one value are the same load on layouts of different width.
        run: What was simulated; None for a single iteration.
    """

    target: str
    deployment: Deployment
    source: str
    measured: float
    predicted: float
    row: int
    load: float = 0.0
    comparison: str = ""
    run: ServingRun | None = None

    @property
    def error(self) -> float:
        """Absolute percentage error as a fraction."""
        return abs(self.predicted / self.measured - 1.0)

    @property
    def split(self) -> str:
        """Whether coefficients were fitted to this very deployment."""
        return "seen" if self.source == FITTED else "unseen"

    @property
    def band(self) -> str:
        """Key of `BANDS`, empty for a single iteration."""
        if not self.load:
            return ""
        return next(name for name, (low, high) in BANDS.items() if low <= self.load < high)


# Why a figure cannot be predicted, by whether it is infinite.
_WHY_NOT = {
    False: "{target} of an answer of this length is not defined",
    True: "{target}: the simulated engine refuses a request of this length",
}


def usable(target: str, measured: float | None, unsupported: Counter[str]) -> bool:
    """Whether a measured value is a positive number; one that is there and is not is counted."""
    if measured is None:
        return False
    if np.isfinite(measured) and measured > 0:
        return True
    unsupported[f"measured {target} is blank, not positive or not a number"] += 1
    return False


def score_run(run: ServingRun, lookup: Lookup, unsupported: Counter[str]) -> list[Score]:
    """Scores of every stage of a run; measured values that are none are counted in `unsupported`.

    Raises:
        ValueError: The run cannot be predicted.
    """
    profile, frontend = lookup(run.deployment)
    scores = []
    for stage, figures in zip(run.stages, predict(run, profile, frontend), strict=True):
        demand = load(run, stage, profile)
        for target in TARGETS:
            measured, predicted = stage.measured.get(target), figures.get(target, np.nan)
            if not usable(target, measured, unsupported):
                continue
            assert measured is not None
            if not np.isfinite(predicted):
                unsupported[_WHY_NOT[bool(np.isposinf(predicted))].format(target=target)] += 1
            else:
                scores.append(
                    Score(
                        target,
                        run.deployment,
                        profile.source,
                        measured,
                        predicted,
                        stage.row,
                        demand,
                        run.comparison,
                        run,
                    )
                )
    return scores


def score_step(step: Step, lookup: Lookup, unsupported: Counter[str]) -> list[Score]:
    """Scores of one iteration-level row; measured values that are none are counted in `unsupported`."""
    profile, _ = lookup(step.deployment)
    measured = {"prefill_step": step.prefill_s, "decode_step": step.decode_s}
    return [
        Score(target, step.deployment, profile.source, measured[target], predicted, step.row)
        for target, predicted in predict_step(step, profile).items()
        if usable(target, measured[target], unsupported)
    ]


def score_all(
    found: Measurements, lookup: Lookup, advance: Callable[[int], object] = lambda _: None
) -> tuple[list[Score], Counter[str]]:
    """Scores of everything in a file, and the rows that could not be predicted, by reason."""
    scores: list[Score] = []
    unsupported = Counter(found.unsupported)
    jobs: list[tuple[int, Callable[[], list[Score]]]] = [
        (len(run.stages), partial(score_run, run, lookup, unsupported)) for run in found.runs
    ]
    jobs += [(1, partial(score_step, step, lookup, unsupported)) for step in found.steps]
    for rows, job in jobs:
        try:
            scores += job()
        except ValueError as error:
            unsupported[str(error)] += rows
        except (ArithmeticError, LookupError) as error:
            unsupported[f"the row describes no load that can be simulated ({error})"] += rows
        advance(rows)
    return scores, unsupported


def summary(scores: Sequence[Score]) -> dict[str, float]:
    """Errors of some scores of one target, as fractions, and Spearman's rank correlation where there is one."""
    errors = np.array([score.error for score in scores])
    measured, predicted = [s.measured for s in scores], [s.predicted for s in scores]
    figures = {
        "n": len(scores),
        "ape_median": float(np.median(errors)),
        "ape_mean": float(np.mean(errors)),
        "ape_p90": float(np.quantile(errors, 0.9)),
    }
    if len(set(measured)) > 1 and len(set(predicted)) > 1:
        figures["rank_correlation"] = float(spearmanr(measured, predicted).statistic)
    return figures


def orderings(scores: Iterable[Score]) -> dict[str, bool]:
    """Whether layouts of different width keep their order in time per token, for each load they were compared under."""
    groups: dict[str, dict[int, list[Score]]] = {}
    for score in scores:
        if score.target == "tpot" and score.comparison:
            groups.setdefault(score.comparison, {}).setdefault(score.deployment.tp, []).append(score)
    kept = {}
    for name, widths in groups.items():
        if len(widths) >= ORDERED_WIDTHS:
            measured = {tp: np.mean([s.measured for s in members]) for tp, members in widths.items()}
            predicted = {tp: np.mean([s.predicted for s in members]) for tp, members in widths.items()}
            kept[name] = sorted(widths, key=measured.__getitem__) == sorted(widths, key=predicted.__getitem__)
    return kept


def grouped(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Summaries by target, model, GPU, width and split."""
    groups: dict[tuple[Any, ...], list[Score]] = {}
    for score in scores:
        d = score.deployment
        key = (score.target, d.model, d.gpu, d.tp, d.engine, score.split, score.source)
        groups.setdefault(key, []).append(score)
    names = ("target", "model", "gpu", "tp", "engine", "split", "source")
    return [
        {**dict(zip(names, key, strict=True)), **summary(members)}
        for key, members in sorted(groups.items(), key=lambda entry: str(entry[0]))
    ]


def overall(scores: Sequence[Score]) -> dict[str, Any]:
    """Summaries by target, of each split and of each band of load (`BANDS`) on its own."""
    result: dict[str, Any] = {}
    for target in TARGETS:
        members = [score for score in scores if score.target == target]
        if not members:
            continue
        result[target] = summary(members)
        parts = {split: [s for s in members if s.split == split] for split in ("seen", "unseen")}
        parts |= {band: [s for s in members if s.band == band] for band in BANDS}
        result[target]["parts"] = {name: summary(part) for name, part in parts.items() if part}
    kept = orderings(scores)
    if kept:
        broken = sorted(name for name, holds in kept.items() if not holds)
        share = 1.0 - len(broken) / len(kept)
        result[ORDERING] = {"n": len(kept), "kept": len(kept) - len(broken), "share": share, "broken": broken}
    return result


def listed(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """One entry for each measured number: where it stands, both values, the load and whether that is saturation."""
    return [
        {
            "row": s.row,
            "target": s.target,
            "deployment": s.deployment.name,
            "measured_s": s.measured,
            "predicted_s": s.predicted,
            **({"load": round(s.load, 4), "saturated": s.load >= SATURATED} if s.band else {}),
        }
        for s in sorted(scores, key=lambda score: (score.row, score.target))
    ]


def report(data: str, profile: str, scores: Sequence[Score], unsupported: Counter[str]) -> dict[str, Any]:
    """The content of `validation.json`."""
    return {
        "data": data,
        "profile": profile,
        "rows_unsupported": sum(unsupported.values()),
        "overall": overall(scores),
        "unsupported": dict(unsupported.most_common()),
        "groups": grouped(scores),
        "rows": listed(scores),
    }
