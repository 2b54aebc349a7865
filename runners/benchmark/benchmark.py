"""The benchmark: every task of `configs/benchmark/task`, and one table of all.

A task is a file: overrides of `runners.compare`, workloads, policies, and perturbations. These overrides are used
verbatim, so that any line of the table can be reproduced by hand. An interrupted run continues if
it has the same `out=DIR` (`runners.benchmark.blocks`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.workload.registry import parts_of
from serving_gym.envs.workload.traces import TRACES, find_trace
from serving_gym.runners.benchmark.blocks import Block, BlockScores, run_blocks
from serving_gym.runners.comparison.results import disjoint_seeds
from serving_gym.runners.comparison.run import Comparison, kinds_of
from serving_gym.runners.configuration.folders import config_file, config_names, search_path
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.configuration.schema import BenchmarkConfig, BenchmarkTask, CompareConfig
from serving_gym.runners.configuration.typed import build
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_results_in, print_table

RESULTS = "benchmark.json"
TASKS = "benchmark/task"  # config group
TRANSFER = "transfer"  # its folder of clusters that routers were not trained on
_OWN_WORDS = ("benchmark", "out", "plots", "figures")


def task_names() -> tuple[str, ...]:
    """Names of all tasks but those in folders, which only a benchmark that names them runs."""
    return tuple(config_names(TASKS))


def known_tasks() -> tuple[str, ...]:
    """Names of all tasks, those in folders too, as `transfer/two_gpus`."""
    inside = (f"{TRANSFER}/{name}" for name in config_names(f"{TASKS}/{TRANSFER}"))
    return (*task_names(), *inside)


def load_task(name: str) -> BenchmarkTask:
    """A task by name.

    Raises:
        ValueError: it does not exist, or its file is invalid.
    """
    check_choice("benchmark task", name, known_tasks())
    file = config_file(TASKS, name)
    assert file is not None
    return build(BenchmarkTask, yaml.safe_load(file.read_text(encoding="utf-8")), f"{name}.")


def run_benchmark(config: BenchmarkConfig, out: Path) -> None:
    """Runs, writes `TASK/comparison.json` for each task (and perturbation) and `benchmark.json`, and prints the table.

    Raises:
        ValueError: overrides are given that the tasks set.
    """
    for word in HydraConfig.get().overrides.task if HydraConfig.initialized() else ():
        key = word.lstrip("+~").partition("=")[0].partition(".")[0]
        if key not in _OWN_WORDS:
            raise ValueError(
                f"benchmark={config.name} sets {key} by its tasks; only out=DIR can be given with it"
            )
    _check_out(config, out)
    tasks = {name: load_task(name) for name in (task_names() if config.tasks is None else config.tasks)}
    variants = {
        label: _Variant.of(label, task, strata, config)
        for name, task in tasks.items()
        for label, strata in _strata(name, task, config).items()
    }
    blocks = [block for variant in variants.values() for block in variant.blocks]
    with progress_bar(len(blocks), f"benchmark {config.name}", "block") as bar:

        def on_block(block: Block) -> None:
            bar.set_postfix_str(f"{block.folder}, {block.stratum}, seed {block.seed}", refresh=False)
            bar.update()

        scores = dict(zip(blocks, run_blocks(blocks, out, config.processes, on_block), strict=True))
    rows: list[dict[str, Any]] = []
    for label, variant in variants.items():
        comparison = variant.summary(scores)
        write_json(out / label / "comparison.json", comparison)
        rows += _lines(label, comparison)
    write_json(out / RESULTS, {"benchmark": config.name, "blocks": config.blocks, "results": rows})
    _print(config, rows)
    print_results_in(out)


def _check_out(config: BenchmarkConfig, out: Path) -> None:
    """Checks that a folder has no results of another benchmark."""
    path = out / RESULTS
    held = json.loads(path.read_text(encoding="utf-8")).get("benchmark") if path.is_file() else config.name
    if held != config.name:
        raise ValueError(
            f"out={str(out)!r} has results of benchmark={held}; choose another folder for {config.name}"
        )


def _strata(
    name: str, task: BenchmarkTask, config: BenchmarkConfig
) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Workloads of each line of the table."""
    if not config.shifted:
        return {name: task.strata}
    return {f"{name}/{shift}": {shift: words} for shift, words in task.shifts.items()}


