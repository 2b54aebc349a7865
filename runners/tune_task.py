"""Tunes every heuristic of a task of the benchmark with one budget.

    python -m runners.tune_task tasks=[routing_uniform,routing_mixed] save=true
    python -m runners.tune_task tasks=[autoscaling] policies=[hpa_rate,kpa] evaluations=40 seeds=2

Each policy's declared constants are searched with CMA-ES from its own file, or from the tuned file that there is where
that is better, with as many candidates and on the same validation episodes of all workloads of the tasks as every other
policy. The score is the mean, over workloads and episodes, of the return in shares of what the first policy of the task
without constants has there. Writes NAME.json for each policy, and with `save=true` `configs/policy/NAME_tuned.yaml`, or
that of `--config-dir DIR`. A run that is begun again with the same `out` goes on with the policies that are left.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from serving_gym.agents.learners.returns import shares
from serving_gym.baselines.policy import BatchPolicy, Policy
from serving_gym.baselines.registry import policy_tunables
from serving_gym.calibration.fields import check_within
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.registration import Environment
from serving_gym.envs.workload.registry import SPLITS
from serving_gym.runners.benchmark.benchmark import known_tasks, load_task, stratum_configs
from serving_gym.runners.command_line.cli import command
from serving_gym.runners.configuration.folders import config_names
from serving_gym.runners.configuration.policies import is_checkpoint, load_policy, policy_config
from serving_gym.runners.configuration.schema import check_least
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.progress import progress_bar, say
from serving_gym.runners.reporting.tables import print_results_in, print_table
from serving_gym.runners.rollouts.processes import available_cores, call_in_processes
from serving_gym.runners.rollouts.rollout import episode_returns, run_episode
from serving_gym.runners.tuning.cma_es import search
from serving_gym.runners.tuning.tuned_file import TUNED, command_line, save_tuned, tuned_text


@dataclass(frozen=True)
class TuneTaskConfig:
    """Configuration of `runners.tune_task`.

    Attributes:
        out: run directory.
        tasks: files of `configs/benchmark/task`; of several the workloads together.
        policies: heuristics to tune; None: every one of the tasks that declares constants.
        split: split of the workloads that episodes are drawn from; never the one of the benchmark.
        seeds: episodes of each candidate on each workload.
        first_seed: seed of the first; the others follow it.
        evaluations: candidates of each policy.
        sigma: initial step size, as a share of each constant's range.
        search_seed: seed of the searches.
        processes: policies tuned side by side; None: one a core.
        save: whether to write `configs/policy/NAME_SUFFIX.yaml` as well.
        suffix: end of the names of these files.
    """

    out: str
    tasks: tuple[str, ...]
    policies: tuple[str, ...] | None = None
    split: str = "validation"
    seeds: int = 2
    first_seed: int = 0
    evaluations: int = 40
    sigma: float = 0.25
    search_seed: int = 0
    processes: int | None = None
    save: bool = False
    suffix: str = TUNED.removeprefix("_")

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError("tasks must name a task of the benchmark")
        for name in self.tasks:
            check_choice("task", name, known_tasks())
        check_choice("split", self.split, [split for split in SPLITS if split in ("train", "validation")])
        for name, least in (("seeds", 1), ("first_seed", 0), ("evaluations", 1)):
            check_least(name, getattr(self, name), least)
        if self.processes is not None:
            check_least("processes", self.processes, 1)
        check_within(self, "(0, 1]", "sigma")
        if not self.suffix.isidentifier() or not self.suffix.endswith(TUNED.removeprefix("_")):
            raise ValueError(f"suffix must be a word that ends in 'tuned', got {self.suffix!r}")


@dataclass
class Episodes:
    """Validation episodes of a task, and what the reference has on them.

    Attributes:
        settings: Environment of each workload.
        seeds: Of the episodes on each.
        reference: Policy whose returns others are shares of.
    """

    settings: Sequence[Environment]
    seeds: Sequence[int]
    reference: str

    def __post_init__(self) -> None:
        self._envs: list[Any] = [setting.make() for setting in self.settings]
        self._usual = self._returns(load_policy(self.reference))

    def score(self, policy: Policy) -> float:
        """Mean return, in shares of the reference's."""
        return float(shares(self._returns(policy), self._usual, None).mean())

    @cached_property
    def _vectors(self) -> list[Any]:
        """Vector environments of all episodes on a workload."""
        return [setting.make_vector(len(self.seeds)) for setting in self.settings]

    def _returns(self, policy: Policy) -> Any:
        if isinstance(policy, BatchPolicy):
            pairs = zip(self._envs, self._vectors, strict=True)
            each = [episode_returns(many, policy, one.policy_spec, self.seeds) for one, many in pairs]
            return np.concatenate(each)
        return np.array(
            [run_episode(env, policy, seed).metrics["return"] for env in self._envs for seed in self.seeds]
        )


