"""Trains an agent, and says how it does beside the baselines.

    python -m runners.train env=dp_tp
    python -m runners.train env=routing agent=api
    python -m runners.train env=dp_tp agent=dqn workload=azure_conv seed=1 total_steps=1000000 tracker=tensorboard
    python -m runners.train resume=runs/train/DATE

What an agent has otherwise in one environment stands in `configs/agent_for/ENV_AGENT.yaml`; which agent an environment
has where none is named, in `configs/agent_for/ENV_default.yaml`.

It runs for the agent's own number of decisions, but not longer than five minutes; `total_steps=...` lifts that limit,
`max_minutes=...` sets another. The learning rate falls with whichever of the two is nearer, so that a machine fast
enough for all decisions gives the same agent for the same seed.

Writes `checkpoint/` (the policy that did best on validation episodes: weights, resolved config, card), `last/` (what
`resume=` needs), `metrics.jsonl`, and `comparison.json` (see `runners.comparison.results`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving_gym.agents.checkpoint import CHECKPOINT, load_policy, plain
from serving_gym.agents.learners.learner import Task, make_learner
from serving_gym.envs.routing.config import RoutingConfig
from serving_gym.envs.workload.registry import WorkloadSpec, check_choice, for_larger
from serving_gym.runners.command_line.cli import command, use_one_thread
from serving_gym.runners.comparison.results import compare_results
from serving_gym.runners.comparison.run import kinds_of
from serving_gym.runners.configuration.environments import env_arguments, make_configured_env
from serving_gym.runners.configuration.policies import composed_file
from serving_gym.runners.configuration.policies import load_policy as load_named_policy
from serving_gym.runners.configuration.train_config import TrainConfig, register_agents, resumed
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_results_in, print_table
from serving_gym.runners.reporting.trackers import make_tracker
from serving_gym.runners.rollouts.launchers import episodes_of
from serving_gym.runners.rollouts.rollout import Episode
from serving_gym.runners.training.loop import Training

TABLE_METRICS = ("slo_attainment", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s")

register_agents()


@command("train", TrainConfig)
def main(config: TrainConfig, out: Path) -> None:
    """Trains, compares and writes."""
    if config.resume is not None:
        config = resumed(config)
    baselines = {name: load_named_policy(name) for name in config.compared}
    agent = config.agent_config
    also, also_words = _also(config)
    make_configured_env(config)  # says what is wrong with it before anything takes time
    limit = "" if config.minutes is None else f", at most {config.minutes:g} minutes"
    _say(
        f"Training {agent.name} on {config.env['name']} ({config.workload.name}): {config.steps:,} steps{limit}."
    )
    _say("The simulator compiles itself on first use (30 s to 2 min), before any minute counts.")
    use_one_thread()
    task = Task(config.env["name"], env_arguments(config), config.num_envs, config.seed, also, also_words)
    training = Training(config, make_learner(agent, task), out)
    with make_tracker(config.tracker, out, plain(config)) as tracker:
        try:
            with progress_bar(100, f"train {agent.name}", "%") as bar:
                training.run(tracker, bar)
        except KeyboardInterrupt:
            _say(f"Interrupted; go on with: python -m runners.train resume={out}")
            raise
        budget = training.budget
        _say(
            f"{budget.steps:,} steps in {budget.elapsed_s / 60.0:.1f} minutes; best validation return "
            f"{training.best_return:.4g}, after {training.best_steps:,} steps."
        )
        comparison = _compare(config, {agent.name: load_policy(out / CHECKPOINT), **baselines})
        write_json(out / "comparison.json", comparison)
        tracker.summary(
            {
                f"{name}/{metric}": entry["iqm"]
                for name, policy in comparison["policies"].items()
                for metric, entry in policy["metrics"].items()
            }
        )
    _print(config, agent.name, comparison)
    print_results_in(out)


def _also(config: TrainConfig) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """Arguments of the same environment wherever else episodes are played, and the word that asks for each."""
    places = [(_elsewhere(config, each), f"also_clusters={each}") for each in config.also_clusters]
    places += [(_with_settings(config, each), f"also_env={each}") for each in config.also_env]
    places += [(_with_workload(config, each), f"also_workloads={each}") for each in config.also_workloads]
    return tuple(arguments for arguments, _ in places), tuple(word for _, word in places)


def _elsewhere(config: TrainConfig, cluster: str) -> dict[str, Any]:
    """Arguments of the same environment on another cluster; to a fleet as many more requests come as it has places."""
    if config.env["name"] != "routing":
        return env_arguments(replace(config, cluster=composed_file("cluster", cluster)))
    here = RoutingConfig(**env_arguments(config)).cluster.num_places
    arguments = env_arguments(replace(config, cluster=composed_file("cluster", cluster)))
    factor = RoutingConfig(**arguments).cluster.num_places / here
    return {**arguments, "workload": for_larger(config.workload, factor)}


def _with_settings(config: TrainConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the same environment with some of its settings changed."""
    for name in settings:
        check_choice("key", f"also_env.{name}", [f"also_env.{each}" for each in config.env if each != "name"])
    return env_arguments(replace(config, env={**config.env, **settings}))