@dataclass(frozen=True)
class _Variant:
    """A task, unperturbed or under one of its perturbations."""

    label: str
    policies: tuple[str, ...]
    configs: Mapping[str, CompareConfig]  # by workload
    blocks: tuple[Block, ...]
    skipped: tuple[str, ...]

    @classmethod
    def of(
        cls, label: str, task: BenchmarkTask, strata: Mapping[str, tuple[str, ...]], config: BenchmarkConfig
    ) -> _Variant:
        """Builds the variant from a task's file."""
        configs, skipped = stratum_configs(task, strata, config.short)
        blocks: list[Block] = []
        searches = shared_out(config.search_blocks, [config.blocks for _ in configs])
        seeds = _seeds(configs, config)
        for (stratum, each), number in zip(configs.items(), searches, strict=True):
            blocks += [Block(label, stratum, each, seed, task.policies) for seed in seeds[stratum]]
            blocks += [
                Block(label, stratum, each, seed, search=task.search) for seed in seeds[stratum][:number]
            ]
        return cls(label, task.policies, configs, tuple(blocks), tuple(skipped))

    def summary(self, scores: Mapping[Block, BlockScores]) -> dict[str, Any]:
        """The content of `comparison.json`, over its workloads."""
        comparison = Comparison({name: [] for name in self.policies})
        run = [block for block in self.blocks if block.search is None]
        for block in run:
            comparison.add(block.stratum, scores[block].of, scores[block].bound)
        for block in self.blocks:
            if block.search is not None:
                (score,) = scores[block].of.values()
                place = next(
                    i for i, b in enumerate(run) if (b.stratum, b.seed) == (block.stratum, block.seed)
                )
                comparison.searched[place] = score.metrics["return"]
        first = next(iter(self.configs.values()))
        header = {
            "task": self.label,
            "env": first.env["name"],
            "workload": ", ".join(each.workload.name for each in self.configs.values()),
            "split": first.split,
            "seeds": len(run),
            "blocks": len(run),
            "strata": dict(Counter(block.stratum for block in run)),
            "search_blocks": len(comparison.searched),
            "skipped": list(self.skipped),
        }
        return header | comparison.summary(kinds_of({name: load_policy(name) for name in self.policies}))


def stratum_configs(
    task: BenchmarkTask, strata: Mapping[str, tuple[str, ...]], short: bool = False
) -> tuple[dict[str, CompareConfig], list[str]]:
    """Comparison of each workload, and the workloads whose trace is not on this machine.

    Args:
        task: The task.
        strata: Overrides of each workload.
        short: Whether episodes are short.

    Raises:
        ValueError: No workload is on this machine.
    """
    found, skipped = {}, []
    for stratum, words in strata.items():
        each = _composed((*task.words, *words, *(task.short if short else ())))
        if any(part.name in TRACES and find_trace(part.name) is None for part in parts_of(each.workload)):
            skipped.append(stratum)
        else:
            found[stratum] = each
    if not found:
        raise ValueError(f"no workload of the task is on this machine: {', '.join(skipped)}")
    return found, skipped


def _seeds(configs: Mapping[str, CompareConfig], config: BenchmarkConfig) -> dict[str, list[int]]:
    """Seeds of the blocks of each workload; short traces have fewer, the other workloads more."""
    possible = {
        stratum: disjoint_seeds(each.workload_source, each.split, config.blocks, config.first_seed)
        for stratum, each in configs.items()
    }
    counts = shared_out(config.blocks, [len(seeds) for seeds in possible.values()])
    return {stratum: seeds[:count] for (stratum, seeds), count in zip(possible.items(), counts, strict=True)}


