"""Episodes that several of the paper's figures are made from: a contender serves a trace with some model and GPUs.

Load: a share of what the best uniform deployment reaches of the dearest mix, as the paper keeps its cluster "neither
over- nor under-utilized"; the share is ours, and the same everywhere. A request's type is told from its true lengths,
as the text routes by types and predicts no lengths. OServe is there twice: as published, and with capacities that are
corrected for the company that types keep (`profiling=mixed`), and with an assignment that keeps the mix where not all
can be served (`objective=completion_time`). The layouts of the baselines are chosen by the corrected capacities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from serving_gym.baselines.oserve.exhaustive import optimal_plan
from serving_gym.baselines.oserve.uniform import vllm_reload
from serving_gym.baselines.oserve.vllm import VLLMStaticPolicy
from serving_gym.baselines.policy import Policy
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.deployment.strategies import PlanEvaluator
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec
from serving_gym.envs.machines.cluster import replica_spec
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.registration import make_env
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.type_mix import MIXES
from serving_gym.runners.configuration.schema import ReproduceConfig
from serving_gym.runners.reproduction.oserve.study import ENGINE, GPUS_PER_MACHINE, capacities, cluster_of
from serving_gym.runners.reproduction.parts import TRACE_MODEL_LEN, seeds_of
from serving_gym.runners.rollouts.rollout import Episode, run_episode

LOAD = 0.9
HOLD_S = 300.0
CORRECTED: dict[str, Any] = {"profiling": "mixed", "objective": "completion_time"}
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "static": ("vllm_static", {}),
    "reload": ("vllm_reload", {"switch": "ad_hoc"}),
    "oserve": ("oserve", {}),
    "corrected": ("oserve", CORRECTED),
    "naive switch": ("oserve", {**CORRECTED, "switch": "reload"}),
    "deployment alone": ("oserve", {**CORRECTED, "assignment": "spread"}),
    "dynamo": ("dynamo", {}),
}


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
    """

    mixes: tuple[str, ...]
    gradual: bool = False
    minutes: float = 15.0
    steady: bool = False
    types: int = 4


@dataclass(frozen=True)
class Figures:
    """What came of some episodes, means over seeds.

    Attributes:
        p99_s: 99th percentile of the latency of requests.
        rps: Requests that had ended when the last one arrived, over the time to then.
        ttft_p99_s: 99th percentile of the time to the first token.
        tpot_p99_s: 99th percentile of the time between tokens.
        switches: Switches an episode.
        deployments: Deployments of the first episode, one after another.
    """

    p99_s: float
    rps: float
    ttft_p99_s: float
    tpot_p99_s: float
    switches: float
    deployments: tuple[str, ...]


def reach(system: System, mixes: Sequence[str]) -> tuple[float, float]:
    """Requests a minute that the best uniform deployments serve of some mixes, the least, and the optimum over it."""
    uniform, ratio = [], []
    for mix in mixes:
        shares = np.array(MIXES[mix]) / sum(MIXES[mix])
        table = capacities(system.model, system.machines, "mixed")
        evaluator = PlanEvaluator(cluster_of(system.machines), table, shares * 1e6, "completion_time")
        uniform.append(vllm_reload(evaluator).max_requests)
        ratio.append(optimal_plan(evaluator).max_requests / uniform[-1])
    return min(uniform), max(ratio)


def workload_of(config: ReproduceConfig, system: System, trace: Trace) -> WorkloadSpec:
    """Requests of a trace at the share of what the system can serve."""
    rate_rps = LOAD * reach(system, trace.mixes)[0] / 60.0
    requests = config.requests or round(rate_rps * 60 * trace.minutes)
    noise = {"rate_noise": 0.0, "mix_noise": 0.0} if trace.steady else {}
    return WorkloadSpec(
        name="type_mix",
        num_requests=max(requests // 4, 400) if config.quick else requests,
        params={
            "mean_rps": rate_rps,
            "mixes": trace.mixes,
            "hold_s": HOLD_S,
            "gradual": trace.gradual,
            "random_start": False,
            **noise,
        },
    )


@lru_cache(maxsize=4)
def _env(config: ReproduceConfig, system: System, trace: Trace, disaggregation: bool) -> Any:
    return make_env(
        "deployment",
        workload=workload_of(config, system, trace),
        cluster=DeploymentSpec(
            model=system.model,
            num_machines=system.machines,
            disaggregation=disaggregation,
            max_model_len=TRACE_MODEL_LEN,
            engine=ENGINE,
            front_end="none",
        ),
        split=config.split,
        past_requests=10_000,
        num_types=trace.types,
        prediction=PredictionSpec(name="oracle"),
        num_candidates=2,
    )


@lru_cache(maxsize=256)
def figures(config: ReproduceConfig, system: System, trace: Trace, contender: str) -> Figures:
    """What a contender makes of a trace.

    Args:
        config: Seeds and split.
        system: Model and GPUs.
        trace: The trace.
        contender: Of `CONTENDERS`, or "llumnix": Llumnix, migration included, on the layout of vLLM (static).
    """
    if contender == "llumnix":
        env, policy = _fleet(config, system, trace), make_policy("llumnix")
    else:
        env = _env(config, system, trace, contender == "dynamo")
        name, params = CONTENDERS[contender]
        policy = make_policy(name, **params)
    return _measured(env, policy, seeds_of(config))


def _fleet(config: ReproduceConfig, system: System, trace: Trace) -> Any:
    """The layout of vLLM (static) as a fleet whose router decides for every request."""
    env = _env(config, system, trace, False)
    static = VLLMStaticPolicy()
    static.reset(env.unwrapped.policy_spec, 0)
    ((kind, count),) = static.kinds.items()
    replica = replica_spec(kind, env.unwrapped.config.cluster.replica)
    return make_env(
        "routing",
        workload=env.unwrapped.config.workload,
        cluster=FleetConfig(groups=(GroupSpec(replica, count),), front_end="none"),
        split=config.split,
    )


def _measured(env: Any, policy: Policy, seeds: range) -> Figures:
    rows, deployments = [], tuple[str, ...]()
    for seed in seeds:
        episode = run_episode(env, policy, seed)
        metrics = episode.metrics
        switches = sum(decision["reward_terms"].get("switch", 0) < 0 for decision in episode.decisions)
        rows.append(
            (metrics["e2e_p99_s"], _rps(episode), metrics["ttft_p99_s"], metrics["tpot_p99_s"], switches)
        )
        if not deployments:
            deployments = _deployed(episode)
    p99_s, rps, ttft_p99_s, tpot_p99_s, switches = np.mean(rows, axis=0).tolist()
    return Figures(p99_s, rps, ttft_p99_s, tpot_p99_s, switches, deployments)


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
