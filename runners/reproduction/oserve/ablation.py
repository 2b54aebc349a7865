"""Section 6.3, Figures 14 and 15: what switching ad hoc, heterogeneous deployments and their assignment bring."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_gym.runners.reproduction.claims import Claim, at_least
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.measures import over
from serving_gym.runners.reproduction.oserve.episodes import Figures, System, figures
from serving_gym.runners.reproduction.oserve.study import make_claim
from serving_gym.runners.reproduction.oserve.systems import TRACES, systems
from serving_gym.runners.reproduction.parts import num_seeds

# Shares by which P99 latency falls: mean and largest (section 6.3).
SWITCHING = (0.12, 0.17)
DEPLOYMENT, ASSIGNMENT = (0.34, 0.52), (0.64, 1.09)
TRACE = TRACES[0]
SPANS = {"P1": 0, "P6": 5}  # of six, which Figure 15 shows
_STEPS = ("reload", "deployment alone", "oserve", "naive switch")


def num_steps(config: ReproduceConfig) -> int:
    """Steps of the progress bar: a contender on a system."""
    return len(_STEPS) * len(systems(config))


def claims(config: ReproduceConfig, bar: Any) -> list[Claim]:
    """Both figures."""
    found = [_all(config, bar, system) for system in systems(config)]
    naive = [1.0 - over(of["oserve"].p99_s, of["naive switch"].p99_s) for of in found]
    rows = _both(
        config,
        "6.3, Figure 14",
        "ad hoc switching instead of reloading: P99 latency falls by",
        SWITCHING,
        naive,
    )
    for step, text, stated in (
        ("deployment alone", "heterogeneous deployment: P99 latency improves by", DEPLOYMENT),
        ("oserve", "and optimal assignment: P99 latency improves by", ASSIGNMENT),
    ):
        gains = [
            over(of["reload"].span_p99_s[span], of[step].span_p99_s[span]) - 1.0
            for of in found
            for span in SPANS.values()
        ]
        rows += _both(config, "6.3, Figure 15", f"{text}, {' and '.join(SPANS)}", stated, gains)
    return rows


def _both(
    config: ReproduceConfig, section: str, text: str, stated: tuple[float, float], gains: list[float]
) -> list[Claim]:
    """Mean and largest of some gains."""
    note = (
        f"Over {', '.join(map(str, systems(config)))} GPUs, {num_seeds(config)} seeds: "
        f"{', '.join(f'{gain:.2f}' for gain in gains)}."
    )
    pairs = (("mean", stated[0], float(np.mean(gains))), ("largest", stated[1], max(gains)))
    return [
        make_claim(section, f"{text}, {name}", value, ours, "share", at_least(value), note=note)
        for name, value, ours in pairs
    ]


def _all(config: ReproduceConfig, bar: Any, system: System) -> dict[str, Figures]:
    """What every step makes of the trace."""
    found = {}
    for contender in _STEPS:
        bar.set_postfix_str(f"{system}, {contender}", refresh=False)
        found[contender] = figures(config, system, TRACE, contender)
        bar.update(1)
    return found