def _with_workload(config: TrainConfig, workload: str) -> dict[str, Any]:
    """Arguments of the same environment where other requests come."""
    return env_arguments(replace(config, workload=WorkloadSpec(**composed_file("workload", workload))))


def _compare(config: TrainConfig, policies: dict[str, Any]) -> dict[str, Any]:
    """All policies on the same episodes of the test split."""
    env = make_configured_env(config)
    results: dict[str, list[Episode]] = {name: [] for name in policies}
    with progress_bar(len(policies) * config.seeds, "compare", "episode") as bar:
        for episode in episodes_of(config, config.launcher, env, policies, config.seed_range):
            results[episode.policy].append(episode)
            bar.update()
    header = {
        "env": config.env["name"],
        "workload": config.workload.name,
        "split": config.split,
        "seeds": config.seeds,
    }
    return header | compare_results(results, kinds_of(policies, learned={config.agent["name"]}))


def _print(config: TrainConfig, agent: str, comparison: dict[str, Any]) -> None:
    rows = []
    for name, entry in comparison["policies"].items():
        metrics = entry["metrics"]
        gain = comparison["relative_improvement"].get(f"{agent}>{name}", {}).get("iqm")
        better = comparison["probability_of_improvement"].get(f"{agent}>{name}")
        rows.append(
            [
                name,
                (metrics["return"]["iqm"], *metrics["return"]["ci95"]),
                *(metrics[metric]["iqm"] for metric in TABLE_METRICS),
                None if gain is None else f"{100.0 * gain:+.1f} %",
                better,
            ]
        )
    rows.sort(key=lambda row: -row[1][0])
    title = (
        f"{config.env['name']} on {config.workload.name}, {config.split} split, {config.seeds} episodes each, "
        "interquartile means"
    )
    headings = ["policy", "return [95 %]", *TABLE_METRICS, "agent's gain", "P(agent better)"]
    print_table(title, headings, rows)
    _say(_verdict(agent, comparison))


def _verdict(agent: str, comparison: dict[str, Any]) -> str:
    """How the agent did, in one sentence."""
    parts = {True: [], False: []}  # type: dict[bool, list[str]]
    for name in comparison["policies"]:
        if name != agent:
            gain = comparison["relative_improvement"][f"{agent}>{name}"]["iqm"]
            wins = comparison["probability_of_improvement"][f"{agent}>{name}"]
            parts[gain > 0].append(
                f"{name} by {100.0 * abs(gain):.1f} % (better on {100.0 * wins:.0f} % of episodes)"
            )
    ahead = f"beats {', '.join(parts[True])}" if parts[True] else ""
    behind = f"is behind {', '.join(parts[False])}" if parts[False] else ""
    return (
        f"{agent} {'; it '.join(part for part in (ahead, behind) if part)}."
        if parts[True] or parts[False]
        else ""
    )


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(None))
