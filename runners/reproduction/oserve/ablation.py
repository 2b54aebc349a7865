"""Section 6.3, Figures 14 and 15: what switching ad hoc, heterogeneous deployments and their assignment bring.

OServe has corrected capacities here (`episodes.py`): as published, the assignment gives some replicas more than they
can do, which would be counted as what an assignment brings.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_gym.runners.configuration.schema import ReproduceConfig
from serving_gym.runners.reproduction.claims import Claim, at_least
from serving_gym.runners.reproduction.measures import over
from serving_gym.runners.reproduction.oserve.episodes import System, Trace, figures
from serving_gym.runners.reproduction.oserve.study import make_claim
from serving_gym.runners.reproduction.oserve.systems import BEYOND, TRACES, systems
from serving_gym.runners.reproduction.parts import num_seeds

# Shares by which P99 latency falls: mean and largest (section 6.3).
SWITCHING = (0.12, 0.17)
DEPLOYMENT, ASSIGNMENT = (0.34, 0.52), (0.64, 1.09)
TRACE = TRACES[0]
_STEPS = ("reload", "deployment alone", "corrected", "naive switch")


def num_steps(config: ReproduceConfig) -> int:
    """Steps of the progress bar: a contender on a system."""
    return len(_STEPS) * len(systems(config))


def claims(config: ReproduceConfig, bar: Any) -> list[Claim]:
    """Both figures."""
    found = [_all(config, bar, system, TRACE) for system in systems(config)]
    gains = {
        "naive": [1.0 - over(of["corrected"], of["naive switch"]) for of in found],
        "deployment": [over(of["reload"], of["deployment alone"]) - 1.0 for of in found],
        "both": [over(of["reload"], of["corrected"]) - 1.0 for of in found],
    }
    what = {
        "naive": ("Figure 14", "ad hoc switching instead of reloading: P99 latency falls by", SWITCHING),
        "deployment": ("Figure 15", "heterogeneous deployment: P99 latency improves by", DEPLOYMENT),
        "both": ("Figure 15", "and optimal assignment: P99 latency improves by", ASSIGNMENT),
    }
    rows = []
    for key, (figure, text, (mean, largest)) in what.items():
        for name, stated, ours in (
            ("mean", mean, np.mean(gains[key])),
            ("largest", largest, max(gains[key])),
        ):
            rows.append(
                make_claim(
                    f"6.3, {figure}",
                    f"{text}, {name}",
                    stated,
                    float(ours),
                    "share",
                    at_least(stated),
                    note=(
                        f"Over {', '.join(map(str, systems(config)))} GPUs, {num_seeds(config)} seeds: "
                        f"{', '.join(f'{gain:.2f}' for gain in gains[key])}."
                    ),
                    beyond=BEYOND if key != "naive" else _SELDOM,
                )
            )
    return rows


_SELDOM = "Where deployments are so near to each other, OServe seldom switches, and what it never does costs nothing."


def _all(config: ReproduceConfig, bar: Any, system: System, trace: Trace) -> dict[str, float]:
    """P99 latency of every step, seconds."""
    found = {}
    for contender in _STEPS:
        bar.set_postfix_str(f"{system}, {contender}", refresh=False)
        found[contender] = figures(config, system, trace, contender).p99_s
        bar.update(1)
    return found
