"""Writes what was fitted to single iterations: one profile for each model and GPU of Splitwise's performance model."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from serving_gym.calibration.coefficients import RATIO_TOKENS, LatencyCoefficients
from serving_gym.calibration.deployments import FITTED, Deployment
from serving_gym.calibration.engines import SCALE_TOKENS, Engine
from serving_gym.calibration.fitting.steps import CAPPED, UNCAPPED, capped, fit_steps, profile_with, uncapped
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.measured.steps import Step
from serving_gym.calibration.models import get_model
from serving_gym.calibration.profile import Profile
from serving_gym.runners.validation.score import Score, score_step, summary

SOURCE = {
    "file": "profiles/splitwise_perf_model.csv.gz",
    "repository": "Mutinifni/splitwise-sim",
    "licence": "MIT",
}
METHOD = (
    "host work, weights, KV cache, attention and a smooth curve in the number of tokens "
    "(calibration/fitting/steps.py)"
)
CAPPED_NOTE = (
    "the source's power-capped rows are its uncapped ones with prefill times 1.3; fitted together with them"
)
HELD_OUT = (
    "a part of the configurations (prompt, batch, output) of each deployment left out of the fit, "
    "repeats together"
)
TARGETS = ("prefill_step", "decode_step")
SHUFFLE = 20


def by_engine(steps: Sequence[Step]) -> dict[Deployment, list[Step]]:
    """Steps of each deployment, those of the power-capped part with the uncapped one's."""
    groups: dict[Deployment, list[Step]] = {}
    for step in steps:
        groups.setdefault(uncapped(step).deployment, []).append(step)
    return groups


def coefficients_for(fitted: LatencyCoefficients, deployment: Deployment) -> LatencyCoefficients:
    """Coefficients of a deployment from those of the uncapped part."""
    return capped(fitted, deployment) if deployment.gpu == CAPPED else fitted


def scores_of(steps: Sequence[Step], fitted: LatencyCoefficients) -> list[Score]:
    """Scores of steps of one deployment."""
    scores: list[Score] = []
    for step in steps:
        profile = profile_with(step.deployment, coefficients_for(fitted, step.deployment))
        found = profile, Engine().frontend
        scores += score_step(step, lambda _, found=found: found, Counter())  # type: ignore[misc]
    return scores


def held_out_scores(steps: Sequence[Step], folds: int) -> list[Score]:
    """Scores of configurations that the fit did not see."""
    scores: list[Score] = []
    for members in by_engine(steps).values():
        configurations = sorted({(step.prompt, step.batch, step.output) for step in members})
        order = np.random.default_rng(SHUFFLE).permutation(len(configurations))
        part = {key: int(place) % folds for key, place in zip(configurations, order, strict=True)}
        for fold in range(folds):
            hidden = [s for s in members if part[s.prompt, s.batch, s.output] == fold]
            shown = [s for s in members if part[s.prompt, s.batch, s.output] != fold]
            scores += scores_of(hidden, fit_steps(shown))
    return scores


def repeat_noise(steps: Sequence[Step]) -> dict[str, dict[str, float]]:
    """Distance of single measurements from the median of their configuration: what no model can fall below."""
    groups: dict[Step, list[Step]] = {}
    for step in steps:
        groups.setdefault(Step(step.deployment, step.prompt, step.batch, step.output, 0, 0, 0), []).append(
            step
        )
    found = {}
    for target, name in zip(TARGETS, ("prefill_s", "decode_s"), strict=True):
        spread: list[float] = []
        for members in groups.values():
            values = np.array([getattr(step, name) for step in members])
            spread += np.abs(values / np.median(values) - 1.0).tolist()
        found[target] = {
            "ape_median": round(float(np.median(spread)), 4),
            "ape_mean": round(float(np.mean(spread)), 4),
        }
    return found


def errors(scores: Sequence[Score]) -> dict[str, dict[str, float]]:
    """Errors by target, to four digits."""
    return {
        target: {
            name: round(value, 4)
            for name, value in summary([s for s in scores if s.target == target]).items()
        }
        for target in TARGETS
    }


def step_profiles(steps: Sequence[Step], folds: int) -> list[Profile]:
    """One profile for each model and GPU."""
    fitted = {deployment: fit_steps(members) for deployment, members in by_engine(steps).items()}
    hidden, noise = held_out_scores(steps, folds), repeat_noise(steps)
    groups: dict[tuple[str, str], dict[int, Deployment]] = {}
    for step in steps:
        d = step.deployment
        groups.setdefault((d.model, d.gpu), {})[d.tp] = d
    profiles = []
    for (model, gpu), widths in sorted(groups.items()):
        rows = sum(step.deployment in widths.values() for step in steps)
        here = [score for score in hidden if score.deployment in widths.values()]
        notes = {"notes": [CAPPED_NOTE]} if gpu in (CAPPED, UNCAPPED) else {}
        profiles.append(
            Profile(
                get_model(model),
                get_gpu(gpu),
                FITTED,
                {tp: coefficients_for(fitted[base(d)], d) for tp, d in widths.items()},
                {"method": METHOD, "iterations": [{**SOURCE, "rows": rows}], **notes},
                {"method": HELD_OUT, "all": errors(hidden), "here": errors(here), "repeats": noise},
                next(iter(widths.values())).engine,
            )
        )
    return profiles


def base(deployment: Deployment) -> Deployment:
    """The deployment whose fit stands for this one."""
    gpu = UNCAPPED if deployment.gpu == CAPPED else deployment.gpu
    return Deployment(deployment.model, gpu, deployment.tp, deployment.engine)


def typical(fitted: Mapping[int, LatencyCoefficients] | Sequence[LatencyCoefficients]) -> Engine:
    """Overheads that stand for deployments of this engine that were never measured: means over those that were."""
    members = list(fitted.values()) if isinstance(fitted, Mapping) else list(fitted)
    curve = np.exp(np.mean([np.log(member.matrix_ratios) for member in members], axis=0))
    return Engine(
        fixed_s=float(np.mean([member.fixed_s for member in members])),
        prefill_s=float(np.mean([member.prefill_s for member in members])),
        matrix_scale=tuple(float(x) for x in np.interp(np.log2(SCALE_TOKENS), np.log2(RATIO_TOKENS), curve)),
    )
