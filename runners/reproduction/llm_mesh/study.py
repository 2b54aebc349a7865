"""What the sections share: the setting, the runs, and what is kept of each.

From the paper (section 8.1): 4 CPU and 4 GPU nodes, models of 3B, 7B and 13B, functions of the Azure Functions trace of
2019 mapped to models, its first 30 minutes, lengths of the Azure LLM conversation trace, the SLOs.

Ours, because the paper does not publish it: what `choices.py` lists, which functions were drawn (here anew for every
seed), and when in a minute they are invoked (uniformly). Iteration times on CPU nodes are a roofline; every claim that
rests on them says so. Where the trace is not on this machine, functions are drawn from the fit to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from serving_gym.baselines.policy import Policy
from serving_gym.envs.interface.metrics import FloatArray, RequestRecords
from serving_gym.envs.machines.shared_nodes import TESTBED, SharingSpec
from serving_gym.envs.sharing.env import SharingEnv
from serving_gym.envs.simulator.sharing.build import ManagerSpec
from serving_gym.envs.workload.functions import minute_counts
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.configuration.make import make_env
from serving_gym.runners.configuration.policies import load_policy, policy_config
from serving_gym.runners.reproduction.choices import make_choices
from serving_gym.runners.reproduction.claims import claim_of
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.llm_mesh.choices import FIGURE_8, LITERAL, MeshChoices
from serving_gym.runners.reproduction.llm_mesh.timeline import Timeline, Watched
from serving_gym.runners.reproduction.parts import PaperStudy, num_seeds
from serving_gym.runners.rollouts.rollout import run_episode

PAPER = "llm_mesh"
make_claim = partial(claim_of, PAPER)
MESH, SLLM, SLLM_CPU = "llm_mesh", "sllm", "sllm_cpu"
SYSTEMS = (MESH, SLLM_CPU, SLLM)
SIZES = {"3B": "llama-3.2-3b", "7B": "llama-2-7b", "13B": "llama-2-13b"}
COUNTS = (32, 64, 128)
MINUTES = 30
ENGINE = "vllm-0.6"  # the release closest to the paper's 0.5.2
QUICK_MINUTES = 2
ROOFLINE = "CPU iteration times are a roofline, not measured."
OTHER_FUNCTIONS = "which functions were drawn is not published"


@dataclass(frozen=True)
class Cell:
    """What is run: a system and the models it serves.

    Attributes:
        policy: Name of the system.
        num_models: Models.
        sizes: Their sizes, as the paper calls them.
        ratio: Models of each size, relative.
        squeeze: Of the trace's time; None: the load of the choices.
        popularity: As in `envs.workload.functions`; None: functions are drawn.
        gpus_only: Whether there are no CPU nodes.
    """

    policy: str
    num_models: int
    sizes: tuple[str, ...]
    ratio: tuple[int, ...] = (1,)
    squeeze: float | None = None
    popularity: float | None = None
    gpus_only: bool = False


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of an episode.

    Attributes:
        ttft_s: (requests,), infinite where no first token came.
        good: Requests that met both SLOs.
        finished: Requests that were served to the end.
        last_in_time: Requests with the first token in time whose last token had a headroom (equation 1) of 0 or more.
        nodes: Nodes of each kind in use, mean over the episode.
        tokens_per_s: Output tokens a second of each kind of node, while in use.
        reward: Return of the episode.
        largest_share: Share of the requests that the function with most of them has.
        timeline: What the nodes held over time, as the policy saw it.
        records: What happened to every request.
    """

    ttft_s: FloatArray
    good: int
    finished: int
    last_in_time: int
    nodes: dict[str, float]
    tokens_per_s: dict[str, float]
    reward: float
    largest_share: float
    timeline: Timeline
    records: RequestRecords

    @property
    def arrived(self) -> int:
        """Requests."""
        return len(self.ttft_s)