@dataclass(frozen=True)
class Search:
    """The search of one policy, which a worker process runs.

    Attributes:
        policy: Name of its file.
        settings: Environment of each workload.
        reference: Policy whose returns others are shares of.
        config: Budget.
    """

    policy: str
    settings: tuple[Environment, ...]
    reference: str
    config: TuneTaskConfig

    def __call__(self) -> dict[str, Any]:
        """Constants and scores, before and tuned, and the number of candidates."""
        config, kept = self.config, policy_config(self.policy)
        seeds = range(config.first_seed, config.first_seed + config.seeds)
        episodes = Episodes(self.settings, seeds, self.reference)
        params, tunables = dict(kept.get("params", {})), policy_tunables(kept["name"])
        usual: Any = load_policy(kept)
        start = {
            name: params.get(name, getattr(getattr(usual, "config", None), name, None)) for name in tunables
        }
        missing = [
            name for name, value in start.items() if value is None and None not in tunables[name].values
        ]
        if missing:
            raise ValueError(f"policy {self.policy!r} must give {missing[0]}, which is tuned")
        rows: list[tuple[float, dict[str, Any]]] = []

        def score(candidate: Mapping[str, Any]) -> float:
            made = load_policy({**kept, "params": {**params, **candidate}})
            rows.append((episodes.score(made), dict(candidate)))
            return rows[-1][0]

        score(start)  # a candidate too: tuned constants are never worse on these episodes
        earlier = self._tuned_before(kept["name"], start)
        if earlier is not None and score(earlier) > rows[0][0]:
            start = earlier
        search(score, tunables, start, config.evaluations, config.sigma, config.search_seed)
        best, constants = max(rows, key=lambda row: row[0])
        return {
            "policy": self.policy,
            "name": kept["name"],
            "params": {**params, **constants},
            "before": rows[0][0],
            "tuned": best,
            "candidates": len(rows),
        }

    def _tuned_before(self, name: str, start: Mapping[str, Any]) -> dict[str, Any] | None:
        """Constants of the policy's tuned file; None: it has none, or is of another policy."""
        twin = f"{self.policy}_{self.config.suffix}"
        kept: Any = policy_config(twin) if twin in config_names("policy") else None
        if kept is None or kept["name"] != name:
            return None
        params = kept.get("params", {})
        return {key: params.get(key, value) for key, value in start.items()}


def _run(one: Search) -> dict[str, Any]:
    return one()


@dataclass(frozen=True)
class Plan:
    """What is tuned, and on what.

    Attributes:
        settings: Environment of each workload.
        workloads: Their names, TASK/WORKLOAD.
        reference: Policy whose returns others are shares of.
        policies: Names of the policies to tune.
    """

    settings: tuple[Environment, ...]
    workloads: tuple[str, ...]
    reference: str
    policies: tuple[str, ...]

    def budget(self, config: TuneTaskConfig) -> dict[str, Any]:
        """What the results of all policies must have in common."""
        names = ("split", "seeds", "first_seed", "evaluations", "sigma", "search_seed")
        common = {name: getattr(config, name) for name in names}
        return {"workloads": list(self.workloads), "reference": self.reference, **common}


