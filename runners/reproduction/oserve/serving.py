"""Section 6.3, Tables 1 and 2: OServe against vLLM (static) on Llama-2-70B with 16 GPUs, served in the environment.

Load: a share of what the best uniform deployment reaches of the mix, as the paper keeps its cluster "neither over- nor
under-utilized"; the share is ours, and the same everywhere. A request's type is told from its true lengths, as the text
routes by types and predicts no lengths. The speedup is that of the 99th percentile of latency; that of what the
deployments can serve at most (no queues, no switches) is shown beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from baselines.oserve.exhaustive import optimal_plan
from baselines.oserve.uniform import vllm_reload
from baselines.registry import make_policy
from envs.deployment.profiling import WorkloadType, measured_rps
from envs.deployment.strategies import Worth
from envs.machines.cluster import ReplicaKind, replica_spec
from envs.machines.spec import DeploymentSpec
from envs.registration import make_env
from envs.workload.predictions import PredictionSpec
from envs.workload.registry import WorkloadSpec
from envs.workload.seeding import stream
from envs.workload.type_mix import TABLE_1, TypeMix, length_pools
from runners.reproduction.claims import Claim, at_least, near, shown
from runners.reproduction.oserve.study import PAPER, capacities, cluster_of, make_claim
from runners.rollout import run_episode
from runners.schema import ReproduceConfig

MODEL, MACHINES = "llama-2-70b", 2
LOAD = 0.9
MIXED_ON = (ReplicaKind(4), ReplicaKind(2, 2))  # what the optimum is made of
TABLE_1_SPEEDUP = {"S1": 1.14, "S2": 1.41, "S3": 1.89, "S4": 2.15, "S5": 2.66}
TABLE_2 = {  # mixes one after another, and the average speedup
    "T1": (("S1", "S2", "S1"), 1.23),
    "T2": (("S1", "S3", "S2"), 1.48),
    "T3": (("S2", "S4", "S3"), 1.82),
    "T4": (("S1", "S4", "S5"), 1.98),
}
HOLD_S = 300.0
_MINUTES = 10
_BEYOND = (
    "On calibrated engines and these lengths the optimal deployment reaches a few per cent more than the best uniform "
    "one (see the claims on what can be served). That is less than what C3, by which shares of a span add up, is wrong "
    "by where types are mixed (see the claims on that), so that replicas may be given more than they can do."
)


def num_steps(config: ReproduceConfig) -> int:
    """Steps of the progress bar: episodes."""
    levels, traces = _rows(config)
    return 2 * (len(levels) + len(traces)) * _num_seeds(config)


def _rows(config: ReproduceConfig) -> tuple[list[str], list[str]]:
    return (["S1", "S5"], ["T4"]) if config.quick else (list(TABLE_1), list(TABLE_2))


def _num_seeds(config: ReproduceConfig) -> int:
    return 1 if config.quick else config.seeds


def claims(config: ReproduceConfig, bar: Any) -> list[Claim]:
    """Both tables."""
    levels, traces = _rows(config)
    rows = []
    for level in levels:
        stated = TABLE_1_SPEEDUP[level]
        rows += [
            _speedup(config, bar, "Table 1", level, (level,), stated),
            make_claim(
                "6.3, Table 1",
                f"{level}: what the optimum serves over what the best uniform deployment serves",
                stated,
                _reach([level])[1],
                "x",
                shown("a bound on throughput, not a speedup of latency"),
            ),
        ]
    rows += [_additivity(level, kind) for level in levels for kind in MIXED_ON]
    rows += [_speedup(config, bar, "Table 2", name, *TABLE_2[name]) for name in traces]
    return rows


def _speedup(
    config: ReproduceConfig, bar: Any, table: str, name: str, mixes: Sequence[str], stated: float
) -> Claim:
    rate_rps = LOAD * _reach(mixes)[0] / 60.0
    requests = config.requests or round(rate_rps * 60 * _MINUTES * (1 if len(mixes) == 1 else 1.5))
    env: Any = make_env(
        "deployment",
        workload=WorkloadSpec(
            name="type_mix",
            num_requests=requests // 4 if config.quick else requests,
            params={"mean_rps": rate_rps, "mixes": tuple(mixes), "hold_s": HOLD_S, "random_start": False},
        ),
        split=config.split,
        past_requests=10_000,
        prediction=PredictionSpec(name="oracle"),
    )
    p99 = {}
    for policy in ("vllm_static", "oserve"):
        found = []
        for seed in range(config.first_seed, config.first_seed + _num_seeds(config)):
            bar.set_postfix_str(f"{name}, {policy}", refresh=False)
            found.append(run_episode(env, make_policy(policy), seed).metrics["e2e_p99_s"])
            bar.update(1)
        p99[policy] = float(np.mean(found))
    return make_claim(
        f"6.3, {table}",
        f"{name}: P99 latency of vLLM (static) over OServe's",
        stated,
        p99["vllm_static"] / p99["oserve"],
        "x",
        at_least(stated),
        note=f"{MODEL}, 16 GPUs, {rate_rps:.1f} requests/s: {p99['vllm_static']:.1f} and {p99['oserve']:.1f} s.",
        beyond=_BEYOND,
    )


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
    spec = DeploymentSpec(model=MODEL, num_machines=MACHINES)
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


def _reach(mixes: Sequence[str]) -> tuple[float, float]:
    """Requests a minute that the best uniform deployments serve of some mixes, the least, and the optimum over it."""
    uniform, ratio = [], []
    for mix in mixes:
        shares = np.array(TABLE_1[mix]) / sum(TABLE_1[mix])
        worth = Worth(cluster_of(MACHINES), capacities(MODEL, MACHINES), shares * 1e6, "completion_time")
        uniform.append(vllm_reload(worth).reachable)
        ratio.append(optimal_plan(worth).reachable / uniform[-1])
    return min(uniform), max(ratio)
