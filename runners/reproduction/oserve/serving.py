"""Section 6.3, Tables 1 and 2: OServe against vLLM (static) on Llama-2-70B with 16 GPUs, served in the environment.

What is run is in `episodes.py`. The speedup is that of the 99th percentile of latency; that of what the deployments can
serve at most (no queues, no switches) is shown beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from serving_gym.envs.deployment.profiling import WorkloadType, measured_rps
from serving_gym.envs.machines.cluster import ReplicaKind, replica_spec
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.workload.seeding import stream
from serving_gym.envs.workload.type_mix import TABLE_1, TypeMix, length_pools
from serving_gym.runners.configuration.schema import ReproduceConfig
from serving_gym.runners.reproduction.claims import Claim, at_least, near, shown
from serving_gym.runners.reproduction.measures import over
from serving_gym.runners.reproduction.oserve.episodes import System, Trace, figures, reach
from serving_gym.runners.reproduction.oserve.study import ENGINE, PAPER, capacities, make_claim
from serving_gym.runners.reproduction.oserve.systems import OURS
from serving_gym.runners.reproduction.parts import TRACE_MODEL_LEN

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
MINUTES = 10.0
_BEYOND = (
    "On calibrated engines and these lengths the optimal deployment reaches a few per cent more than the best uniform "
    "one (see the claims on what can be served). That is less than what C3, by which shares of a span add up, is wrong "
    "by where types are mixed (see the claims on that), so that OServe as published gives some replicas more than they "
    "can do; with corrected capacities it does not."
)


def num_steps(config: ReproduceConfig) -> int:
    """Steps of the progress bar: a contender on a mix or trace."""
    levels, traces = _rows(config)
    return (1 + len(OURS)) * (len(levels) + len(traces))


def _rows(config: ReproduceConfig) -> tuple[list[str], list[str]]:
    return (["S1", "S5"], ["T4"]) if config.quick else (list(TABLE_1), list(TABLE_2))


def claims(config: ReproduceConfig, bar: Any) -> list[Claim]:
    """Both tables."""
    levels, traces = _rows(config)
    rows = []
    for level in levels:
        stated = TABLE_1_SPEEDUP[level]
        rows += [
            *_speedup(config, bar, "Table 1", level, (level,), stated),
            make_claim(
                "6.3, Table 1",
                f"{level}: what the optimum serves over what the best uniform deployment serves",
                stated,
                reach(SYSTEM, [level])[1],
                "x",
                shown("a bound on throughput, not a speedup of latency"),
            ),
        ]
    rows += [_additivity(level, kind) for level in levels for kind in MIXED_ON]
    for name in traces:
        rows += _speedup(config, bar, "Table 2", name, *TABLE_2[name])
    return rows


def _speedup(
    config: ReproduceConfig, bar: Any, table: str, name: str, mixes: Sequence[str], stated: float
) -> list[Claim]:
    trace = Trace(tuple(mixes), minutes=MINUTES if len(mixes) == 1 else 1.5 * MINUTES)
    found = {}
    for contender in ("static", *OURS):
        bar.set_postfix_str(f"{name}, {contender}", refresh=False)
        found[contender] = figures(config, SYSTEM, trace, contender).p99_s
        bar.update(1)
    return [
        make_claim(
            f"6.3, {table}",
            f"{name}: P99 latency of vLLM (static) over that of {label}",
            stated,
            over(found["static"], found[contender]),
            "x",
            at_least(stated),
            note=f"{SYSTEM} GPUs: {found['static']:.1f} and {found[contender]:.1f} s.",
            beyond=_BEYOND,
        )
        for contender, label in OURS.items()
    ]


def _additivity(mix: str, kind: ReplicaKind) -> Claim:
    """What a replica of a kind serves of a mix, by running it, over what C3 makes of what it serves of each type."""
    shares = np.array(TABLE_1[mix]) / sum(TABLE_1[mix])
    table = capacities(MODEL, MACHINES)
    rng = stream(0, PAPER, "mixed", mix)
    labels, inputs, outputs = (
        rng.choice(len(shares), 4000, p=shares),
        np.zeros(4000, int),
        np.zeros(4000, int),
    )
    for j, (prompts, answers) in enumerate(length_pools(TypeMix.code_share)):
        drawn = rng.integers(len(prompts), size=int((labels == j).sum()))
        inputs[labels == j], outputs[labels == j] = prompts[drawn], answers[drawn]
    spec = DeploymentSpec(model=MODEL, num_machines=MACHINES, max_model_len=TRACE_MODEL_LEN, engine=ENGINE)
    measured = measured_rps(replica_spec(kind, spec.replica), WorkloadType(inputs, outputs)) * table.span_s
    return make_claim(
        "4.2, C3",
        f"{mix} on {kind}: requests served of the mix over what C3 adds up to",
        1.0,
        measured * float((shares / table.row(kind)).sum()),
        "ratio",
        near(1.0, 0.05),
        note=f"{MODEL}; the paper assumes 1.",
        beyond="What a type costs depends on what it is mixed with, in a pipeline more than without one.",
    )
