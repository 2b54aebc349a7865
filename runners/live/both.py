"""`runners.evaluate backend=both`: a policy and its rivals in simulation, then on live servers, and the gap."""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving_gym.envs.autoscaling.state import AutoscalingSpec
from serving_gym.envs.interface.fleet import FleetConfig
from serving_gym.envs.interface.sharing import SharingSetting
from serving_gym.envs.live.launcher import ending_on_signals
from serving_gym.envs.live.supervision import LocalServers
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.simulator.fleet.build import lone_start_s
from serving_gym.envs.simulator.kernel.state import PS_PER_S
from serving_gym.runners.comparison.aggregate import aggregate
from serving_gym.runners.configuration.policies import check_spaces, load_policies, load_policy, policy_label
from serving_gym.runners.configuration.schema import EvaluateConfig
from serving_gym.runners.html.report import write_report
from serving_gym.runners.live.attach import live_env
from serving_gym.runners.live.client_report import client_report, shown_rows
from serving_gym.runners.live.expectation import say_expected
from serving_gym.runners.live.gap import USUAL_RIVALS, gap, transition_gap
from serving_gym.runners.live.policies import deciding
from serving_gym.runners.reporting.engine_lines import say_engines
from serving_gym.runners.reporting.episode_files import write_episodes
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.records import Key, RunRecords
from serving_gym.runners.reporting.tables import print_results_in, print_table, print_warnings
from serving_gym.runners.reporting.trackers import make_tracker
from serving_gym.runners.rollouts.rollout import Episode

if TYPE_CHECKING:
    from serving_gym.baselines.policy import Policy


def evaluate_both(config: EvaluateConfig, out: Path) -> None:
    """Runs simulation and live servers, and writes the results."""
    label = policy_label(config.policy)
    rivals = USUAL_RIVALS[config.env["name"]] if config.rivals is None else config.rivals
    simulator = config.environment.make()
    policies = {label: load_policy(config.policy, config.env["name"])}
    policies |= load_policies([name for name in rivals if name != label], simulator, config.env["name"])
    check_spaces(policies[label], simulator)
    say_engines(config.cluster)
    live_episodes = len(policies) * config.seeds * config.repeats
    say_expected(config, live_episodes, "seeds, repeats, rivals and workload.num_requests")
    settings, planned = dataclasses.asdict(config), len(policies) * config.seeds * (1 + config.repeats)
    with ending_on_signals(), RunRecords(out, settings, planned, "vllm") as records:
        with (
            deciding(config, policies, {label: config.policy}) as (remote, process),
            live_env(config, out / "servers") as (live, launched),
            make_tracker(config.tracker, out, settings) as tracker,
            progress_bar(planned, "evaluate", "episode") as bar,
        ):
            runs: list[dict[str, list[Episode]]] = []
            bodies: tuple[tuple[Any, str, int, dict[str, Policy]], ...] = (
                (simulator, "simulator", 1, policies),
                (live, "vllm", config.repeats, remote),
            )
            for env, body, repeats, deciders in bodies:
                episodes: dict[str, list[Episode]] = {name: [] for name in policies}
                for repeat, seed, name in product(range(repeats), config.seed_range, policies):
                    bar.set_postfix_str(f"{name}, seed {seed}", refresh=False)
                    episodes[name].append(records.run(Key(name, seed, body, repeat), env, deciders[name]))
                    bar.update()
                runs.append(episodes)
            simulated, real = runs
            spec = live.policy_spec
            found = {
                **_header(config),
                **gap(simulated, real),
                "transitions": _transitions(simulator, live, launched),
                "live": {
                    name: client_report(config.env["name"], records.healths(name), real[name], process)
                    for name in real
                },
            }
            tracker.summary({f"gap/{name}": entry["ape_median"] for name, entry in found["gap"].items()})
        records.close_decisions()
        write_episodes(config, out, real[label], aggregate(real[label]), spec, live=found["live"][label])
        write_json(out / "gap.json", found)
        records.complete()
    if config.report:
        print(f"Report in {write_report(out)}")
    _print(found)
    print_warnings([f"{name}: {line}" for name, each in found["live"].items() for line in each["warnings"]])
    print_results_in(out)


def _header(config: EvaluateConfig) -> dict[str, Any]:
    return {
        "env": config.env["name"],
        "workload": config.workload.name,
        "split": config.split,
        "seeds": config.seeds,
        "repeats": config.repeats,
    }


def _transitions(simulator: Any, live: Any, launched: LocalServers | None) -> dict[str, Any]:
    """Time of each transition in simulation and on live servers; empty if there was none."""
    times: dict[str, list[float]] = {"start_s": launched.ready_s} if launched is not None else {}
    if hasattr(live, "transition_times"):
        times = live.transition_times()
    nominal = _nominal(simulator)
    return {
        name: transition_gap([nominal[name]] * len(seconds), seconds)
        for name, seconds in times.items()
        if seconds
    }


def _nominal(simulator: Any) -> dict[str, float]:
    """Times of transitions in simulation, s, by name."""
    core = simulator.unwrapped
    cluster, setting = core.policy_spec.cluster, core.policy_spec.setting
    if isinstance(setting, AutoscalingSpec):
        return {"start_s": float(setting.start_s[0, 0])}
    if isinstance(cluster, DeploymentSpec):  # of a switch without draining
        return {"start_s": cluster.reinit_s, "switch_s": cluster.reinit_s}
    if isinstance(setting, SharingSetting):
        return {"start_s": float(setting.load_s.mean())}
    if isinstance(cluster, FleetConfig):
        return {"start_s": lone_start_s(cluster, cluster.limited(cluster.groups[0].replica))}
    return {"switch_s": core.core.simulator.cluster.switch_ps / PS_PER_S}


def _print(found: dict[str, Any]) -> None:
    rows = [
        (
            metric,
            *(100 * entry[key] for key in ("ape_median", "ape_mean", "ape_max")),
            found["spread"][metric],
        )
        for metric, entry in found["gap"].items()
    ]
    headings = ("figure", "median error %", "mean %", "largest %", "spread of live runs")
    print_table(f"Simulation against live servers, {len(found['policies'])} policies", headings, rows)
    ranking = found["ranking"]
    rows = [(name, *(value for _, value in shown_rows(report))) for name, report in found["live"].items()]
    columns = [column for column, _ in shown_rows(next(iter(found["live"].values())))]
    print_table("Live runs", ("policy", *columns), rows)
    print_table(
        f"Ranking by {ranking['by']}",
        ("", ""),
        [
            ("simulated", ", ".join(ranking["simulated"])),
            ("live", ", ".join(ranking["live"])),
            ("pairs in the same order", f"{ranking['pairs_in_the_same_order']} of {ranking['pairs']}"),
            (
                "of those that differ clearly",
                f"{ranking['clear_pairs_in_the_same_order']} of {ranking['clear_pairs']}",
            ),
        ],
    )
