"""Runs one policy over seeds.

    python -m runners.evaluate env=dp_tp policy=flying_serving seeds=10
    python -m runners.evaluate env=dp_tp policy=zoo/dp_tp workload=azure_conv split=test out=results
    python -m runners.evaluate env=dp_tp policy=flying_serving cluster=tiny_llama_cpu_x2 backend=vllm backend.launch=true

Writes `episodes.parquet` (one row an episode), `summary.json` (interquartile mean and 95 % interval of every figure),
`decisions.jsonl`, `requests.parquet` (every request) and `requests.json` (those of the first episode, or of all with
`detailed=true`, under the keys of `vllm bench serve --save-detailed`).
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from runners.aggregate import aggregate
from runners.cli import command
from runners.live import configured_env
from runners.output import write_json, write_jsonl, write_parquet
from runners.policies import load_policy, policy_label
from runners.progress import progress_bar
from runners.rollout import Episode, run_episode
from runners.schema import EvaluateConfig
from runners.tables import SHOWN_METRICS, print_results_in, print_table
from runners.trackers import make_tracker


@command("evaluate", EvaluateConfig)
def main(config: EvaluateConfig, out: Path) -> None:
    """Evaluates and writes."""
    policy, label = load_policy(config.policy), policy_label(config.policy)
    with (
        configured_env(config, out / "servers") as env,
        make_tracker(config.tracker, out, dataclasses.asdict(config)) as tracker,
        progress_bar(config.seeds, f"evaluate {label}", "episode") as bar,
    ):
        episodes = []
        for step, seed in enumerate(config.seed_range):
            episodes.append(run_episode(env, policy, seed, label))
            tracker.log(episodes[-1].metrics, step)
            bar.update()
        summary = aggregate(episodes)
        tracker.summary({name: entry["iqm"] for name, entry in summary.items()})
        core: Any = env.unwrapped
        spec = core.policy_spec
    _write(config, out, episodes, summary, spec)
    rows = [(name, _interval(summary[name])) for name in SHOWN_METRICS if name in summary]
    print_table(f"{label} on {config.workload.name}, {config.seeds} episodes", ("figure", "iqm [95 %]"), rows)
    print_results_in(out)


def _interval(entry: dict[str, Any]) -> tuple[float, float, float]:
    return (entry["iqm"], *entry["ci95"])


def _write(
    config: EvaluateConfig, out: Path, episodes: list[Episode], summary: dict[str, Any], spec: Any
) -> None:
    slos = dict(zip(spec.classes, spec.slos, strict=True))
    write_parquet(out / "episodes.parquet", pd.DataFrame([episode.row() for episode in episodes]))
    requests = [episode.records.to_frame().assign(seed=episode.seed) for episode in episodes]
    write_parquet(out / "requests.parquet", pd.concat(requests, ignore_index=True))
    write_jsonl(out / "decisions.jsonl", (row for episode in episodes for row in episode.decisions))
    reports = [
        {"seed": episode.seed, **episode.records.to_vllm_json(episode.duration_s, slos, spec.classes)}
        for episode in (episodes if config.detailed else episodes[:1])
    ]
    write_json(out / "requests.json", reports if config.detailed else reports[0], indent=None)
    write_json(
        out / "summary.json",
        {
            "env": config.env["name"],
            "workload": config.workload.name,
            "policy": episodes[0].policy,
            "backend": config.backend.name,
            "split": config.split,
            "seeds": config.seeds,
            "metrics": summary,
            "us_per_decision": sum(episode.us_per_decision for episode in episodes) / len(episodes),
        },
    )


if __name__ == "__main__":
    sys.exit(main(None))
