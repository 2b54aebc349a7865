"""Runs policies at several settings and draws their Pareto front over two metrics.

    python -m runners.pareto experiment=autoscaling_day seeds=3
    python -m runners.pareto experiment=autoscaling_day 'policies=[fixed_instances,zoo/autoscaling]' \
        'settings={fixed_instances: {instances: [2,4,8]}}'
    python -m runners.pareto env=routing policies=[jsq,llm_d] 'axes={ttft_p99_s: lower, goodput_rps: higher}'

All policies at all settings decide in the same episodes. By default the rent of machines is set against the share of
requests that keep their SLOs, with autoscalers at the settings of `runners.pareto_front.config`. The same command with
its `out` goes on where it was stopped; other policies and settings may be added.

Writes `pareto.json` (of each point the mean of both metrics with its bootstrap 95 % interval, and whether another point
is no worse in both and better in one; the hypervolume of all points and of each policy's own, up to the reference, as a
share of the box between the reference and the best value of each metric), `episodes.jsonl`, and `pareto.png`;
`figures=pdf`: also as a PDF.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hydra.core.hydra_config import HydraConfig
from numpy.typing import NDArray

from serving_gym.envs.interface.metrics import to_jsonable
from serving_gym.runners.command_line.cli import command
from serving_gym.runners.comparison.statistics import bootstrap_interval, mean
from serving_gym.runners.configuration.policies import is_checkpoint, load_policy
from serving_gym.runners.pareto_front.config import Candidate, ParetoConfig
from serving_gym.runners.pareto_front.front import hypervolume, not_dominated
from serving_gym.runners.reporting.engine_lines import say_engines
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.plan import keep_plan
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_results_in, print_table
from serving_gym.runners.reporting.trace_lines import say_traces
from serving_gym.runners.rollouts.launchers import Job, Rollouts, run_jobs

EPISODES = "episodes.jsonl"
# Words that may change where a run goes on.
FREE = ("policies", "settings", "axes", "reference", "seeds", "first_seed", "launcher", "figures", "out")
Episodes = dict[tuple[str, int], dict[str, float]]  # metrics by label and seed


@command("pareto", ParetoConfig)
def main(config: ParetoConfig, out: Path) -> None:
    """Runs the command."""
    candidates = list(config.candidates())
    policies = {each.label: load_policy(each.source, config.env["name"]) for each in candidates}
    say_traces(config.workload, config.cluster)
    say_engines(config.cluster)
    keep_plan(out, [word for word in HydraConfig.get().overrides.task if _key(word) not in FREE])
    episodes = _run(config, candidates, policies, out)
    results = {
        "env": config.env["name"],
        "workload": config.workload.name,
        "split": config.split,
        "seeds": config.seeds,
        "axes": config.metrics,
        "learned": [name for name in config.compared if is_checkpoint(name)],
        **front_of(candidates, _table(config, candidates, episodes), config.metrics, config.reference),
    }
    write_json(out / "pareto.json", results)
    from serving_gym.runners.pareto_front.figure import plot_front

    plot_front(out / "pareto.png", results, config.figures)
    _print(results)
    print(f"Pareto front in {out / 'pareto.png'}")
    print_results_in(out)


def _key(word: str) -> str:
    """First part of the key of a word."""
    return word.lstrip("+~").partition("=")[0].partition(".")[0]


def _run(
    config: ParetoConfig, candidates: Sequence[Candidate], policies: Mapping[str, Any], out: Path
) -> Episodes:
    """Runs the episodes that `episodes.jsonl` does not have, and adds them to it."""
    path = out / EPISODES
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    held: Episodes = {(row["label"], row["seed"]): row["metrics"] for row in rows}
    jobs = [Job(each.label, seed) for seed in config.seed_range for each in candidates]
    left = [job for job in jobs if (job.policy, job.seed) not in held]
    sources: dict[str, Any] = {each.label: each.source for each in candidates}
    rollouts = Rollouts([config.environment], sources, dict(policies), scores_only=True)
    with path.open("a", encoding="utf-8") as file, progress_bar(len(jobs), "pareto", "episode") as bar:
        bar.update(len(jobs) - len(left))
        for job, score in zip(left, run_jobs(config.launcher, rollouts, left), strict=True):
            held[job.policy, job.seed] = score.metrics
            row = {"label": job.policy, "seed": job.seed, "metrics": score.metrics}
            file.write(json.dumps(to_jsonable(row), allow_nan=False) + "\n")
            file.flush()
            bar.update()
    return held


def _table(config: ParetoConfig, candidates: Sequence[Candidate], episodes: Episodes) -> NDArray[np.float64]:
    """(candidates, 2, seeds), both metrics in every episode.

    Raises:
        ValueError: the episodes have no such metric, or it is infinite or undefined there.
    """
    table = np.empty((len(candidates), 2, config.seeds))
    for i, each in enumerate(candidates):
        for k, seed in enumerate(config.seed_range):
            metrics = episodes[each.label, seed]
            for j, name in enumerate(config.metrics):
                value = metrics.get(name)
                if name not in metrics:
                    raise ValueError(f"axes.{name}: episodes here have {', '.join(sorted(metrics))}")
                if value is None or not np.isfinite(value):
                    raise ValueError(
                        f"axes.{name} is infinite in the episode of seed {seed} with {each.label}; choose another "
                        "metric, or leave that setting out"
                    )
                table[i, j, k] = value
    return table


def front_of(
    candidates: Sequence[Candidate],
    table: NDArray[np.float64],
    axes: Mapping[str, str],
    reference: Sequence[float] | None,
) -> dict[str, Any]:
    """Points, the front, and hypervolumes.

    Args:
        candidates: Policies at their settings.
        table: (candidates, 2, seeds), both metrics.
        axes: The metrics, and whether lower or higher is better.
        reference: Worst value of each; None: the worst mean.
    """
    signs = np.array([1.0 if direction == "lower" else -1.0 for direction in axes.values()])
    costs = table.mean(axis=2) * signs
    worst = costs.max(axis=0) if reference is None else signs * np.asarray(reference, np.float64)
    kept = not_dominated(costs)
    box = float(np.prod(np.maximum(worst - costs.min(axis=0), 0.0)))
    own = {
        policy: costs[[each.policy == policy for each in candidates]]
        for policy in dict.fromkeys(each.policy for each in candidates)
    }

    def share(points: NDArray[np.float64]) -> float:
        return hypervolume(points, worst.tolist()) / box if box else 0.0

    return {
        "reference": (worst * signs).tolist(),
        "points": [
            {
                "label": each.label,
                "policy": each.policy,
                "setting": each.setting,
                "mean": table[i].mean(axis=1).tolist(),
                "ci95": [list(bootstrap_interval([values], mean)) for values in table[i]],
                "dominated": not bool(kept[i]),
            }
            for i, each in enumerate(candidates)
        ],
        "hypervolume": {
            "value": hypervolume(costs, worst.tolist()),
            "share": share(costs),
            "by_policy": {policy: share(points) for policy, points in own.items()},
        },
    }


def _print(results: Mapping[str, Any]) -> None:
    first, second = results["axes"]
    rows = [
        [
            point["label"],
            (point["mean"][0], *point["ci95"][0]),
            (point["mean"][1], *point["ci95"][1]),
            "" if point["dominated"] else "front",
        ]
        for point in sorted(results["points"], key=lambda point: point["mean"][0])
    ]
    seeds = f"{results['split']} split, {results['seeds']} episodes each"
    title = f"{results['env']} on {results['workload']}, {seeds}, means"
    print_table(title, ["policy", f"{first} [95 %]", f"{second} [95 %]", "not dominated"], rows)
    shares = results["hypervolume"]
    rows = [
        [policy, value] for policy, value in sorted(shares["by_policy"].items(), key=lambda item: -item[1])
    ]
    print_table("hypervolume, share of the box", ["policy", "share"], [["all", shares["share"]], *rows])


if __name__ == "__main__":
    sys.exit(main(None))
