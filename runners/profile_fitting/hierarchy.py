"""Fits what engines add to their kernels, from the general to the particular.

All runs of an engine first give one set of overheads; these are the prior of the same overheads for each model on it,
these for each model and GPU, these for each deployment. The less a deployment was measured, the closer it stays to its
relations, and one that was never measured takes theirs. The judge is the simulator: every residual is a simulated run.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from serving_gym.calibration.deployments import FITTED, Deployment, kernels_or_roofline
from serving_gym.calibration.engines import SCALE_TOKENS, Engine, family_of
from serving_gym.calibration.fitting.bayes import Array, Prior, fit_map
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.models import get_model
from serving_gym.calibration.profile import Profile
from serving_gym.runners.validation.predict import predict
from serving_gym.runners.validation.runs import ServingRun

# Standard deviation of one measurement's log error, by target: spread of repeats and what no model of ours explains.
SPREAD = {"tpot": 0.03, "ttft": 0.08, "ttft_p99": 0.25}
# How far each level may leave the one above, as a share of the engine's own prior widths.
LEVEL_WIDTHS = (1.0, 0.6, 0.4, 0.4)
LEVEL_ROUNDS = (2, 1, 1, 1)  # derivatives taken: the lower levels begin close to where they end
SCALE_NAMES = tuple(f"matrix_scale_{tokens}" for tokens in SCALE_TOKENS)
# Before any measurement (source: ours): a host that works as fast as those whose profiles the project began with, and
# sustained arithmetic somewhat below what short bursts reach.
PRIORS = (
    Prior("fixed_s", 0.6e-3, 0.5e-3),
    Prior("sequence_s", 1e-5, 1e-5),
    # Kernels are timed one by one; in a captured graph they overlap their launches, so the sum may also be too long.
    Prior("all_reduce_s", 2e-6, 2e-6, -4e-6),
    Prior("layer_s", 1e-6, 4e-6, -4e-5),
    Prior("kv_ratio", 1.0, 0.15, 0.3),
    Prior("attention_ratio", 1.0, 0.2, 0.3),
    Prior("prefill_s", 2e-3, 2e-3),
    Prior("frontend_s", 6e-3, 6e-3),
    Prior("frontend_token_s", 1e-6, 1e-5),
    *(
        Prior(name, 1.0 if tokens < 256 else 1.1, 0.15, 0.4)
        for name, tokens in zip(SCALE_NAMES, SCALE_TOKENS, strict=True)
    ),
)
# Single prompts met by an engine that only decodes tell the launches of an iteration without a captured graph; where
# all prompts are long or come in crowds, they cannot be told from `prefill_s` and are left at zero.
COLD_PROMPT_PRIORS = {"vllm-0.15": (Prior("eager_layer_s", 0.1e-3, 0.2e-3),)}
# What a layer of experts adds (gates, permutations, their gaps) differs between mixtures by tens of microseconds: with
# the width for dense models, one whose layers are cheap is held to those of the others. On vLLM 0.15, with three
# mixtures in 22 rows, held-out errors are smaller with the narrow width.
EXPERT_PRIORS = (Prior("layer_s", 1e-6, 1.5e-5, -4e-5),)
NARROW_EXPERTS = ("vllm-0.15",)
# Asynchronous scheduling, on by default from vLLM 0.14, decides the next iteration while one runs.
PIPELINE_ITERATIONS = {"vllm-0.15": 1.0, "vllm-0.17": 1.0}


@dataclass(frozen=True)
class Fit:
    """Overheads by level; keys are ENGINE|dense or |moe, ENGINE|MODEL, ENGINE|MODEL|GPU and a deployment's name."""

    overheads: dict[str, Engine]

    def of(self, deployment: Deployment) -> Engine:
        """The most particular overheads known of a deployment.

        Raises:
            ValueError: Nothing is known of its engine.
        """
        engine = deployment.engine
        keys = [*reversed(keys_of(deployment)), f"{engine}|dense", f"{engine}|moe"]
        found = [self.overheads[key] for key in keys if key in self.overheads]
        if not found:
            raise ValueError(f"no run of engine {engine!r} was fitted")
        return found[0]


def keys_of(deployment: Deployment) -> tuple[str, str, str, str]:
    """Levels that a deployment belongs to, the most general first."""
    d = deployment
    return family_of(d.engine, d.model), f"{d.engine}|{d.model}", f"{d.engine}|{d.model}|{d.gpu}", d.name