def shared_out(number: int, most: Sequence[int]) -> list[int]:
    """Divides `number` as equally as possible, each share at most its `most`; earlier entries get the remainder.

    Args:
        number: the number to divide.
        most: largest share of each.
    """
    counts = [0] * len(most)
    while sum(counts) < min(number, sum(most)):
        least = min(count for count, limit in zip(counts, most, strict=True) if count < limit)
        place = next(i for i, limit in enumerate(most) if counts[i] == least and counts[i] < limit)
        counts[place] += 1
    return counts


def _composed(words: tuple[str, ...]) -> CompareConfig:
    """Configuration of `runners.compare` with these overrides."""
    values = compose("compare", overrides=[*search_path(), *words, "plots=false"])
    plain = cast(dict[str, Any], OmegaConf.to_container(values, resolve=True, throw_on_missing=True))
    return build(CompareConfig, plain)


def _lines(label: str, comparison: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One line for each learned policy with its badge; without any, one for the best heuristic."""
    best, regret = comparison["best_heuristic"], comparison["regret"]
    lines: list[dict[str, Any]] = []
    for name, gates in comparison["gates"].items():
        if name not in comparison["learned"]:
            continue
        gain = comparison["relative_improvement"][f"{name}>{best}"]
        lines.append(
            {
                "task": label,
                "policy": name,
                "best_heuristic": best,
                "gain": gain["iqm"],
                "ci95": gain["ci95"],
                "mean": gain["mean"],
                "mean_ci95": gain["mean_ci95"],
                "probability_of_improvement": comparison["probability_of_improvement"][f"{name}>{best}"],
                "gates_hold": gates["holds"],
                "gates_certain": gates["certain"],
                "gates_beyond_in": gates["beyond_in"],
                "lost_to": comparison["lost_to"][name],
                "regret_bound": _lacking(regret["bound"], name),
                "regret_clairvoyant": _lacking(regret["clairvoyant"], name),
                "us_per_decision": comparison["policies"][name]["us_per_decision"],
                "blocks": comparison["blocks"],
                "strata": comparison["strata"],
                "skipped": comparison["skipped"],
                "badge": comparison["badges"][name],
            }
        )
    return lines or [
        {
            "task": label,
            "best_heuristic": best,
            "regret_bound": _lacking(regret["bound"], best),  # the best heuristic's own
            "regret_clairvoyant": _lacking(regret["clairvoyant"], best),
            "blocks": comparison["blocks"],
            "strata": comparison["strata"],
            "skipped": comparison["skipped"],
            "badge": comparison["badge"],
        }
    ]


def _lacking(regret: Mapping[str, float] | None, name: str | None) -> float | None:
    """Regret of a policy to a reference; None: the reference is unknown."""
    return None if regret is None or name is None else regret[name]


def _print(config: BenchmarkConfig, rows: list[dict[str, Any]]) -> None:
    def percent(value: float | None) -> str | None:
        return None if value is None else f"{100.0 * value:+.1f} %"

    table = [
        [
            row["task"] + "".join(f"\nwithout {name}" for name in row["skipped"]),
            row.get("policy"),
            row["best_heuristic"],
            percent(row.get("gain")),
            None if "ci95" not in row else " to ".join(str(percent(end)) for end in row["ci95"]),
            percent(row.get("mean")),
            _gates(row),
            percent(row.get("regret_bound")),
            percent(row.get("regret_clairvoyant")),
            row.get("us_per_decision"),
            row["blocks"],
            row["badge"],
        ]
        for row in rows
    ]
    headings = [
        "task", "policy", "best heuristic", "gain", "95 %", "mean", "gates", "to the\nbound", "to the\nsearch",
        "us a\ndecision", "blocks", "badge",
    ]  # fmt: skip
    print_table(f"benchmark {config.name}", headings, table)


def _gates(row: Mapping[str, Any]) -> str | None:
    """Whether the gates hold, and the workloads that exceed them by themselves."""
    if "gates_hold" not in row:
        return None
    return ("hold" if row["gates_hold"] else "fail") + "".join(
        f"\nnot in {name}" for name in row["gates_beyond_in"]
    )
