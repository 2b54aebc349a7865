"""Fits an engine measured iteration by iteration: Splitwise's performance model.

One deployment is one physical form: host work, weights, KV cache, attention, and a smooth curve over it in the number
of tokens. The curve is what the roofline alone misses: prefill there grows faster than its arithmetic between 2,048 and
4,096 tokens (up to 2.8 times for twice the tokens at eight GPUs), which no smooth maximum of two terms follows.

The power-capped H100 of that data is not a measurement of its own: its decode times are those of the uncapped part to
the last digit and its prefill times 1.3 times them. Both are fitted together, and the factor is applied.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from serving_gym.calibration.coefficients import RATIO_TOKENS, LatencyCoefficients
from serving_gym.calibration.deployments import Deployment, kernels_or_roofline
from serving_gym.calibration.fitting.bayes import Array, Prior, fit_map
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.measured.steps import Step, predict_step
from serving_gym.calibration.models import get_model
from serving_gym.calibration.profile import Profile

CAPPED, UNCAPPED = "H100-pcap", "H100"
CAPPED_PREFILL_FACTOR = 1.3
LARGEST_DECODE_BATCH = 64  # tokens of an iteration up to which the curve is about decode
# Standard deviation of a configuration's mean: spread of repeats, and between configurations that differ only in a
# length that the step should not depend on.
SPREAD = {"prefill_step": 0.03, "decode_step": 0.012}
ROUNDS = 30  # simulating an iteration costs nothing
CURVE = tuple(f"curve_{tokens}" for tokens in RATIO_TOKENS)
PRIORS = (
    Prior("fixed_s", 10e-3, 8e-3),
    Prior("prefill_s", 5e-3, 10e-3),
    Prior("kv_ratio", 0.8, 0.3, 0.05),
    Prior("attention_ratio", 0.8, 0.3, 0.05),
    Prior("sequence_s", 2e-5, 5e-5),
    # Logarithm of the curve at one token, then its steps: decode in small batches hardly bends.
    Prior(CURVE[0], 0.2, 0.3, -3.0),
    *(
        Prior(name, 0.0, 0.04 if tokens <= LARGEST_DECODE_BATCH // 4 else 0.25, -3.0)
        for name, tokens in zip(CURVE[1:], RATIO_TOKENS[1:], strict=True)
    ),
)


def uncapped(step: Step) -> Step:
    """A step of the power-capped part as the uncapped part would take it."""
    if step.deployment.gpu != CAPPED:
        return step
    deployment = replace(step.deployment, gpu=UNCAPPED)
    return replace(step, deployment=deployment, prefill_s=step.prefill_s / CAPPED_PREFILL_FACTOR)


def configurations(steps: Sequence[Step]) -> list[Step]:
    """One step for each configuration: the median of its repeats."""
    groups: dict[Step, list[Step]] = {}
    for step in steps:
        groups.setdefault(replace(step, prefill_s=0.0, decode_s=0.0, row=0), []).append(step)
    return [
        replace(
            members[0],
            prefill_s=float(np.median([member.prefill_s for member in members])),
            decode_s=float(np.median([member.decode_s for member in members])),
        )
        for members in groups.values()
    ]


def coefficients_from(base: LatencyCoefficients, values: dict[str, float]) -> LatencyCoefficients:
    """Coefficients of a deployment from fitted values."""
    curve = np.exp(np.cumsum([values[name] for name in CURVE]))
    return replace(
        base,
        fixed_s=values["fixed_s"],
        sequence_s=values["sequence_s"],
        prefill_s=values["prefill_s"],
        token_s=0.0,
        kv_bandwidth_ratio=min(base.kv_bandwidth_ratio * values["kv_ratio"], 1.0),
        attention_flops_ratio=min(base.attention_flops_ratio * values["attention_ratio"], 1.0),
        matrix_ratios=tuple(float(x) for x in curve),
    )


def profile_with(deployment: Deployment, coefficients: LatencyCoefficients) -> Profile:
    """Coefficients of one deployment as a profile."""
    return Profile(
        get_model(deployment.model), get_gpu(deployment.gpu), "fitted", {deployment.tp: coefficients}
    )


def step_log_errors(step: Step, profile: Profile) -> dict[str, float]:
    """Logarithm of predicted over measured of one step."""
    predicted = predict_step(step, profile)
    measured = {"prefill_step": step.prefill_s, "decode_step": step.decode_s}
    return {target: float(np.log(predicted[target] / measured[target])) for target in SPREAD}


def fit_steps(steps: Sequence[Step]) -> LatencyCoefficients:
    """Coefficients of the one deployment that all steps are of; the power-capped part counts as the uncapped one."""
    shown = configurations([uncapped(step) for step in steps])
    deployment = shown[0].deployment
    base = replace(kernels_or_roofline(deployment)[0], matrix_ratios=())

    def residuals(values: dict[str, float]) -> Array:
        profile = profile_with(deployment, coefficients_from(base, values))
        errors = [step_log_errors(step, profile) for step in shown]
        return np.array([error[target] / SPREAD[target] for error in errors for target in SPREAD])

    return coefficients_from(base, fit_map(PRIORS, residuals, rounds=ROUNDS))


def capped(coefficients: LatencyCoefficients, deployment: Deployment) -> LatencyCoefficients:
    """Coefficients of the power-capped part: every term of an iteration with prefill takes the factor."""
    model = profile_with(replace(deployment, gpu=UNCAPPED), coefficients).latency_model(deployment.tp)
    factor = CAPPED_PREFILL_FACTOR
    slower = [
        ratio * (1.0 if tokens <= LARGEST_DECODE_BATCH else factor)
        for tokens, ratio in zip(RATIO_TOKENS, coefficients.matrix_ratios, strict=True)
    ]
    constant_s = model.overhead_s + model.all_reduce_s(
        0.0
    )  # a decode iteration has them, too, and does not slow down
    return replace(
        coefficients,
        prefill_s=(constant_s + coefficients.prefill_s) * factor - constant_s,
        all_reduce_bandwidth=coefficients.all_reduce_bandwidth / factor,
        attention_flops_ratio=coefficients.attention_flops_ratio / factor,
        matrix_ratios=tuple(slower),
    )