def to_engine(values: dict[str, float], name: str) -> Engine:
    """Overheads from fitted values."""
    plain: dict[str, Any] = {key: value for key, value in values.items() if key not in SCALE_NAMES}
    return Engine(
        **plain,
        matrix_scale=tuple(values[key] for key in SCALE_NAMES),
        pipeline_iterations=PIPELINE_ITERATIONS.get(name, 0.0),
    )


def priors_of(engine: str, model: str) -> Sequence[Prior]:
    """What is believed of a model on an engine before any measurement."""
    wide = get_model(model).num_experts > 0 and engine not in NARROW_EXPERTS
    own = {prior.name: prior for prior in EXPERT_PRIORS if wide}
    return (*(own.get(prior.name, prior) for prior in PRIORS), *COLD_PROMPT_PRIORS.get(engine, ()))


def to_values(engine: Engine) -> dict[str, float]:
    """Values of overheads by the names of the priors."""
    scale = dict(zip(SCALE_NAMES, engine.matrix_scale, strict=True))
    return {field.name: getattr(engine, field.name) for field in fields(Engine)} | scale


def profile_with(deployment: Deployment, overheads: Engine, source: str = FITTED) -> Profile:
    """Latency of a deployment under some overheads."""
    kernels, _ = kernels_or_roofline(deployment)
    coefficients = overheads.applied(kernels, deployment.tp)
    return Profile(
        get_model(deployment.model), get_gpu(deployment.gpu), source, {deployment.tp: coefficients}
    )


def log_errors(run: ServingRun, overheads: Engine) -> dict[str, list[float]]:
    """Logarithm of predicted over measured, by target, of every stage of a run."""
    predicted = predict(run, profile_with(run.deployment, overheads), overheads.frontend)
    errors: dict[str, list[float]] = {target: [] for target in SPREAD}
    for stage, figures in zip(run.stages, predicted, strict=True):
        for target in SPREAD:
            if target in stage.measured:
                ratio = figures[target] / stage.measured[target]
                errors[target].append(float(np.log(ratio)) if ratio > 0 else 0.0)  # refused: no information
    return errors


def shortened(run: ServingRun) -> ServingRun:
    """An open-loop run cut to a part of each stage, its first prompts (not cached yet) left out: as good for a fit."""
    if not run.shorter:
        return run
    workload, stages = run.shorter()
    return replace(run, workload=workload, stages=stages, shorter=None)


def residuals(runs: Iterable[ServingRun], overheads: Engine) -> Array:
    """Errors of all runs in standard deviations."""
    errors = [log_errors(run, overheads) for run in runs]
    parts = [np.array(run[target]) / SPREAD[target] for run in errors for target in SPREAD]
    return np.concatenate(parts)


def fit_level(runs: Sequence[ServingRun], parent: Engine | None, level: int) -> Engine:
    """Overheads of some runs of one family, with those of the level above as the prior."""
    engine = runs[0].deployment.engine
    priors = priors_of(engine, runs[0].deployment.model)
    if parent is not None:
        means = to_values(parent)
        share = LEVEL_WIDTHS[level]
        priors = [replace(p, mean=means[p.name], width=p.width * share) for p in priors]
    values = fit_map(priors, lambda x: residuals(runs, to_engine(x, engine)), LEVEL_ROUNDS[level])
    return to_engine(values, engine)


def fit_hierarchy(runs: Sequence[ServingRun], report: Callable[[str], None] = lambda _: None) -> Fit:
    """Fits every level of every engine that the runs belong to.

    Args:
        runs: Measured runs.
        report: Called with the key of each fitted group.
    """
    overheads: dict[str, Engine] = {}
    sizes: dict[str, int] = {}
    for level in range(len(LEVEL_WIDTHS)):
        groups: dict[str, list[ServingRun]] = {}
        for run in runs:
            groups.setdefault(keys_of(run.deployment)[level], []).append(run)
        for key, members in sorted(groups.items()):
            parent = keys_of(members[0].deployment)[level - 1] if level else ""
            sizes[key] = len(members)
            if level > 1 and sizes[parent] == len(
                members
            ):  # the same runs: there is nothing more particular to say
                overheads[key] = overheads[parent]
                continue
            overheads[key] = fit_level(members, overheads.get(parent), level)
            report(key)
    return Fit(overheads)
