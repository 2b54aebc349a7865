"""A profile from ordinary traffic: runs on a server whose per-iteration log was kept.

It needs no designed load and no exclusive use of the server. It fits the lengths of intervals of
iterations (`intervals`), and of the front end what first tokens took beyond the iterations that computed their prompts.
Traffic does not tell apart what a designed load does, so that the pull is towards another profile of the same model and
hardware where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from serving_gym.calibration.engines import Frontend
from serving_gym.calibration.latency import LatencyModel
from serving_gym.calibration.profile import Profile
from serving_gym.runners.measuring.fit import FITTED, errors_of, fit_coefficients, step_s
from serving_gym.runners.measuring.front_end import IN_FLIGHT
from serving_gym.runners.measuring.intervals import LoggedRun, intervals_of, split

METHOD = (
    "ordinary traffic of a running server; iterations, batches and contexts reconstructed from its per-iteration log "
    "and the requests of its runs, physical form fitted by relative error of the length of stretches of iterations "
    "(runners/measuring/traffic.py)"
)
HELD_OUT_METHOD = "a quarter of the stretches kept out of the fit, ten neighbours at a time"
PULL = 0.1  # of `fit_coefficients`: more than a designed load needs, which varies one thing at a time
QUIET_STEPS = 4  # iterations before a prompt without another one
MEDIAN = 0.02  # relative error from which a first token counts less than in full: near to a regression of the median
LEAST_PROBES = 8  # requests that say something of the front end; with fewer nothing is assumed


def profile_of(
    logged: Sequence[LoggedRun], prior: Profile, tp: int, provenance: dict[str, Any], asynchronous: bool
) -> Profile:
    """Fits a profile.

    Args:
        logged: Runs, as the log tells of them.
        prior: Of the model and hardware, with coefficients at `tp`; a roofline where nothing else is known.
        tp: Ranks of the engine.
        provenance: What is known of the server and the runs; how it was fitted is added.
        asynchronous: Whether the server schedules asynchronously.

    Raises:
        ValueError: the runs do not suffice.
    """
    model, gpu, believed = prior.model, prior.gpu, prior.coefficients_at(tp)
    intervals = [interval for each in logged for interval in intervals_of(each.story.steps)]
    fitted, kept_out = split(intervals)
    coefficients = fit_coefficients(model, gpu, tp, believed, PULL, fitted, (*FITTED, "layer_s"))
    latency = LatencyModel(model, gpu, tp, coefficients)
    return Profile(
        model=model,
        gpu=gpu,
        source="measured",
        coefficients={tp: coefficients},
        frontends={tp: fit_front_end(latency, logged, asynchronous)},
        async_scheduling=asynchronous,
        provenance={
            "method": METHOD,
            **provenance,
            "minutes": round(sum(interval.seconds for interval in intervals) / 60.0, 1),
            "iterations": sum(len(each.story.steps) for each in logged),
            "iterations_used": sum(len(interval.steps) for interval in intervals),
            "stretches": len(intervals),
            "fit": errors_of(latency, fitted),
        },
        held_out={
            "method": HELD_OUT_METHOD,
            **errors_of(latency, kept_out),
            "before_the_fit": errors_of(LatencyModel(model, gpu, tp, believed), kept_out),
        },
    )


def fit_front_end(latency: LatencyModel, logged: Sequence[LoggedRun], asynchronous: bool) -> Frontend:
    """The front end: what first tokens took beyond the iterations that computed their prompts.

    Only requests say it that came while others decoded and no other prompt was near: nothing but the rest of the
    iteration in flight was in their way and, with asynchronous scheduling, the next one, which had been decided. What
    remains is a constant and, with asynchronous scheduling, a part per request that decodes; without, a share of the
    request's own time per token. A part per token of the prompt is small beside them. Who came to an engine as full as
    the run ever had it may have waited for room, and says nothing.

    Args:
        latency: What the iterations take.
        logged: Runs.
        asynchronous: Whether the server schedules asynchronously.
    """
    rows: list[tuple[float, float]] = []
    beyond: list[float] = []
    for each in logged:
        run, steps = each.run, each.story.steps
        most = max(step.decoding for step in steps)
        for ttft_s, tpot_s, (first, last) in zip(run.ttft_s, run.tpot_s, each.story.prompts, strict=True):
            before = steps[max(first - QUIET_STEPS, 0) : first]
            quiet = all(step.decoding and not step.prompt_tokens for step in before)
            if not quiet or len(before) < QUIET_STEPS or math.isnan(tpot_s) or before[-1].decoding == most:
                continue
            own_s = sum(step_s(latency, step) for step in steps[first : last + 1])
            rows.append((1.0, before[-1].decoding if asynchronous else tpot_s))
            beyond.append(ttft_s - own_s - (IN_FLIGHT + asynchronous) * step_s(latency, before[-1]))
    if len(rows) < LEAST_PROBES:
        return Frontend()
    design, seconds = np.array(rows), np.array(beyond)
    scale = float(np.median(np.abs(seconds))) or 1.0

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        errors: NDArray[np.float64] = (design @ values - seconds) / scale
        return errors

    usual = (1e-3, 1e-4 if asynchronous else 1.0)
    fixed_s, share = least_squares(
        residuals, usual, bounds=(0.0, np.inf), loss="soft_l1", f_scale=MEDIAN, x_scale=usual
    ).x
    if asynchronous:
        return Frontend(round(float(fixed_s), 6), request_s=round(float(share), 7))
    return Frontend(round(float(fixed_s), 6), pipeline_iterations=round(float(share), 3))
