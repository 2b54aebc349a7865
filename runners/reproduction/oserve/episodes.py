"""Episodes that several of the paper's figures are made from: a contender serves a trace with some model and GPUs.

Load: a share of what the best uniform deployment reaches of the dearest mix. A request's type is told from its true
lengths, as the text routes by types and predicts no lengths. vLLM (static) has the layout of least measured P99 latency
on the trace it is run on. What the text leaves open is in `choices.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from serving_gym.baselines.oserve.exhaustive import optimal_plan
from serving_gym.baselines.oserve.uniform import uniform_layouts, vllm_reload
from serving_gym.baselines.policy import Policy
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.deployment.profiling import PRECISION
from serving_gym.envs.deployment.strategies import PlanEvaluator
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec
from serving_gym.envs.machines.cluster import ReplicaKind, replica_spec
from serving_gym.envs.registration import make_env
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.type_mix import MIXES
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.measures import percentile
from serving_gym.runners.reproduction.oserve.choices import CAPACITY, CORRECTED, LITERAL, OServeChoices
from serving_gym.runners.reproduction.oserve.study import (
    GPUS_PER_MACHINE,
    Study,
    capacities,
    cluster_of,
    deployment_spec,
    longest_tokens,
    study_of,
)
from serving_gym.runners.rollouts.rollout import Episode, run_episode

HOLD_S = 300.0
NUM_SPANS = 6  # section 6.1: P1 to P6
READINGS: dict[str, dict[str, Any]] = {
    CORRECTED: {"profiling": "mixed", "objective": "completion_time"},
    LITERAL: {"profiling": "measured", "objective": "throughput"},
}
CONTENDERS: dict[
    str, tuple[str, dict[str, Any]]
] = {  # those of OServe have the reading of the study beside these
    "reload": ("vllm_reload", {"switch": "ad_hoc"}),
    "oserve": ("oserve", {}),
    "naive switch": ("oserve", {"switch": "reload"}),
    "deployment alone": ("oserve", {"assignment": "spread"}),
    "moving average": ("oserve", {"forecaster": "moving_average"}),
    "total LSTM": ("oserve", {"forecaster": "total_lstm"}),
    "last span": ("oserve", {"forecaster": "environment"}),
    "dynamo": ("dynamo", {}),
}
STATIC, LLUMNIX = "static", "llumnix"


@dataclass(frozen=True)
class System:
    """A model on machines of eight GPUs."""

    model: str
    machines: int

    @property
    def gpus(self) -> int:
        """GPUs."""
        return self.machines * GPUS_PER_MACHINE

    def __str__(self) -> str:
        return f"{self.model} on {self.gpus}"


@dataclass(frozen=True)
class Trace:
    """Mixes one after another.

    Attributes:
        mixes: Names of mixes.
        gradual: Whether they drift from each to the next.
        minutes: Length.
        steady: Whether rate and shares have no noise.
        types: Workload types that are told apart.
        load: Rate, share of what the best uniform deployment serves; None: as the study chooses.
    """

    mixes: tuple[str, ...]
    gradual: bool = False
    minutes: float = 15.0
    steady: bool = False
    types: int = 4
    load: float | None = None


@dataclass(frozen=True)
class Figures:
    """What came of some episodes, means over seeds.

    Attributes:
        p90_s: 90th percentile of the latency of requests.
        p95_s: 95th.
        p99_s: 99th.
        rps: Requests that had ended when the last one arrived, over the time to then.
        ttft_p99_s: 99th percentile of the time to the first token.
        tpot_p99_s: 99th percentile of the time between tokens.
        switches: Switches an episode.
        span_p99_s: 99th percentile of the latency of requests that arrived in each sixth of the trace.
        deployments: Deployments of the first episode, one after another.
    """

    p90_s: float
    p95_s: float
    p99_s: float
    rps: float
    ttft_p99_s: float
    tpot_p99_s: float
    switches: float
    span_p99_s: tuple[float, ...]
    deployments: tuple[str, ...]


def reach(choices: OServeChoices, system: System, mixes: Sequence[str]) -> tuple[float, float]:
    """Requests a minute that the best uniform deployments serve of some mixes, the least, and the optimum over it."""
    uniform, ratio = [], []
    for mix in mixes:
        evaluator = _evaluator(choices, system, mix)
        uniform.append(vllm_reload(evaluator).max_requests)
        ratio.append(optimal_plan(evaluator).max_requests / uniform[-1])
    return min(uniform), max(ratio)


def _evaluator(choices: OServeChoices, system: System, mix: str) -> PlanEvaluator:
    """Values deployments by when they are done with a mix."""
    shares = np.array(MIXES[mix]) / sum(MIXES[mix])
    table = capacities(system.model, system.machines, "mixed", choices)
    return PlanEvaluator(cluster_of(system.machines), table, shares * 1e6, "completion_time")


def candidates(study: Study, system: System, trace: Trace) -> list[tuple[int, int]]:
    """TP and PP of the uniform layouts that serve most of the dearest mix, the best first."""
    evaluators = [_evaluator(study.choices, system, mix) for mix in dict.fromkeys(trace.mixes)]
    layouts = uniform_layouts(evaluators[0].cluster, evaluators[0].table.kinds)
    room = [min(evaluator.plan(kinds).max_requests for evaluator in evaluators) for kinds in layouts]
    best = sorted(range(len(layouts)), key=lambda row: -room[row])[: study.choices.static_candidates]
    return [(kind.tp, kind.pp) for row in best for kind in layouts[row]]


def best_layout(study: Study, system: System, traces: Sequence[Trace]) -> tuple[int, int]:
    """The uniform layout of vLLM (static): of least P99 latency, geometric mean over traces, or of most capacity."""
    every = list(dict.fromkeys(layout for trace in traces for layout in candidates(study, system, trace)))
    if study.choices.static_layout == CAPACITY:
        return every[0]
    return min(
        every,
        key=lambda layout: float(
            np.mean([np.log(with_layout(study, system, trace, layout).p99_s) for trace in traces])
        ),
    )


def with_layout(study: Study, system: System, trace: Trace, layout: tuple[int, int]) -> Figures:
    """What a uniform layout makes of a trace."""
    return _figures(study, system, trace, "vllm_static", (("layout", layout),))


def workload_of(study: Study, system: System, trace: Trace) -> WorkloadSpec:
    """Requests of a trace at the share of what the system can serve."""
    choices = study.choices
    load = choices.load if trace.load is None else trace.load
    rate_rps = load * reach(choices, system, trace.mixes)[0] / 60.0
    requests = study.requests or round(rate_rps * 60 * trace.minutes)
    noise = {"rate_noise": 0.0, "mix_noise": 0.0} if trace.steady else {}
    return WorkloadSpec(
        name="type_mix",
        num_requests=max(requests // 4, 400) if study.quick else requests,
        params={
            "mean_rps": rate_rps,
            "mixes": trace.mixes,
            "hold_s": HOLD_S,
            "gradual": trace.gradual,
            "random_start": False,
            "long_answer_factor": choices.long_answers,
            "longest_tokens": longest_tokens(choices, system.model),
            **noise,
        },
    )


@lru_cache(maxsize=4)
def _env(study: Study, system: System, trace: Trace, disaggregation: bool) -> Any:
    return make_env(
        "deployment",
        workload=workload_of(study, system, trace),
        cluster=deployment_spec(study.choices, system.model, system.machines, disaggregation),
        split=study.split,
        profiling_precision=PRECISION,
        past_requests=10_000,
        num_types=trace.types,
        prediction=PredictionSpec(name="oracle"),
        num_candidates=2,
    )


def figures(config: ReproduceConfig, system: System, trace: Trace, contender: str) -> Figures:
    """What a contender makes of a trace.

    Args:
        config: Seeds, split and choices.
        system: Model and GPUs.
        trace: The trace.
        contender: Of `CONTENDERS`, "static", or "llumnix": Llumnix, migration included, on the layout of vLLM (static).
    """
    study = study_of(config)
    if contender == STATIC:
        return with_layout(study, system, trace, best_layout(study, system, [trace]))
    if contender == LLUMNIX:
        return _llumnix(study, system, trace, best_layout(study, system, [trace]))
    name, params = CONTENDERS[contender]
    if name == "oserve":
        reading = READINGS[study.choices.reading]
        params = {**reading, "assignment": study.choices.assignment, **params}
    if name in ("oserve", "vllm_reload"):
        params = {**params, "min_gain": study.choices.min_gain}
    if name == "dynamo":
        params = {**params, "period_s": study.choices.dynamo_period_s}
    return _figures(study, system, trace, name, tuple(sorted(params.items())))


@lru_cache(maxsize=512)
def _figures(
    study: Study, system: System, trace: Trace, name: str, params: tuple[tuple[str, Any], ...]
) -> Figures:
    env = _env(study, system, trace, name == "dynamo")
    return _measured(env, make_policy(name, **dict(params)), study.seeds)


@lru_cache(maxsize=64)
def _llumnix(study: Study, system: System, trace: Trace, layout: tuple[int, int]) -> Figures:
    """A uniform layout as a fleet whose router decides for every request."""
    spec = deployment_spec(study.choices, system.model, system.machines)
    kind = ReplicaKind(*layout)
    ((_, count),) = uniform_layouts(spec.cluster, [kind])[0].items()
    env = make_env(
        "routing",
        workload=workload_of(study, system, trace),
        cluster=FleetConfig(groups=(GroupSpec(replica_spec(kind, spec.replica), count),), front_end="none"),
        split=study.split,
    )
    return _measured(env, make_policy("llumnix"), study.seeds)


def _measured(env: Any, policy: Policy, seeds: range) -> Figures:
    rows, deployments = [], tuple[str, ...]()
    for seed in seeds:
        episode = run_episode(env, policy, seed)
        metrics, records = episode.metrics, episode.records
        switches = sum(decision["reward_terms"].get("switch", 0) < 0 for decision in episode.decisions)
        span = np.minimum(NUM_SPANS * records.arrival_s / records.arrival_s.max(), NUM_SPANS - 1).astype(int)
        rows.append(
            (
                percentile(records.e2e_s, 90),
                percentile(records.e2e_s, 95),
                metrics["e2e_p99_s"],
                _rps(episode),
                metrics["ttft_p99_s"],
                metrics["tpot_p99_s"],
                switches,
                *(percentile(records.e2e_s, 99, span == one) for one in range(NUM_SPANS)),
            )
        )
        if not deployments:
            deployments = _deployed(episode)
    p90_s, p95_s, p99_s, rps, ttft_p99_s, tpot_p99_s, mean_switches, *spans = np.mean(rows, axis=0).tolist()
    return Figures(p90_s, p95_s, p99_s, rps, ttft_p99_s, tpot_p99_s, mean_switches, tuple(spans), deployments)


def _rps(episode: Episode) -> float:
    """Requests that had ended when the last one arrived, over the time to then."""
    records = episode.records
    last_s = float(records.arrival_s.max())
    return float((records.finish_s <= last_s).sum()) / last_s


def _deployed(episode: Episode) -> tuple[str, ...]:
    """Deployments that were named, one after another."""
    found: list[str] = []
    for decision in episode.decisions:
        action = decision["action"]
        if isinstance(action, dict) and action.get("command") == "Deploy":
            shown = _shown(action["deployment"])
            if not found or found[-1] != shown:
                found.append(shown)
    return tuple(found)


def _shown(deployment: dict[str, Any]) -> str:
    """Kinds of a deployment as it stands in the decisions log."""
    kinds = [(replica["kind"]["tp"], replica["kind"]["pp"]) for replica in deployment["replicas"]]
    counted = {kind: kinds.count(kind) for kind in sorted(set(kinds), reverse=True)}
    return ", ".join(
        f"(TP={tp}{f', PP={pp}' if pp > 1 else ''}){f'x{count}' if count > 1 else ''}"
        for (tp, pp), count in counted.items()
    )
