"""Runs one policy over seeds.

    python -m runners.evaluate env=dp_tp policy=flying_serving seeds=10
    python -m runners.evaluate env=dp_tp policy=zoo/dp_tp workload=azure_conv split=test out=results
    python -m runners.evaluate experiment=live_routing seeds=1 policy=preserve backend=vllm backend.launch=true
    python -m runners.evaluate experiment=live_routing seeds=1 policy=preserve backend=both backend.launch=true

Writes `episodes.parquet` (one row per episode), `summary.json` (interquartile mean and 95 % interval of every metric),
`decisions.jsonl`, `requests.parquet` (every request) and `requests.json` (the requests of the first episode, or of all
with `detailed=true`, under the keys of `vllm bench serve --save-detailed`; without `detailed=true` it is not written
for more than 100,000 requests). On live servers each decision also has the `executed` command and the `overrides`:
decisions taken for the policy because it was late. `backend=both` runs the policy and its `rivals` in simulation and
then on live servers, and writes `gap.json`: each metric on both backends, its error, how often two policies rank in the
same order, and the cost of transitions on both; the other files describe the policy's live episodes. Both files say
under `live` how much of a result is not the policy's: decisions taken for it, the client's lag, the machine's load.

A run that ends early says what it has kept, and the same command with its `out` runs the episodes that are left.

`report=true` also writes `report.html` (see `runners.report`).

In env=routing `log_states=true` also writes `states.jsonl`, the state of each decision, for `runners.replay`, and
`explore` draws that share of the decisions evenly from all places, so that other policies can be judged by the log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any

from serving_gym.envs.live.launcher import ending_on_signals
from serving_gym.runners.command_line.cli import command
from serving_gym.runners.comparison.aggregate import aggregate
from serving_gym.runners.configuration.policies import check_spaces, load_policy, policy_label
from serving_gym.runners.configuration.schema import EvaluateConfig
from serving_gym.runners.html.report import write_report
from serving_gym.runners.live.attach import configured_env
from serving_gym.runners.live.both import evaluate_both
from serving_gym.runners.live.client_report import client_report, shown_rows
from serving_gym.runners.live.expectation import say_expected
from serving_gym.runners.live.policies import deciding
from serving_gym.runners.replaying.recording import STATES_FILE, Exploring, StateLog
from serving_gym.runners.reporting.engine_lines import say_engines
from serving_gym.runners.reporting.episode_files import write_episodes
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.records import Key, RunRecords
from serving_gym.runners.reporting.tables import SHOWN_METRICS, print_results_in, print_table, print_warnings
from serving_gym.runners.reporting.trace_lines import say_traces
from serving_gym.runners.reporting.trackers import make_tracker


@command("evaluate", EvaluateConfig)
def main(config: EvaluateConfig, out: Path) -> None:
    """Runs the command."""
    say_traces(config.workload, config.cluster)
    if config.backend.name == "both":
        evaluate_both(config, out)
        return
    policy, label = load_policy(config.policy, config.env["name"]), policy_label(config.policy)
    settings = dataclasses.asdict(config)
    if config.backend.name == "vllm":
        say_expected(config, config.seeds, "seeds and workload.num_requests")
    with ending_on_signals(), RunRecords(out, settings, config.seeds, config.backend.name) as records:
        with (
            deciding(config, {label: policy}, {label: config.policy}) as (policies, process),
            configured_env(config, out / "servers") as env,
            make_tracker(config.tracker, out, settings) as tracker,
            progress_bar(config.seeds, f"evaluate {label}", "episode") as bar,
            contextlib.ExitStack() as stack,
        ):
            check_spaces(policy, env)
            say_engines(config.cluster)
            core: Any = env.unwrapped
            spec = core.policy_spec
            deciding_policy = policies[label]
            if config.explore:
                deciding_policy = Exploring(deciding_policy, config.explore, core.config.num_rows)
            if config.log_states:
                env = log = StateLog(env, deciding_policy, out / STATES_FILE, records.done > 0)
                stack.callback(log.close_file)
            episodes = []
            for step, seed in enumerate(config.seed_range):
                key = Key(label, seed, config.backend.name)
                episodes.append(records.run(key, env, deciding_policy))
                metrics = episodes[-1].metrics
                tracker.log(
                    {f"evaluation/{name}": metrics[name] for name in SHOWN_METRICS if name in metrics}, step
                )
                bar.update()
            summary = aggregate(episodes)
            tracker.summary(
                {f"evaluation/{name}": summary[name]["iqm"] for name in SHOWN_METRICS if name in summary}
            )
        live = None
        if config.backend.name == "vllm":
            live = client_report(config.env["name"], records.healths(label), episodes, process)
        write_episodes(config, out, episodes, summary, spec, records.close_decisions(), live)
        records.complete()
    rows: list[tuple[str, Any]] = [
        (name, _interval(summary[name])) for name in SHOWN_METRICS if name in summary
    ]
    rows += [] if live is None else shown_rows(live)
    if config.report:
        print(f"Report in {write_report(out)}")
    print_table(f"{label} on {config.workload.name}, {config.seeds} episodes", ("figure", "iqm [95 %]"), rows)
    print_warnings([] if live is None else live["warnings"])
    print_results_in(out)


def _interval(entry: dict[str, Any]) -> tuple[float, float, float]:
    return (entry["iqm"], *entry["ci95"])


if __name__ == "__main__":
    sys.exit(main(None))