@dataclass
class Study(PaperStudy):
    """Runs systems, each cell once."""

    _choices: MeshChoices = field(init=False)
    _known: dict[Cell, tuple[Outcome, ...]] = field(default_factory=dict)
    _policies: dict[str, Policy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._choices = make_choices(MeshChoices, self.config.choices)

    @property
    def choices(self) -> MeshChoices:
        """What the evaluation takes where the paper is silent."""
        return self._choices

    @cached_property
    def source(self) -> str:
        """Where functions come from: the trace, or the fit to it where the trace is not on this machine."""
        try:
            minute_counts()
        except ValueError:
            return "functions_fitted"
        return "functions_2019"

    @property
    def note(self) -> str:
        """What every figure of a run rests on."""
        fitted = "" if self.source == "functions_2019" else " Functions are drawn from the fit to the trace."
        return f"{ROOFLINE} The trace is squeezed by {self.choices.load:g}.{fitted}"

    def outcomes(self, cell: Cell) -> tuple[Outcome, ...]:
        """What a system achieves, one a seed; the requests are the same for all systems."""
        if cell not in self._known:
            env, policy = self._env(cell), self._policy(cell.policy)
            found = []
            for seed in self.seeds:
                self.bar.set_postfix_str(
                    f"{cell.policy}, {cell.num_models} x {':'.join(cell.sizes)}", refresh=False
                )
                found.append(_outcome(env, policy, seed))
                self.bar.update(1)
            self._known[cell] = tuple(found)
        return self._known[cell]

    def total(self, cell: Cell, name: str) -> float:
        """A count, over all seeds."""
        return float(sum(getattr(outcome, name) for outcome in self.outcomes(cell)))

    def nodes(self, cell: Cell, kind: str) -> float:
        """Nodes of a kind in use, mean over seeds."""
        return float(np.mean([outcome.nodes[kind] for outcome in self.outcomes(cell)]))

    def tokens_per_s(self, cell: Cell, kind: str) -> float:
        """Output tokens a second of a node of a kind in use, mean over the seeds in which it is used."""
        found = [outcome.tokens_per_s[kind] for outcome in self.outcomes(cell) if outcome.nodes[kind] > 0]
        return float(np.mean(found)) if found else float("nan")

    def attainment(self, cell: Cell, measure: str = "good") -> float:
        """Share of requests that met both SLOs, by the field of `Outcome` that counts them."""
        return self.total(cell, measure) / self.total(cell, "arrived")

    def ttft_s(self, cell: Cell) -> FloatArray:
        """(requests,) of all seeds."""
        return np.concatenate([outcome.ttft_s for outcome in self.outcomes(cell)])

    def _env(self, cell: Cell) -> SharingEnv:
        choices = self.choices
        squeeze = choices.load if cell.squeeze is None else cell.squeeze
        minutes = round(squeeze * (QUICK_MINUTES if self.config.quick else MINUTES))
        params = {
            "num_models": cell.num_models,
            "sizes": tuple(SIZES[size] for size in cell.sizes),
            "ratio": cell.ratio,
            "minutes": minutes if self.source == "functions_2019" else min(minutes, MINUTES),
            "largest_share": choices.largest_share,
            "popularity": cell.popularity,
        }
        workload = WorkloadSpec(
            name=self.source, params=params, num_requests=self.config.requests, rate_scale=squeeze
        )
        env: Any = make_env(
            "sharing",
            workload=workload,
            split=self.config.split,
            cluster=self._cluster(cell),
            manager=ManagerSpec(patience_s=choices.patience_s),
        )
        return env.unwrapped

    def _cluster(self, cell: Cell) -> SharingSpec:
        choices = self.choices
        nodes = tuple(
            replace(
                node,
                time_factor=choices.iterations,
                kv_resize=choices.cpu_resize if node.is_cpu else FIGURE_8,
            )
            for node in TESTBED
            if not (cell.gpus_only and node.is_cpu)
        )
        return SharingSpec(nodes=nodes, engine=ENGINE, front_end="none", profile_error=choices.profile_error)

    def _policy(self, name: str) -> Policy:
        if name not in self._policies:
            config = policy_config(name, "sharing")
            if config["name"] == MESH:
                own: dict[str, Any] = {"watermark": self.choices.watermark}
                if self.choices.reading == LITERAL:
                    own |= {"reclaim": "none", "late": "drop"}
                config = {**config, "params": {**own, **config.get("params", {})}}
                if name == MESH:
                    config["params"] |= own
            self._policies[name] = load_policy(config)
        return self._policies[name]


def num_steps(config: ReproduceConfig, cells: Iterable[Cell]) -> int:
    """Episodes of all cells."""
    return num_seeds(config) * len(set(cells))


def grid(config: ReproduceConfig) -> list[tuple[int, str]]:
    """Numbers of models and sizes of figure 12; quick keeps those that the text gives figures of."""
    whole = [(count, size) for count in COUNTS for size in SIZES]
    return [(32, "3B"), (64, "7B"), (128, "7B"), (128, "13B")] if config.quick else whole


def cells_of(
    systems: Sequence[str], rows: Iterable[tuple[int, str]], squeeze: float | None = None
) -> list[Cell]:
    """Every system on every row of figure 12."""
    return [Cell(system, count, (size,), squeeze=squeeze) for count, size in rows for system in systems]


def _outcome(env: SharingEnv, policy: Policy, seed: int) -> Outcome:
    watched = Watched(policy)
    episode = run_episode(env, watched, seed)
    records, setting = episode.records, env.core.setting
    slo = env.core.slos[0]
    ttft_slo_s = slo.ttft_limits_s(records.input_tokens)
    in_time = records.ttft_s <= ttft_slo_s
    last_due_s = records.arrival_s + ttft_slo_s + slo.tpot_s * (records.output_tokens - 1)
    used_s = env.core.simulator.used_ps() / 1e12
    node = np.where(records.engine >= 0, records.engine // setting.slots_per_node, 0)
    kinds = setting.node_kinds
    nodes, tokens_per_s = {}, {}
    for number, kind in enumerate(setting.kinds):
        used = float(used_s[kinds == number].sum())
        own = (records.engine >= 0) & (kinds[node] == number)
        nodes[kind] = used / episode.duration_s
        tokens_per_s[kind] = float(records.generated_tokens[own].sum()) / used if used else float("nan")
    good = in_time & (np.nan_to_num(records.tpot_s, nan=0.0) <= slo.tpot_s) & np.isfinite(records.finish_s)
    return Outcome(
        ttft_s=records.ttft_s,
        good=int(good.sum()),
        finished=int(np.isfinite(records.finish_s).sum()),
        last_in_time=int((in_time & (records.finish_s <= last_due_s)).sum()),
        nodes=nodes,
        tokens_per_s=tokens_per_s,
        reward=float(episode.metrics["return"]),
        largest_share=float(np.bincount(env.core.simulator.workload.model_id).max() / len(records.arrival_s)),
        timeline=watched.timeline(episode.duration_s),
        records=records,
    )
