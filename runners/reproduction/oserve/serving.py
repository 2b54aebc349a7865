"""Section 6.3, Tables 1 and 2: OServe against vLLM (static) on Llama-2-70B with 16 GPUs, served in the environment.

What is run is in `episodes.py`. The speedup is that of the 99th percentile of latency; that of what the deployments can
serve at most (no queues, no switches) is shown beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_gym.envs.deployment.profiling import SaturationRuns, WorkloadType, measured_rps
from serving_gym.envs.machines.cluster import ReplicaKind, replica_spec
from serving_gym.envs.workload.seeding import stream
from serving_gym.envs.workload.type_mix import TABLE_1
from serving_gym.runners.reproduction.claims import Claim, at_least, near, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.measures import over
from serving_gym.runners.reproduction.oserve.choices import OServeChoices
from serving_gym.runners.reproduction.oserve.episodes import (
    Figures,
    System,
    Trace,
    best_layout,
    figures,
    reach,
    with_layout,
)
from serving_gym.runners.reproduction.oserve.study import (
    PAPER,
    capacities,
    deployment_spec,
    make_claim,
    pools,
    study_of,
)

MODEL, MACHINES = "llama-2-70b", 2
SYSTEM = System(MODEL, MACHINES)
MIXED_ON = (ReplicaKind(4), ReplicaKind(2, 2))  # what the optimum is made of
TABLE_1_SPEEDUP = {"S1": 1.14, "S2": 1.41, "S3": 1.89, "S4": 2.15, "S5": 2.66}
TABLE_2 = {  # mixes one after another, and the average speedup
    "T1": (("S1", "S2", "S1"), 1.23),
    "T2": (("S1", "S3", "S2"), 1.48),
    "T3": (("S2", "S4", "S3"), 1.82),
    "T4": (("S1", "S4", "S5"), 1.98),
}


def num_steps(config: ReproduceConfig) -> int:
    """Steps of the progress bar: OServe, and vLLM (static), on a mix or trace."""
    levels, traces = _rows(config)
    return 3 * len(levels) + 2 * len(traces)


def _rows(config: ReproduceConfig) -> tuple[list[str], list[str]]:
    return (["S1", "S5"], ["T4"]) if config.quick else (list(TABLE_1), list(TABLE_2))


def claims(config: ReproduceConfig, bar: Any) -> list[Claim]:
    """Both tables."""
    study = study_of(config)
    levels, names = _rows(config)
    spans = {level: Trace((level,), minutes=study.choices.minutes) for level in levels}
    fixed = best_layout(study, SYSTEM, list(spans.values()))
    rows = []
    for level in levels:
        stated, trace = TABLE_1_SPEEDUP[level], spans[level]
        static = with_layout(study, SYSTEM, trace, fixed)
        bar.update(1)
        rows += [
            _speedup(config, bar, "Table 1", level, trace, stated),
            _speedup(config, bar, "Table 1", level, trace, stated, static),
            make_claim(
                "6.3, Table 1",
                f"{level}: what the optimum serves over what the best uniform deployment serves",
                stated,
                reach(study.choices, SYSTEM, [level])[1],
                "x",
                shown("a bound on throughput, not a speedup of latency"),
            ),
        ]
    rows += [_additivity(study.choices, level, kind) for level in levels for kind in MIXED_ON]
    for name in names:
        mixes, stated = TABLE_2[name]
        trace = Trace(tuple(mixes), minutes=1.5 * study.choices.minutes)
        rows.append(_speedup(config, bar, "Table 2", name, trace, stated))
    return rows


def _speedup(
    config: ReproduceConfig,
    bar: Any,
    table: str,
    name: str,
    trace: Trace,
    stated: float,
    fixed: Figures | None = None,
) -> Claim:
    """P99 latency of vLLM (static) over OServe's; `fixed`: of one layout for all levels, else of this one's best."""
    bar.set_postfix_str(name, refresh=False)
    mine = figures(config, SYSTEM, trace, "oserve")
    static = figures(config, SYSTEM, trace, "static") if fixed is None else fixed
    bar.update(1)
    which = "with its own best layout" if fixed is None else "with one layout for all levels"
    return make_claim(
        f"6.3, {table}",
        f"{name}: P99 latency of vLLM (static) {which} over that of OServe",
        stated,
        over(static.p99_s, mine.p99_s),
        "x",
        at_least(stated),
        note=f"{SYSTEM} GPUs: {static.p99_s:.1f} and {mine.p99_s:.1f} s.",
    )


def _additivity(choices: OServeChoices, mix: str, kind: ReplicaKind) -> Claim:
    """What a replica of a kind serves of a mix, by running it, over what C3 makes of what it serves of each type."""
    shares = np.array(TABLE_1[mix]) / sum(TABLE_1[mix])
    table = capacities(MODEL, MACHINES, choices=choices)
    rng = stream(0, PAPER, "mixed", mix)
    labels, inputs, outputs = (
        rng.choice(len(shares), 4000, p=shares),
        np.zeros(4000, int),
        np.zeros(4000, int),
    )
    for j, pool in enumerate(pools(choices, MODEL)):
        drawn = rng.integers(len(pool.input_tokens), size=int((labels == j).sum()))
        inputs[labels == j], outputs[labels == j] = pool.input_tokens[drawn], pool.output_tokens[drawn]
    spec = deployment_spec(choices, MODEL, MACHINES)
    run = SaturationRuns(spec.scheduling)
    measured = (
        measured_rps(replica_spec(kind, spec.replica), WorkloadType(inputs, outputs), run) * table.span_s
    )
    return make_claim(
        "4.2, C3",
        f"{mix} on {kind}: requests served of the mix over what C3 adds up to",
        1.0,
        measured * float((shares / table.row(kind)).sum()),
        "ratio",
        near(1.0, 0.05),
        note=f"{MODEL}; the paper assumes 1.",
    )
