"""Section 6.2: OServe against both vLLM over models, traces and numbers of GPUs (Figures 10 to 13).

The paper's two traces are windows of Azure's week of 2024 with a mix of types that drifts over minutes (Figure 9);
mixes of Table 1 that drift from one to the next stand for them: those of T4, whose skew grows, and those of T3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from serving_gym.runners.reproduction.claims import Claim, at_least, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.measures import over
from serving_gym.runners.reproduction.oserve.episodes import Figures, System, Trace, figures
from serving_gym.runners.reproduction.oserve.study import make_claim, study_of
from serving_gym.runners.reproduction.parts import num_seeds

SYSTEMS = (
    System("opt-30b", 1),
    System("llama-30b", 1),
    System("opt-66b", 2),
    System("llama-2-70b", 2),
)
LARGE = System("llama-2-70b", 4)
TRACES = (Trace(("S1", "S4", "S5"), gradual=True), Trace(("S2", "S4", "S3"), gradual=True))
STATED = {
    "static": (1.5, 2.0),
    "reload": (1.3, 1.5),
}  # section 6.2: average and largest gain over each baseline
SPANS = {"static": (1.1, 2.7), "reload": (1.1, 1.9)}  # section 6.2: least and largest gain of P1 to P6
NAMES = {"static": "vLLM (static)", "reload": "vLLM (reload)"}
MINE = "oserve"
LARGE_STATED = 1.9
PREDICTED = System("opt-30b", 1)  # section 6.3: predictors, trace 1
PREDICTORS = ("moving average", "total LSTM", "last span")
PREDICTOR_GAIN = 14.2 / 10.1  # requests/s


def systems(config: ReproduceConfig) -> tuple[System, ...]:
    """Those that are run."""
    return SYSTEMS[:1] if config.quick else SYSTEMS


def traces(config: ReproduceConfig) -> tuple[Trace, ...]:
    """Those that are run."""
    return TRACES[:1] if config.quick else TRACES


def num_steps(config: ReproduceConfig) -> int:
    """Steps of the progress bar: a contender on a trace."""
    large = 0 if config.quick else 1
    pairs = len(systems(config)) * len(traces(config))
    return (2 * pairs + large * len(traces(config))) * (1 + len(STATED)) + 1 + len(PREDICTORS)


def claims(config: ReproduceConfig, bar: Any) -> list[Claim]:
    """Gains in latency, of whole traces and of six spans of each; in throughput; on 32 GPUs; and by predictors."""
    pairs = [(system, trace) for system in systems(config) for trace in traces(config)]
    latency = [_all(config, bar, *pair) for pair in pairs]
    full = [_all(config, bar, system, saturated(config, trace)) for system, trace in pairs]
    rows = []
    for theirs, stated in STATED.items():
        for what in ("p99_s", "p95_s", "p90_s"):
            gains = [over(getattr(of[theirs], what), getattr(of[MINE], what)) for of in latency]
            rows += _both(config, theirs, f"{what[:3].upper()} latency", stated, gains)
        gains = [over(of[MINE].rps, of[theirs].rps) for of in full]
        rows += _both(config, theirs, "throughput", stated, gains)
        rows += _spans(config, theirs, latency)
    if not config.quick:
        rows.append(_large(config, bar))
    return [*rows, *_predictors(config, bar)]


def saturated(config: ReproduceConfig, trace: Trace) -> Trace:
    """A trace at the load of throughput experiments."""
    return replace(trace, load=study_of(config).choices.throughput_load)


def _all(config: ReproduceConfig, bar: Any, system: System, trace: Trace) -> dict[str, Figures]:
    """What every contender makes of a trace."""
    found = {}
    for contender in (*STATED, MINE):
        bar.set_postfix_str(f"{system}, {contender}", refresh=False)
        found[contender] = figures(config, system, trace, contender)
        bar.update(1)
    return found


def _both(
    config: ReproduceConfig, theirs: str, what: str, stated: tuple[float, float], gains: list[float]
) -> list[Claim]:
    """Mean and largest of some gains."""
    shown = ", ".join(str(system) for system in systems(config))
    note = f"{shown} GPUs; {len(traces(config))} traces of ours, {num_seeds(config)} seeds. {_seen(gains)}"
    pairs = (("mean", stated[0], float(np.mean(gains))), ("largest", stated[1], max(gains)))
    return [
        make_claim(
            "6.2",
            f"OServe over {NAMES[theirs]}, {what}, {name}",
            value,
            ours,
            "x",
            at_least(value),
            note=note,
        )
        for name, value, ours in pairs
    ]


def _spans(config: ReproduceConfig, theirs: str, found: list[dict[str, Figures]]) -> list[Claim]:
    """The range of gains over spans P1 to P6."""
    gains = [
        over(*pair) for of in found for pair in zip(of[theirs].span_p99_s, of[MINE].span_p99_s, strict=True)
    ]
    note = (
        f"Requests by the sixth of the trace in which they arrive, {num_seeds(config)} seeds. {_seen(gains)}"
    )
    least, largest = SPANS[theirs]
    return [
        make_claim(
            "6.2, Figure 10",
            f"P1 to P6: OServe over {NAMES[theirs]}, {name}",
            value,
            ours,
            "x",
            at_least(value),
            note=note,
        )
        for name, value, ours in (("least", least, min(gains)), ("largest", largest, max(gains)))
    ]


def _large(config: ReproduceConfig, bar: Any) -> Claim:
    large = [_all(config, bar, LARGE, trace) for trace in traces(config)]
    gains = [over(of[theirs].p99_s, of[MINE].p99_s) for of in large for theirs in STATED]
    return make_claim(
        "6.2, Figure 13",
        f"OServe over both vLLM on {LARGE}, P99 latency, largest",
        LARGE_STATED,
        max(gains),
        "x",
        at_least(LARGE_STATED),
        note=_seen(gains),
    )


def _predictors(config: ReproduceConfig, bar: Any) -> list[Claim]:
    """Throughput with the LSTM by type over that with other predictors."""
    trace, rps = saturated(config, TRACES[0]), {}
    for contender in (MINE, *PREDICTORS):
        bar.set_postfix_str(f"{PREDICTED}, {contender}", refresh=False)
        rps[contender] = figures(config, PREDICTED, trace, contender).rps
        bar.update(1)
    stated = at_least(PREDICTOR_GAIN)
    return [
        make_claim(
            "6.3",
            f"throughput with the LSTM by type over that with the {name}",
            PREDICTOR_GAIN if name == PREDICTORS[0] else None,
            over(rps[MINE], rps[name]),
            "x",
            stated if name == PREDICTORS[0] else shown("the paper has no number"),
            note=f"{PREDICTED} GPUs, trace 1: {rps[MINE]:.2f} and {rps[name]:.2f} requests/s.",
        )
        for name in PREDICTORS
    ]


def _seen(gains: list[float]) -> str:
    return f"Seen: {', '.join(f'{gain:.2f}' for gain in gains)}."
