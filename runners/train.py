"""Trains an agent and compares it with the baselines.

    python -m runners.train env=dp_tp
    python -m runners.train env=routing agent=api
    python -m runners.train env=dp_tp agent=dqn workload=azure_conv seed=1 total_steps=1000000 tracker=tensorboard
    python -m runners.train resume=runs/train/DATE

`configs/agent_for/ENV_AGENT.yaml` has the overrides of an agent for one environment,
`configs/agent_for/ENV_default.yaml` the default agent of an environment.

Training stops after the agent's number of decisions or five minutes, whichever comes first; `total_steps=...` removes
the time limit, `max_minutes=...` sets another. The learning rate decays with the limit that is nearer. On a machine
that finishes all decisions in time, the same seed gives the same agent.

Writes `checkpoint/` (the policy with the highest return on validation episodes: weights, resolved config, card),
`last/` (the state for `resume=`), `metrics.jsonl`, `comparison.json` (see `runners.comparison.results`; `training` has
the step of the best policy and the validation returns of all policies), `learning_curve.png` (validation return over
steps and minutes, with the other policies on the same episodes) and `intervals.png`; `figures=pdf`: each as a PDF too.
`report=true` also writes `report.html` (see `runners.report`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from serving_gym.agents.checkpoint import CHECKPOINT, load_policy, plain
from serving_gym.agents.learners.learner import Task, make_learner
from serving_gym.baselines.policy import Policy
from serving_gym.envs.registration import policy_roles
from serving_gym.runners.command_line.cli import command, use_one_thread
from serving_gym.runners.comparison.aggregate import Scored
from serving_gym.runners.comparison.results import compare_results
from serving_gym.runners.comparison.run import kinds_of
from serving_gym.runners.comparison.verdict import closing_rows, roles_of, verdict
from serving_gym.runners.configuration.policies import load_policies
from serving_gym.runners.configuration.train_config import TrainConfig, register_agents, resumed
from serving_gym.runners.html.report import write_report
from serving_gym.runners.reporting.engine_lines import say_engines
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_results_in, print_table
from serving_gym.runners.reporting.trace_lines import say_traces
from serving_gym.runners.reporting.trackers import compared_curves, make_tracker
from serving_gym.runners.rollouts.launchers import Job, Rollouts, run_jobs
from serving_gym.runners.training.loop import Training
from serving_gym.runners.training.start import start_name

CURVE, INTERVALS = "learning_curve.png", "intervals.png"
USAGE_METRICS = ("gpu_hours", "cost_usd")  # where policies differ in them
TABLE_METRICS = ("slo_attainment", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s")

register_agents()


@command("train", TrainConfig)
def main(config: TrainConfig, out: Path) -> None:
    """Runs the command."""
    if config.resume is not None:
        config = resumed(config)
    agent = config.agent_config
    say_traces(config.workload, config.cluster)
    env = config.environment.make()  # says what is wrong with it before anything takes time
    baselines = load_policies(config.compared, env, config.environment.name)
    say_engines(config.cluster)
    limit = "" if config.minutes is None else f", at most {config.minutes:g} minutes"
    _say(
        f"Training {agent.name} on {config.env['name']} ({config.workload.name}): {config.steps:,} steps{limit}."
    )
    use_one_thread()
    task = Task(
        config.environment.name,
        config.environment.arguments,
        config.num_envs,
        config.seed,
        tuple(other.arguments for other in config.others.values()),
        tuple(config.others),
    )
    training = Training(config, make_learner(agent, task), out)
    with make_tracker(config.tracker, out, plain(config), training.budget.steps) as tracker:
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
        policies = {agent.name: load_policy(out / CHECKPOINT), **baselines}
        comparison, validation = _compare(config, training, policies, out)
        roles = roles_of(policies, policy_roles(config.env["name"]), [agent.name])
        comparison["roles"] = roles
        comparison["training"] = {
            "start": start_name(config.agent),
            "improved": training.improved,
            "steps": training.best_steps,
            "validation_returns": {agent.name: training.best_return, **validation},
        }
        write_json(out / "comparison.json", comparison)
        _draw(config, training, comparison, out)
        tracker.summary(compared_curves(comparison))
        for name, file in (("validation/learning_curve", CURVE), ("comparison/intervals", INTERVALS)):
            tracker.picture(name, out / file, budget.steps)
        tracker.checkpoint(CHECKPOINT, out / CHECKPOINT)
    if config.report:
        _say(f"Report in {write_report(out)}")
    _print(config, agent.name, comparison)
    print(f"Learning curve in {out / CURVE}")
    print_results_in(out)


def _compare(
    config: TrainConfig, training: Training, policies: dict[str, Policy], out: Path
) -> tuple[dict[str, Any], dict[str, float]]:
    """Runs all policies on the same episodes of the test split, and all but the agent on the validation episodes.

    Returns:
        The content of `comparison.json`, and the validation return of each policy but the agent.
    """
    agent = config.agent["name"]
    others = [name for name in policies if name != agent]
    rollouts = Rollouts(
        [config.environment, *training.settings],
        {name: str(out / CHECKPOINT) if name == agent else name for name in policies},
        dict(policies),
        {1 + i: env for i, env in enumerate(training.envs)},
        scores_only=True,
    )
    jobs = [Job(name, seed) for seed in config.seed_range for name in policies]
    jobs += [Job(name, seed, 1 + place) for seed, place in training.validation_jobs for name in others]
    results: dict[str, list[Scored]] = {name: [] for name in policies}
    tried: dict[str, list[float]] = {name: [] for name in others}
    with progress_bar(len(jobs), "compare", "episode") as bar:
        for job, score in zip(jobs, run_jobs(config.launcher, rollouts, jobs), strict=True):
            if job.setting == 0:
                results[job.policy].append(score)
            else:
                tried[job.policy].append(score.metrics["return"])
            bar.update()
    header = {
        "env": config.env["name"],
        "workload": config.workload.name,
        "split": config.split,
        "seeds": config.seeds,
    }
    comparison = header | compare_results(results, kinds_of(policies, learned={agent}))
    return comparison, {name: training.validation_return(returns) for name, returns in tried.items()}


def _draw(config: TrainConfig, training: Training, comparison: dict[str, Any], out: Path) -> None:
    """Draws the learning curve and the intervals of the comparison."""
    from serving_gym.runners.reporting.plots import plot_intervals, plot_learning_curve

    results, agent = comparison["training"], config.agent["name"]
    references = {
        name: (value, comparison["roles"][name])
        for name, value in results["validation_returns"].items()
        if name != agent
    }
    title = (
        f"{agent} in {config.env['name']} on {config.workload.name}: mean return of "
        f"{len(training.validation_jobs)} validation episodes"
    )
    rows = training.validation_rows()
    plot_learning_curve(out / CURVE, rows, references, results["start"], title, agent, config.figures)
    plot_intervals(out / INTERVALS, comparison["policies"], figures=config.figures, learned=[agent])


def _print(config: TrainConfig, agent: str, comparison: dict[str, Any]) -> None:
    title = (
        f"{config.env['name']} on {config.workload.name}, {config.split} split, {config.seeds} episodes each, "
        "interquartile means"
    )
    first = comparison["policies"][agent]["metrics"]
    shown = (
        *TABLE_METRICS,
        *(name for name in USAGE_METRICS if name in first and _differs(name, comparison)),
    )
    headings = ["policy", "role", "return [95 %]", *shown, "agent's gain [95 %]", "P(agent better)"]
    print_table(title, headings, closing_rows(agent, comparison, comparison["roles"], shown))
    results = comparison["training"]
    start = None if results["improved"] else f"{results['start']}, step {results['steps']:,}"
    if sentence := verdict(agent, comparison, start):
        _say(sentence)


def _differs(metric: str, comparison: dict[str, Any]) -> bool:
    """Whether policies differ in a metric."""
    return len({policy["metrics"][metric]["iqm"] for policy in comparison["policies"].values()}) > 1


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(None))
