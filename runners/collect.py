"""Writes episodes of several policies as a Minari dataset, for offline learning.

    python -m runners.collect env=routing policies=[random,jsq,zoo/routing] seeds=20 out=data
    python -m runners.collect env=dp_tp policies=[random,static_4x2,flying_serving] seeds=10 explore=0.1 out=data

    python -m runners.train env=routing agent=cql agent.dataset=data

Every policy decides in the same episodes, of the training split unless `split` says otherwise, when the environment
asks; what it says outside of the action space is recorded, and done, as the nearest possible action. `explore=0.2`
replaces that share of decisions by random possible actions, so that a dataset shows how each policy recovers.

Writes the dataset under the environment's id, as `out/Serving/Routing-v1/data`, where Minari finds it:
`MinariDataset("out/Serving/Routing-v1/data")`, or `load_dataset("Serving/Routing-v1")` with MINARI_DATASETS_PATH=out.
`recover_environment()` makes the environment again. Infos hold `action_mask`, `dt` (s), `refused`, `explored` and
`reward_terms`, whose names are in the metadata beside policies, seeds, split, command and version; an episode's
metadata are its policy, its seed and its metrics. Nothing is sent anywhere or fetched.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from hydra.core.hydra_config import HydraConfig

from serving_gym.agents.checkpoint import replacing
from serving_gym.agents.environments.adapter import adapter_of
from serving_gym.runners.command_line.cli import command
from serving_gym.runners.configuration.policies import check_spaces, load_policies
from serving_gym.runners.offline.config import CollectConfig
from serving_gym.runners.offline.dataset import Dataset, free_folder, spec_of
from serving_gym.runners.offline.recording import Numbered, Recorder
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_results_in, print_table
from serving_gym.runners.reporting.trace_lines import say_traces
from serving_gym.runners.rollouts.rollout import run_episode
from serving_gym.runners.tuning.tuned_file import command_line

_SHOWN = ("return", "slo_attainment")


@command("collect", CollectConfig)
def main(config: CollectConfig, out: Path) -> None:
    """Runs the command."""
    say_traces(config.workload, config.cluster)
    env, name = Recorder(config.environment.make()), config.environment.name
    policies = load_policies(config.collected, env, name)
    for policy in policies.values():
        check_spaces(policy, env)
    spec = spec_of(config.environment, HydraConfig.get().overrides.task)
    folder = free_folder(out, spec.id, config.data_format)
    found: dict[str, list[dict[str, float]]] = {label: [] for label in policies}
    with (
        replacing(folder) as unfinished,
        progress_bar(len(policies) * config.seeds, "collect", "episode") as bar,
    ):
        dataset = Dataset(unfinished, env, spec, config.data_format)
        for seed in config.seed_range:
            for label, policy in policies.items():
                numbered = Numbered(policy, adapter_of(name), env, config.explore)
                episode = run_episode(env, numbered, seed, label)
                dataset.add(env.episode(), seed, {"policy": label, "seed": seed, **episode.metrics})
                found[label].append(episode.metrics)
                bar.update()
        dataset.describe(_description(config, env.terms, found))
    rows = [[label, *(_mean(metrics, shown) for shown in _SHOWN)] for label, metrics in found.items()]
    count = len(policies) * config.seeds
    title = f"{dataset.id}, {config.split} split: {dataset.decisions:,} decisions in {count} episodes, means"
    print_table(title, ["policy", *_SHOWN], rows)
    print(f"Dataset in {folder}")
    print_results_in(out)


def _description(
    config: CollectConfig, terms: tuple[str, ...], found: dict[str, list[dict[str, float]]]
) -> dict[str, Any]:
    """Metadata of the dataset."""
    returns = {label: _mean(metrics, "return") for label, metrics in found.items()}
    scores: dict[str, Any] = {}
    if "random" in returns and len(returns) > 1:  # for minari.get_normalized_score
        scores = {
            "ref_min_score": returns["random"],
            "ref_max_score": max(returns.values()),
            "num_episodes_average_score": config.seeds,
        }
    return {
        "algorithm_name": ", ".join(found),
        "description": f"{config.seeds} episodes of each of {len(found)} policies in env={config.env['name']}, "
        f"workload={config.workload.name}, {config.split} split",
        "policies": list(found),
        "seeds": [config.first_seed, config.first_seed + config.seeds - 1],
        "split": config.split,
        "explore": config.explore,
        "reward_terms": list(terms),
        "command": command_line("collect"),
        **scores,
    }


def _mean(metrics: list[dict[str, float]], name: str) -> float:
    return float(np.mean([each[name] for each in metrics]))


if __name__ == "__main__":
    sys.exit(main(None))
