"""The benchmark: every task of `configs/benchmark/task`, and one table of all.

A task is a file: words as `runners.compare` takes them, workloads, policies, and perturbations. What a task says is run
word for word, so that any line of the table can be had again by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from envs.workload.registry import check_choice
from envs.workload.traces import TRACES, find_trace
from runners.comparing import Comparison, kinds_of, run, search
from runners.comparison import disjoint_seeds
from runners.environments import make_configured_env
from runners.output import write_json
from runners.policies import CONFIG_DIR, load_policy
from runners.progress import progress_bar
from runners.schema import BenchmarkConfig, BenchmarkTask, CompareConfig
from runners.tables import print_results_in, print_table
from runners.typed import build

TASK_DIR = CONFIG_DIR / "benchmark" / "task"
_OWN_WORDS = ("benchmark", "out", "plots")


def task_names() -> tuple[str, ...]:
    """Names of all tasks."""
    return tuple(sorted(path.stem for path in TASK_DIR.glob("*.yaml")))


def load_task(name: str) -> BenchmarkTask:
    """A task by name.

    Raises:
        ValueError: there is none, or its file says something it cannot.
    """
    check_choice("benchmark task", name, task_names())
    values = yaml.safe_load((TASK_DIR / f"{name}.yaml").read_text(encoding="utf-8"))
    return build(BenchmarkTask, values, f"{name}.")


def run_benchmark(config: BenchmarkConfig, out: Path) -> None:
    """Runs, writes `TASK/comparison.json` for each task (and perturbation) and `benchmark.json`, and prints the table.

    Raises:
        ValueError: words stand beside `benchmark` that the tasks decide about.
    """
    for word in HydraConfig.get().overrides.task if HydraConfig.initialized() else ():
        key = word.lstrip("+~").partition("=")[0].partition(".")[0]
        if key not in _OWN_WORDS:
            raise ValueError(
                f"benchmark={config.name} leaves {key} to its tasks; beside it goes out=DIR alone"
            )
    tasks = {name: load_task(name) for name in config.tasks or task_names()}
    rows: list[dict[str, Any]] = []
    for name, task in tasks.items():
        variants: Mapping[str, Mapping[str, tuple[str, ...]]] = (
            {f"{name}/{shift}": {shift: words} for shift, words in task.shifts.items()}
            if config.shifted
            else {name: task.strata}
        )
        for label, strata in variants.items():
            said = _compared(label, task, strata, config)
            write_json(out / label / "comparison.json", said)
            rows += _lines(label, said)
    write_json(out / "benchmark.json", {"benchmark": config.name, "blocks": config.blocks, "results": rows})
    _print(config, rows)
    print_results_in(out)


def _compared(
    label: str, task: BenchmarkTask, strata: Mapping[str, tuple[str, ...]], config: BenchmarkConfig
) -> dict[str, Any]:
    """`comparison.json` of one task over its workloads."""
    configs, skipped = _configs(task, strata, config)
    policies = {name: load_policy(name) for name in task.policies}
    comparison = Comparison({name: [] for name in policies})
    with progress_bar(len(policies) * config.blocks, label, "episode") as bar:

        def tell(name: str, seed: int) -> None:
            bar.set_postfix_str(f"{name}, seed {seed}", refresh=False)
            bar.update()

        for stratum, each in configs.items():
            run(make_configured_env(each), each, stratum, policies, comparison, tell)
    first = next(iter(configs.values()))
    if config.search_blocks:
        source = first.workload_source
        seeds = disjoint_seeds(source, first.split, min(config.search_blocks, first.seeds), first.first_seed)
        comparison.searched = search(first, task.search, seeds)
    header = {
        "task": label,
        "env": first.env["name"],
        "workload": ", ".join(each.workload.name for each in configs.values()),
        "split": first.split,
        "seeds": len(comparison.strata),
        "blocks": comparison.blocks,
        "search_blocks": len(comparison.searched),
        "skipped": skipped,
    }
    return header | comparison.said(kinds_of(policies))


def _configs(
    task: BenchmarkTask, strata: Mapping[str, tuple[str, ...]], config: BenchmarkConfig
) -> tuple[dict[str, CompareConfig], list[str]]:
    """What is compared on each workload, and the workloads whose trace is not on this machine."""
    found, skipped = {}, []
    for stratum, words in strata.items():
        each = _composed((*task.words, *words, *(task.short if config.short else ())))
        if each.workload.name in TRACES and find_trace(each.workload.name) is None:
            skipped.append(stratum)
        else:
            found[stratum] = each
    if not found:
        raise ValueError(f"no workload of the task is on this machine: {', '.join(skipped)}")
    share, more = divmod(config.blocks, len(found))
    counts = [share + (i < more) for i in range(len(found))]
    return {
        stratum: replace(each, seeds=max(1, count), first_seed=config.first_seed, disjoint=True)
        for (stratum, each), count in zip(found.items(), counts, strict=True)
    }, skipped


def _composed(words: tuple[str, ...]) -> CompareConfig:
    """What `runners.compare` would be told by these words."""
    values = compose("compare", overrides=[*words, "plots=false"])
    plain = cast(dict[str, Any], OmegaConf.to_container(values, resolve=True, throw_on_missing=True))
    return build(CompareConfig, plain)


def _lines(label: str, said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One line for each learned policy, or one for the task where there is none."""
    best, regret = said["best_heuristic"], said["regret"]
    lines: list[dict[str, Any]] = []
    for name, gates in said["gates"].items():
        if name not in said["learned"]:
            continue
        gain = said["relative_improvement"][f"{name}>{best}"]
        lines.append(
            {
                "task": label,
                "policy": name,
                "best_heuristic": best,
                "gain": gain["iqm"],
                "ci95": gain["ci95"],
                "probability_of_improvement": said["probability_of_improvement"][f"{name}>{best}"],
                "gates_hold": gates["holds"],
                "worse": bool(gain["ci95"][1] < 0),
                "regret_bound": None if regret["bound"] is None else regret["bound"][name],
                "regret_clairvoyant": None if regret["clairvoyant"] is None else regret["clairvoyant"][name],
                "us_per_decision": said["policies"][name]["us_per_decision"],
                "blocks": said["blocks"],
                "badge": said["badge"],
            }
        )
    return lines or [
        {"task": label, "best_heuristic": best, "blocks": said["blocks"], "badge": said["badge"]}
    ]


def _print(config: BenchmarkConfig, rows: list[dict[str, Any]]) -> None:
    def percent(value: float | None) -> str | None:
        return None if value is None else f"{100.0 * value:+.1f} %"

    table = [
        [
            row["task"],
            row.get("policy"),
            row["best_heuristic"],
            percent(row.get("gain")),
            None if "ci95" not in row else " to ".join(str(percent(end)) for end in row["ci95"]),
            row.get("gates_hold"),
            percent(row.get("regret_bound")),
            percent(row.get("regret_clairvoyant")),
            row.get("us_per_decision"),
            row["blocks"],
            row["badge"],
        ]
        for row in rows
    ]
    headings = [
        "task", "policy", "best heuristic", "gain", "95 %", "gates", "to the\nbound", "to the\nsearch",
        "us a\ndecision", "blocks", "badge",
    ]  # fmt: skip
    print_table(f"benchmark {config.name}", headings, table)
