"""Compares policies on identical arrivals.

    python -m runners.compare env=dp_tp workload=azure_conv policies=[static_dp,flying_serving,zoo/dp_tp] seeds=10
    python -m runners.compare benchmark=smoke

    python -m runners.compare env=routing policies=[linear_score_tuned,runs/ten/*]

    python -m runners.compare env=routing policies=[jsq,./mine.py:MyPolicy,my_package.mine:MyPolicy,model.zip]

A pattern names several trainings of one agent: they are pooled (`runners.comparison.pooling`), with intervals over
both trainings and episodes.

Writes `comparison.json` (see `runners.comparison.results`; null means infinite), `episodes.parquet`, and, unless
`plots=false`, `intervals.png` and `timeline.png` (`figures=pdf`: each as a PDF too). `report=true` also writes
`report.html` (see `runners.report`) and, for it, requests and decisions of the seed on which a policy has its lowest
return. `benchmark=smoke|full|shift` runs every task of `configs/benchmark/task` instead and writes
`TASK/comparison.json` and `benchmark.json` (see `runners.benchmark.benchmark`).
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.runners.benchmark.benchmark import run_benchmark
from serving_gym.runners.command_line.cli import command
from serving_gym.runners.comparison.pooling import pooled
from serving_gym.runners.comparison.results import disjoint_blocks
from serving_gym.runners.comparison.run import Comparison, kinds_of, run, search
from serving_gym.runners.configuration.policies import check_spaces, load_policy
from serving_gym.runners.configuration.schema import CompareConfig
from serving_gym.runners.html.report import write_report
from serving_gym.runners.live.attach import configured_env
from serving_gym.runners.live.expectation import say_expected
from serving_gym.runners.live.policies import deciding
from serving_gym.runners.reporting.engine_lines import say_engines
from serving_gym.runners.reporting.episode_files import described_classes, write_worst_episodes
from serving_gym.runners.reporting.output import write_json, write_parquet
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_results_in, print_table
from serving_gym.runners.reporting.trace_lines import say_traces
from serving_gym.runners.reporting.trackers import compared_curves, make_tracker
from serving_gym.runners.rollouts.rollout import Episode

TABLE_METRICS = (
    "return",
    "slo_attainment",
    "goodput_rps",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "gpu_hours",
)


@command("compare", CompareConfig)
def main(config: CompareConfig, out: Path) -> None:
    """Runs the command."""
    if config.benchmark is not None:
        run_benchmark(config.benchmark, out)
        return
    say_traces(config.workload, config.cluster)
    policies = {name: load_policy(name, config.env["name"]) for name in config.compared}
    if config.search.seeds and config.search.base is not None:
        load_policy(config.search.base, config.env["name"])  # says what is wrong before anything takes time
    last = tuple(policies)[-1]
    compared = Comparison({name: [] for name in policies})
    results, returns = compared.results, dict[str, float]()
    if config.backend.name == "vllm":
        say_expected(config, len(policies) * config.seeds, "seeds, policies and workload.num_requests")
    with (
        deciding(config, policies) as (deciders, _),
        configured_env(config, out / "servers") as env,
        make_tracker(config.tracker, out, dataclasses.asdict(config)) as tracker,
        progress_bar(len(policies) * config.seeds, "compare", "episode") as bar,
    ):

        def on_episode(episode: Episode) -> None:
            bar.set_postfix_str(f"{episode.policy}, seed {episode.seed}", refresh=False)
            bar.update()
            returns[f"comparison/return/{episode.policy}"] = episode.metrics["return"]
            if episode.policy == last:
                tracker.log(returns, len(results[last]))

        for policy in policies.values():
            check_spaces(policy, env)
        say_engines(config.cluster)
        run(env, config, deciders, compared, on_episode)
        for i, episode in enumerate(results[last][: config.search.seeds]):
            compared.searched[i] = search(config, config.search, episode.seed)
        core: Any = env.unwrapped
        slos_s = [(slo.ttft_s, slo.tpot_s) for slo in core.policy_spec.slos]
        comparison = _header(config, results[last], core.policy_spec) | compared.summary(kinds_of(policies))
        comparison["pools"] = pooled(results, config.pools)
        tracker.summary(compared_curves(comparison))
        write_json(out / "comparison.json", comparison)
        rows = [episode.row() for episodes in results.values() for episode in episodes]
        write_parquet(out / "episodes.parquet", pd.DataFrame(rows))
        if config.report:
            write_worst_episodes(out, results)
        if config.plots:
            _plot(out, comparison, results, slos_s, config.figures)
            for name in ("intervals", "timeline"):
                tracker.picture(f"comparison/{name}", out / f"{name}.png", len(results[last]))
    _print(comparison)
    if config.report:
        print(f"Report in {write_report(out)}")
    print_results_in(out)


def _header(config: CompareConfig, episodes: list[Episode], spec: PolicySpec) -> dict[str, Any]:
    seeds = len(episodes)
    return {
        "env": config.env["name"],
        "workload": config.workload.name,
        "backend": config.backend.name,
        "split": config.split,
        "seeds": seeds,
        "classes": described_classes(spec),
        "blocks": seeds if config.disjoint else disjoint_blocks(config.workload_source, config.split, seeds),
    }


def _plot(
    out: Path,
    comparison: dict[str, Any],
    results: dict[str, list[Episode]],
    slos_s: list[tuple[float, float]],
    figures: str,
) -> None:
    from serving_gym.runners.reporting.plots import plot_intervals, plot_timeline

    pools, learned = comparison["pools"], comparison["learned"]
    plot_intervals(out / "intervals.png", comparison["policies"], pools, figures, learned)
    firsts = {name: episodes[0] for name, episodes in results.items()}
    plot_timeline(out / "timeline.png", firsts, slos_s, pools, figures, learned)


def _print(comparison: dict[str, Any]) -> None:
    policies, best = comparison["policies"], comparison["best_heuristic"]
    priced = any("cost_usd" in entry["metrics"] for entry in policies.values())
    shown = (*TABLE_METRICS[1:], *(("cost_usd",) if priced else ()))
    rows = []
    for name, entry in policies.items():
        metrics = entry["metrics"]
        against = comparison["probability_of_improvement"].get(f"{name}>{best}", None)
        first = metrics["return"]
        others = [metrics[metric]["iqm"] for metric in shown]
        rows.append([name, (first["iqm"], *first["ci95"]), *others, entry["us_per_decision"], against])
    title = f"{comparison['env']} on {comparison['workload']}, {comparison['seeds']} episodes each, interquartile means"
    if comparison["blocks"] < comparison["seeds"]:
        title += (
            f"\nonly {comparison['blocks']} of them can be disjoint in this trace: intervals are too narrow"
        )
    headings = ["policy", "return\n[95 %]", *(metric.replace("_", "\n") for metric in shown)]
    print_table(title, [*headings, "us a\ndecision", f"P(better than\n{best})"], rows)
    for pattern, pool in comparison["pools"].items():
        _print_pool(pattern, pool)


def _print_pool(pattern: str, pool: dict[str, Any]) -> None:
    """Prints the pooled result of several trainings of one agent."""
    rows = [
        [name, *(f"{100.0 * value:+.1f} %" for value in (gain["iqm"], *gain["ci95"])), wins]
        for (name, gain), wins in zip(
            pool["relative_improvement"].items(), pool["probability_of_improvement"].values(), strict=True
        )
    ]
    figure = pool["return"]
    low, high = figure["ci95"]
    title = (
        f"{pattern}: {len(pool['members'])} trainings, return {figure['iqm']:.4g} [{low:.4g}, {high:.4g}]; "
        "intervals over trainings and episodes"
    )
    print_table(title, ["against", "gain", "low", "high", "P(better)"], rows)


if __name__ == "__main__":
    sys.exit(main(None))
