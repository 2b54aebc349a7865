"""Trains agents with several seeds and draws their learning curves.

    python -m runners.curves env=dp_tp seeds=10 out=runs/curves/dp_tp
    python -m runners.curves env=routing agents=[default,ppo] seeds=10 max_minutes=5 out=runs/curves/routing
    python -m runners.curves env=sharing agents=[maskable_ppo,dqn] seeds=5 total_steps=200000 processes=2

Other words are those of `runners.train` and hold for every training: `workload`, `env`, `max_minutes`, `total_steps`,
`validations`, `validation_seeds`, `num_envs`. Trainings run one after another, `processes` of them side by side: where
time is limited, as it is by default (five minutes), each then has its share of the machine.

The same command with its `out` goes on where it was stopped; with more `seeds` or `agents` it adds trainings.

Writes `AGENT/seed=N/` (what `runners.train` writes, and `train.log`), `curves.json` (of each agent the interquartile
mean of the validation return and its bootstrap 95 % interval over trainings, by minutes and by decisions, the first,
last and kept return, and every validation; the return of other policies on the same episodes), and `curves.png`;
`figures=pdf`: also as a PDF.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from hydra.core.hydra_config import HydraConfig

from serving_gym.envs.registration import Environment, policy_roles
from serving_gym.runners.command_line.cli import command
from serving_gym.runners.comparison.verdict import roles_of
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.policies import load_policies
from serving_gym.runners.configuration.train_config import TrainConfig, register_agents
from serving_gym.runners.learning_curves.config import DEFAULT, OWN_WORDS, REFUSED, CurvesConfig
from serving_gym.runners.learning_curves.curves import agent_summary
from serving_gym.runners.learning_curves.trainings import OneTraining, run_trainings
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.plan import keep_plan
from serving_gym.runners.reporting.progress import progress_bar, say
from serving_gym.runners.reporting.tables import print_results_in, print_table
from serving_gym.runners.reporting.trace_lines import say_traces
from serving_gym.runners.rollouts.rollout import run_episode

CURVES = "curves.png"

register_agents()


@command("curves", CurvesConfig)
def main(config: CurvesConfig, out: Path) -> None:
    """Runs the command."""
    words = _words()
    labels = {agent: _label(agent, words) for agent in config.agents}  # says what is wrong with them at once
    say_traces(config.workload, config.cluster)
    keep_plan(out, words)
    trainings = [
        OneTraining(agent, seed, out / agent / f"seed={seed}", tuple(words))
        for seed in config.seed_range
        for agent in config.agents
    ]
    done = sum(each.done for each in trainings)
    with progress_bar(len(trainings), f"train in {config.environment.name}", "training") as bar:
        bar.update(done)
        for each in run_trainings(trainings, config.processes):
            kept = max(row["return"] for row in each.validations())
            say(bar, f"{labels[each.agent]}, seed {each.seed}: kept validation return {kept:.4g}")
            bar.update()
    results = {
        "env": config.environment.name,
        "workload": config.workload.name,
        "validation_seeds": config.validation_seeds,
        "agents": {labels[agent]: _summary(agent, trainings) for agent in config.agents},
        "references": _references(config),
    }
    write_json(out / "curves.json", results)
    from serving_gym.runners.learning_curves.figure import plot_curves

    plot_curves(out / CURVES, results, config.figures)
    _print(results)
    print(f"Learning curves in {out / CURVES}")
    print_results_in(out)


def _words() -> list[str]:
    """Words for each training.

    Raises:
        ValueError: One is each training's own.
    """
    kept = []
    for word in HydraConfig.get().overrides.task:
        key = word.lstrip("+~").partition("=")[0].partition(".")[0]
        if key in REFUSED:
            raise ValueError(
                f"{word} cannot be given here; agents=[...] names agents, seeds=N says how often each is trained"
            )
        if key not in OWN_WORDS:
            kept.append(word)
    return kept


def _label(agent: str, words: list[str]) -> str:
    """Name of an agent in results; "default" is followed by what it is.

    Raises:
        ValueError: There is no such agent, it does not take one of the words, or its validation returns are relative.
    """
    config = composed("train", TrainConfig, [*words, f"agent={agent}"])
    if len(config.agent_config.places(config.environment.arguments)) > 1:
        raise ValueError(
            f"agent={agent} is validated on each part of the workload in shares of its first return there, which no "
            "other agent is"
        )
    name = config.agent_config.name
    return f"{name} (default)" if agent == DEFAULT else name if name == agent else f"{agent} ({name})"


def _summary(agent: str, trainings: list[OneTraining]) -> dict[str, Any]:
    own = [each for each in trainings if each.agent == agent]
    return agent_summary([each.seed for each in own], [each.validations() for each in own])


def _references(config: CurvesConfig) -> dict[str, dict[str, Any]]:
    """Mean return of other policies on the validation episodes, and their roles."""
    setting = Environment.of(config.environment.name, {**config.environment.arguments, "split": "validation"})
    env = setting.make()
    policies = load_policies(config.compared, env, setting.name)
    roles = roles_of(policies, policy_roles(setting.name), [])
    found: dict[str, dict[str, Any]] = {}
    with progress_bar(len(policies) * config.validation_seeds, "references", "episode") as bar:
        for name, policy in policies.items():
            returns = []
            for seed in range(config.validation_seeds):
                returns.append(run_episode(env, policy, seed, name).metrics["return"])
                bar.update()
            found[name] = {"return": float(np.mean(returns)), "role": roles[name]}
    return found


def _print(results: dict[str, Any]) -> None:
    best = max((each["return"] for each in results["references"].values()), default=None)
    rows = []
    for name, each in results["agents"].items():
        kept = [training["kept_return"] for training in each["trainings"]]
        ahead = None if best is None else sum(value > best for value in kept)
        figures = [(each[which]["iqm"], *each[which]["ci95"]) for which in ("first", "last", "kept")]
        rows.append([name, len(kept), *figures, each["minutes"], each["steps"], ahead])
    headings = ["agent", "trainings", "first", "last [95 %]", "kept [95 %]"]
    headings += ["minutes", "decisions", "ahead of\nall others"]
    title = (
        f"{results['env']} on {results['workload']}: validation return, interquartile means over trainings"
    )
    print_table(title, headings, rows)


if __name__ == "__main__":
    sys.exit(main(None))
