"""Section 6.2: OServe against both vLLM over models, traces and numbers of GPUs (Figures 10 to 13).

The paper's two traces are windows of Azure's week of 2024 with a mix of types that drifts over minutes (Figure 9);
mixes of Table 1 that drift from one to the next stand for them: those of T4, whose skew grows, and those of T3.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_gym.runners.configuration.schema import ReproduceConfig
from serving_gym.runners.reproduction.claims import Claim, at_least
from serving_gym.runners.reproduction.measures import over
from serving_gym.runners.reproduction.oserve.episodes import Figures, System, Trace, figures
from serving_gym.runners.reproduction.oserve.study import make_claim
from serving_gym.runners.reproduction.parts import num_seeds

SYSTEMS = (
    System("opt-30b", 1),
    System("llama-30b", 1),
    System("opt-66b", 2),
    System("llama-2-70b", 2),
)
LARGE = System("llama-2-70b", 4)
TRACES = (Trace(("S1", "S4", "S5"), gradual=True), Trace(("S2", "S4", "S3"), gradual=True))
OURS = {"oserve": "OServe", "corrected": "OServe with corrected capacities"}
# Section 6.2: average and largest gain over each baseline, in P99 latency and in throughput alike.
STATED = {"static": (1.5, 2.0), "reload": (1.3, 1.5)}
NAMES = {"static": "vLLM (static)", "reload": "vLLM (reload)"}
LARGE_STATED = 1.9
BEYOND = (
    "On calibrated engines the best uniform deployment, which the baselines have, is within a few per cent of the "
    "optimum in what it serves; what is left to gain is in the tail, where types are kept apart, and is paid for where "
    "the mix is another than was forecast."
)


def systems(config: ReproduceConfig) -> tuple[System, ...]:
    """Those that are run."""
    return SYSTEMS[:1] if config.quick else SYSTEMS


def traces(config: ReproduceConfig) -> tuple[Trace, ...]:
    """Those that are run."""
    return TRACES[:1] if config.quick else TRACES


def num_steps(config: ReproduceConfig) -> int:
    """Steps of the progress bar: a contender on a trace."""
    large = 0 if config.quick else 1
    return (len(systems(config)) + large) * len(traces(config)) * (len(STATED) + len(OURS))


def claims(config: ReproduceConfig, bar: Any) -> list[Claim]:
    """Average and largest gains, and those on 32 GPUs."""
    pairs = [(system, trace) for system in systems(config) for trace in traces(config)]
    found = [_all(config, bar, *pair) for pair in pairs]
    rows = []
    for mine, name in OURS.items():
        for theirs, (mean, largest) in STATED.items():
            for what in ("P99 latency", "throughput"):
                gains = [_gain(of[theirs], of[mine], what) for of in found]
                rows += [
                    _claim(
                        config,
                        f"{name} over {NAMES[theirs]}, {what}, mean",
                        mean,
                        float(np.mean(gains)),
                        gains,
                    ),
                    _claim(
                        config, f"{name} over {NAMES[theirs]}, {what}, largest", largest, max(gains), gains
                    ),
                ]
    if config.quick:
        return rows
    large = [_all(config, bar, LARGE, trace) for trace in traces(config)]
    for mine, name in OURS.items():
        gains = [_gain(of[theirs], of[mine], "P99 latency") for of in large for theirs in STATED]
        rows.append(
            make_claim(
                "6.2, Figure 13",
                f"{name} over both vLLM on {LARGE}, P99 latency, largest",
                LARGE_STATED,
                max(gains),
                "x",
                at_least(LARGE_STATED),
                note=_seen(gains),
                beyond=BEYOND,
            )
        )
    return rows


def _all(config: ReproduceConfig, bar: Any, system: System, trace: Trace) -> dict[str, Figures]:
    """What every contender makes of a trace."""
    found = {}
    for contender in (*STATED, *OURS):
        bar.set_postfix_str(f"{system}, {contender}", refresh=False)
        found[contender] = figures(config, system, trace, contender)
        bar.update(1)
    return found


def _gain(theirs: Figures, mine: Figures, what: str) -> float:
    return over(mine.rps, theirs.rps) if what == "throughput" else over(theirs.p99_s, mine.p99_s)


def _claim(config: ReproduceConfig, what: str, stated: float, ours: float, gains: list[float]) -> Claim:
    shown = ", ".join(str(system) for system in systems(config))
    return make_claim(
        "6.2",
        what,
        stated,
        ours,
        "x",
        at_least(stated),
        note=f"{shown} GPUs; {len(traces(config))} traces of ours, {num_seeds(config)} seeds. {_seen(gains)}",
        beyond=BEYOND,
    )


def _seen(gains: list[float]) -> str:
    return f"Seen: {', '.join(f'{gain:.2f}' for gain in gains)}."
