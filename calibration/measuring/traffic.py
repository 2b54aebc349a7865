"""A profile from ordinary traffic: runs on a server whose per-iteration log was kept.

No load is designed and nobody has to leave the server alone for it. What is fitted are the lengths of stretches of
iterations (`stretches`), and of the front end what first tokens took beyond the iterations that computed their prompts.
Traffic does not tell apart what a designed load does, so that the pull is towards another profile of the same model and
hardware where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from calibration.coefficients import LatencyCoefficients
from calibration.engines import Frontend
from calibration.hardware import GpuSpec
from calibration.latency import LatencyModel
from calibration.measuring.fit import FITTED as OF_A_DESIGNED_LOAD
from calibration.measuring.fit import ROBUST, cell_s, relative_errors
from calibration.measuring.stretches import Stretch, Told, split, stretches_of
from calibration.models import ModelSpec
from calibration.profile import Profile

METHOD = (
    "ordinary traffic of a running server; iterations, batches and contexts reconstructed from its per-iteration log "
    "and the requests of its runs, physical form fitted by relative error of the length of stretches of iterations "
    "(calibration/measuring/traffic.py)"
)
HELD_OUT_METHOD = "a quarter of the stretches kept out of the fit, ten neighbours at a time"
FITTED = (*OF_A_DESIGNED_LOAD, "layer_s", "prefill_s", "eager_layer_s")
PULL = 0.1  # weight of one coefficient's prior against one stretch's relative error
MOST_STRETCHES = 1000  # that are fitted to; of more, every other, third, ...
QUIET_STEPS = 4  # iterations before a prompt without another one
MEDIAN = 0.02  # relative error from which a first token counts less than in full: near to a regression of the median
LEAST_PROBES = 8  # requests that say something of the front end; with fewer nothing is assumed
_IN_FLIGHT = 0.5  # mean rest of an iteration at a moment of no regard to it
_LEAST_S = 1e-9
_PRIOR_S = {"prefill_s": 1e-3, "eager_layer_s": 5e-5}  # where the prior has none


def profile_of(told: Sequence[Told], prior: Profile, tp: int, provenance: dict[str, Any]) -> Profile:
    """Fits a profile.

    Args:
        told: Runs, as the log tells of them.
        prior: Of the model and hardware, with coefficients at `tp`; a roofline where nothing else is known.
        tp: Ranks of the engine.
        provenance: What is known of the server and the runs; how it was fitted is added.

    Raises:
        ValueError: the runs do not suffice.
    """
    model, gpu, believed = prior.model, prior.gpu, prior.coefficients_at(tp)
    stretches = [stretch for each in told for stretch in stretches_of(each.story.steps)]
    fitted, kept_out = split(stretches)
    coefficients = fit_coefficients(model, gpu, tp, believed, fitted)
    latency = LatencyModel(model, gpu, tp, coefficients)
    return Profile(
        model=model,
        gpu=gpu,
        source="measured",
        coefficients={tp: coefficients},
        frontends={tp: fit_front_end(latency, told)},
        provenance={
            "method": METHOD,
            **provenance,
            "minutes": round(sum(stretch.seconds for stretch in stretches) / 60.0, 1),
            "iterations": sum(len(each.story.steps) for each in told),
            "iterations_used": sum(len(stretch.steps) for stretch in stretches),
            "stretches": len(stretches),
            "fit": errors_of(latency, fitted),
        },
        held_out={
            "method": HELD_OUT_METHOD,
            **errors_of(latency, kept_out),
            "before_the_fit": errors_of(LatencyModel(model, gpu, tp, believed), kept_out),
        },
    )


def fit_coefficients(
    model: ModelSpec, gpu: GpuSpec, tp: int, prior: LatencyCoefficients, stretches: Sequence[Stretch]
) -> LatencyCoefficients:
    """Coefficients with the least relative error over the stretches.

    Args:
        model: The model.
        gpu: The hardware of one rank.
        tp: Ranks of the engine.
        prior: What is believed beforehand, towards which a weak pull goes.
        stretches: What was measured.

    Raises:
        ValueError: there are fewer stretches than coefficients, or none of one kind.
    """
    kinds = {stretch.kind for stretch in stretches}
    if len(stretches) < len(FITTED) or len(kinds) < 2:
        raise ValueError(
            f"the traffic gave {len(stretches)} stretches of iterations ({', '.join(sorted(kinds)) or 'none'}), too "
            f"few to fit {len(FITTED)} coefficients"
        )
    rows = stretches[:: math.ceil(len(stretches) / MOST_STRETCHES)]
    assumed: dict[str, Any] = {name: getattr(prior, name) or value for name, value in _PRIOR_S.items()}
    prior = replace(prior, **assumed)
    measured = np.log([stretch.seconds for stretch in rows])
    start = np.log([max(getattr(prior, name), _LEAST_S) for name in FITTED])

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        latency = LatencyModel(model, gpu, tp, _with(prior, logs))
        predicted = np.log([stretch_s(latency, stretch) for stretch in rows])
        errors: NDArray[np.float64] = np.concatenate([predicted - measured, PULL * (logs - start)])
        return errors

    least = np.full(len(FITTED), np.log(_LEAST_S) - 1.0)
    most = np.full(len(FITTED), 1e-9)  # one second, and all of what the hardware can do
    solution = least_squares(
        residuals, np.minimum(start, -1e-6), bounds=(least, most), loss="soft_l1", f_scale=ROBUST, max_nfev=50
    )
    return _with(prior, solution.x)


def stretch_s(latency: LatencyModel, stretch: Stretch) -> float:
    """What a model says of a stretch, s."""
    return sum(cell_s(latency, step) for step in stretch.steps)


def errors_of(latency: LatencyModel, stretches: Sequence[Stretch]) -> dict[str, dict[str, float]]:
    """Absolute relative error by kind of stretch: n, median, mean and 90th percentile (ratios)."""
    report = {}
    for kind in sorted({stretch.kind for stretch in stretches}):
        rows = [stretch for stretch in stretches if stretch.kind == kind]
        report[kind] = relative_errors([stretch_s(latency, row) / row.seconds for row in rows])
    return report


def fit_front_end(latency: LatencyModel, told: Sequence[Told]) -> Frontend:
    """The front end: what first tokens took beyond the iterations that computed their prompts.

    Only requests say it that came while others decoded and no other prompt was near: nothing but the rest of the
    iteration in flight and those already decided (asynchronous scheduling) was in their way. The latter are counted in
    the request's own time per token, as `calibration.engines.Frontend` does; a part per token of the prompt is small
    beside them. Who came to an engine as full as the run ever had it may have waited for room, and says nothing.

    Args:
        latency: What the iterations take.
        told: Runs.
    """
    rows: list[tuple[float, float]] = []
    beyond: list[float] = []
    for each in told:
        run, steps = each.run, each.story.steps
        most = max(step.decoding for step in steps)
        for ttft_s, tpot_s, (first, last) in zip(run.ttft_s, run.tpot_s, each.story.prompts, strict=True):
            before = steps[max(first - QUIET_STEPS, 0) : first]
            quiet = all(step.decoding and not step.prompt_tokens for step in before)
            if not quiet or len(before) < QUIET_STEPS or math.isnan(tpot_s) or before[-1].decoding == most:
                continue
            own_s = sum(cell_s(latency, step) for step in steps[first : last + 1])
            rows.append((1.0, tpot_s))
            beyond.append(ttft_s - own_s - _IN_FLIGHT * cell_s(latency, before[-1]))
    if len(rows) < LEAST_PROBES:
        return Frontend()
    design, seconds = np.array(rows), np.array(beyond)
    scale = float(np.median(np.abs(seconds))) or 1.0

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        errors: NDArray[np.float64] = (design @ values - seconds) / scale
        return errors

    fixed_s, iterations = least_squares(
        residuals, (1e-3, 1.0), bounds=(0.0, np.inf), loss="soft_l1", f_scale=MEDIAN, x_scale=(1e-3, 1.0)
    ).x
    return Frontend(round(float(fixed_s), 6), 0.0, round(float(iterations), 3))


def _with(prior: LatencyCoefficients, logs: NDArray[np.float64]) -> LatencyCoefficients:
    return replace(prior, **dict(zip(FITTED, np.exp(logs).tolist(), strict=True)))
