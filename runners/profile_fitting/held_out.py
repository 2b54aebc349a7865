"""Errors on data that a fit never saw: configurations of known deployments, and whole deployments."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from serving_gym.calibration.deployments import FITTED, OTHER_WIDTHS, Deployment
from serving_gym.calibration.engines import Frontend
from serving_gym.calibration.profile import Profile
from serving_gym.runners.profile_fitting.hierarchy import Fit, fit_hierarchy, profile_with, shortened
from serving_gym.runners.validation.runs import ServingRun
from serving_gym.runners.validation.score import Score, score_run

Folds = list[tuple[list[ServingRun], list[ServingRun]]]
SHUFFLE = 20  # seed of the cut


def lookup_in(fit: Fit) -> Callable[[Deployment], tuple[Profile, Frontend]]:
    """Predictions of a fit, marked by whether it was made to the deployment itself."""

    def lookup(deployment: Deployment) -> tuple[Profile, Frontend]:
        overheads = fit.of(deployment)
        source = FITTED if deployment.name in fit.overheads else OTHER_WIDTHS
        return profile_with(deployment, overheads, source), overheads.frontend

    return lookup


def by_deployment(runs: Sequence[ServingRun]) -> dict[str, list[ServingRun]]:
    """Runs of each deployment, in a fixed order."""
    groups: dict[str, list[ServingRun]] = {}
    for run in sorted(runs, key=lambda run: (run.deployment.name, run.stages[0].row)):
        groups.setdefault(run.deployment.name, []).append(run)
    return groups


def configuration_folds(runs: Sequence[ServingRun], folds: int) -> Folds:
    """Leaves out a part of the configurations of every deployment that has at least two.

    Repeats of one configuration (same load and lengths) stay together.
    """
    part: dict[int, int] = {}
    random = np.random.default_rng(SHUFFLE)
    for members in by_deployment(runs).values():
        configurations = sorted({run.configuration for run in members})
        turn = dict(zip(configurations, random.permutation(len(configurations)), strict=True))
        if len(configurations) > 1:
            part |= {id(run): int(turn[run.configuration]) % folds for run in members}
    return [
        ([r for r in runs if part.get(id(r)) != fold], [r for r in runs if part.get(id(r)) == fold])
        for fold in range(folds)
    ]


def deployment_folds(runs: Sequence[ServingRun], folds: int) -> Folds:
    """Leaves out a part of the deployments, each as a whole."""
    groups = by_deployment(runs)
    turn = np.random.default_rng(SHUFFLE).permutation(len(groups))
    part = {name: int(place) % folds for name, place in zip(groups, turn, strict=True)}
    return [
        (
            [r for r in runs if part[r.deployment.name] != fold],
            [r for r in runs if part[r.deployment.name] == fold],
        )
        for fold in range(folds)
    ]


def held_out_scores(cut: Folds, report: Callable[[str], None]) -> list[Score]:
    """Fits to each part and predicts what was left out of it."""
    scores: list[Score] = []
    unusable: Counter[str] = Counter()
    for number, (shown, hidden) in enumerate(cut):
        report(f"fold {number + 1} of {len(cut)}: {len(shown)} runs shown, {len(hidden)} held out")
        lookup = lookup_in(fit_hierarchy([shortened(run) for run in shown]))
        for run in hidden:
            try:
                scores += score_run(run, lookup, unusable)
            except ValueError as error:
                report(f"{run.deployment.name}: {error}")
    for reason, count in unusable.items():
        report(f"{reason}: {count} times")
    return scores