@command("tune_task", TuneTaskConfig)
def main(config: TuneTaskConfig, out: Path) -> None:
    """Runs the command."""
    plan = _plan(config)
    budget, kept = plan.budget(config), _kept(out, plan)
    for name, found in kept.items():
        if found["budget"] != budget:
            raise ValueError(
                f"out={str(out)!r} has results of {name} with another budget; choose another folder"
            )
    left = [name for name in plan.policies if name not in kept]
    searches = [(Search(name, plan.settings, plan.reference, config),) for name in left]
    processes = min(config.processes or available_cores(), max(len(left), 1))
    with progress_bar(len(left), f"tune {', '.join(config.tasks)}", "policy") as bar:
        for _, found in call_in_processes(_run, searches, processes):
            write_json(out / f"{found['policy']}.json", {**found, "budget": budget})
            if config.save:
                _save(config, found, plan)
            say(bar, f"{found['policy']}: {found['before']:.4g} -> {found['tuned']:.4g}")
            bar.update()
    print_table(
        f"{', '.join(config.tasks)}, {config.split}: mean return in shares of {plan.reference}'s",
        ("policy", "before", "tuned"),
        [(found["policy"], found["before"], found["tuned"]) for found in _kept(out, plan).values()],
    )
    print_results_in(out)


def _kept(out: Path, plan: Plan) -> dict[str, dict[str, Any]]:
    """Results that a run directory has, by policy."""
    paths = {name: out / f"{name}.json" for name in plan.policies}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}


def _plan(config: TuneTaskConfig) -> Plan:
    """What the words ask for.

    Raises:
        ValueError: The tasks are of several environments, or a policy declares no constants or fits none of them.
    """
    settings: list[Environment] = []
    workloads: list[str] = []
    listed: dict[str, None] = {}
    for name in config.tasks:
        task = load_task(name)
        listed.update(dict.fromkeys(task.policies))
        for stratum, each in stratum_configs(task, task.strata)[0].items():
            settings.append(each.environment.changed(split=config.split))
            workloads.append(f"{name}/{stratum}")
    environments = sorted({setting.name for setting in settings})
    if len(environments) > 1:
        raise ValueError(f"tasks must be of one environment, got {' and '.join(environments)}")
    written = [name for name in listed if name.endswith(TUNED)]  # by this command, perhaps not yet
    heuristics = [
        name
        for name in listed
        if name not in written and not is_checkpoint(name) and not load_policy(name).clairvoyant
    ]
    constants = {name: policy_tunables(policy_config(name)["name"]) for name in heuristics}
    reference = next((name for name in heuristics if not constants[name]), heuristics[0])
    chosen = [name for name in heuristics if constants[name]]
    for name in config.policies or ():
        load_policy(name, environments[0])
        if not policy_tunables(policy_config(name)["name"]):
            raise ValueError(f"policy {name!r} declares no constants to tune")
    return Plan(tuple(settings), tuple(workloads), reference, config.policies or tuple(chosen))


def _save(config: TuneTaskConfig, found: Mapping[str, Any], plan: Plan) -> None:
    head = [
        f"Tuned on {', '.join(plan.workloads)}; {config.split} split, {config.seeds} seeds from {config.first_seed}, "
        f"{found['candidates']} candidates:",
        f"mean share of {plan.reference}'s return {found['before']:.5g} before, {found['tuned']:.5g} tuned.",
        command_line("tune_task"),
    ]
    save_tuned(found["policy"], tuned_text(head, found["name"], found["params"]), config.suffix)


if __name__ == "__main__":
    sys.exit(main(None))
