"""Tunes a policy's declared constants on validation episodes with CMA-ES.

    python -m runners.tune env=dp_tp policy=flying_serving workload=azure_conv evaluations=200 save=true

Writes `tuned.yaml` (a file for `configs/policy`), `tuning.json` and `candidates.parquet`; with `save=true` also
`configs/policy/NAME_tuned.yaml`, or `DIR/policy/NAME_tuned.yaml` with `--config-dir DIR`. Every candidate runs on the
same seeds. The score is the mean return; with `reference=static_dp` each return is divided by that policy's.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving_gym.agents.learners.returns import shares
from serving_gym.baselines.policy import BatchPolicy, Policy, Tunable
from serving_gym.baselines.registry import policy_tunables
from serving_gym.envs.registration import make_vector_env
from serving_gym.runners.command_line.cli import command
from serving_gym.runners.configuration.policies import load_policy, policy_label
from serving_gym.runners.configuration.schema import TuneConfig
from serving_gym.runners.reporting.engine_lines import say_engines
from serving_gym.runners.reporting.output import write_json, write_parquet, write_text
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_results_in, print_table
from serving_gym.runners.reporting.trace_lines import say_traces
from serving_gym.runners.reporting.trackers import make_tracker
from serving_gym.runners.rollouts.rollout import episode_returns, run_episode
from serving_gym.runners.tuning.cma_es import search
from serving_gym.runners.tuning.tuned_file import command_line, save_tuned, tuned_text


@command("tune", TuneConfig)
def main(config: TuneConfig, out: Path) -> None:
    """Runs the command."""
    say_traces(config.workload, config.cluster)
    tunables = policy_tunables(config.policy["name"])
    if not tunables:
        raise ValueError(f"policy {policy_label(config.policy)!r} declares no constants to tune")
    params = dict(config.policy.get("params", {}))
    start, returns_of = (
        _start(params, tunables),
        _evaluation(config, load_policy(config.policy, config.env["name"])),
    )

    say_engines(config.cluster)

    def returns(candidate: Mapping[str, Any]) -> NDArray[np.float64]:
        return returns_of(load_policy({**config.policy, "params": {**params, **candidate}}))

    rows: list[dict[str, Any]] = []
    usual = None
    with (
        make_tracker(config.tracker, out, dataclasses.asdict(config)) as tracker,
        progress_bar(config.evaluations + 1, f"tune {policy_label(config.policy)}", "candidate") as bar,
    ):

        def measured(candidate: Mapping[str, Any]) -> float:
            found = returns(candidate)
            counted = found if usual is None else shares(found, usual, config.clip)
            rows.append({**candidate, "return": float(counted.mean())})
            tracker.log(rows[-1], len(rows) - 1)
            bar.set_postfix_str(f"best return {max(row['return'] for row in rows):.4g}", refresh=False)
            bar.update()
            return float(counted.mean())

        if config.reference is not None:
            reference = load_policy(config.reference, config.env["name"])
            usual = _evaluation(config, reference)(reference)
        measured(
            start
        )  # the untuned constants are a candidate too: the tuned ones are never worse on these episodes
        search(measured, tunables, start, config.evaluations, config.sigma, config.search_seed)
    best = max(rows, key=lambda row: row["return"])
    write_parquet(out / "candidates.parquet", pd.DataFrame(rows))
    _write(config, out, rows[0], best, {**params, **{name: best[name] for name in tunables}})
    print_table(
        f"{policy_label(config.policy)} on {config.workload.name}, {config.split}",
        ("constant", "before", "tuned"),
        [(name, rows[0][name], best[name]) for name in (*tunables, "return")],
    )
    print_results_in(out)


def _evaluation(config: TuneConfig, kind: Policy) -> Callable[[Policy], NDArray[np.float64]]:
    """Returns of a policy on the tuning episodes; in a vector environment if the policy can decide in batches."""
    env: Any = config.environment.make()
    if not isinstance(kind, BatchPolicy):
        return lambda policy: np.array(
            [run_episode(env, policy, seed).metrics["return"] for seed in config.seed_range]
        )
    batch = make_vector_env(config.env["name"], config.seeds, **config.environment.arguments)
    return lambda policy: episode_returns(
        batch, cast(BatchPolicy, policy), env.policy_spec, config.seed_range
    )


def _start(params: Mapping[str, Any], tunables: Mapping[str, Tunable]) -> dict[str, Any]:
    missing = [name for name in tunables if name not in params]
    if missing:
        raise ValueError(f"policy.params must contain {missing[0]}, which is tuned")
    return {name: params[name] if one.values else float(params[name]) for name, one in tunables.items()}


def _write(
    config: TuneConfig,
    out: Path,
    before: Mapping[str, Any],
    best: Mapping[str, Any],
    params: Mapping[str, Any],
) -> None:
    found_by = command_line("tune")
    figure = "mean return" if config.reference is None else f"mean share of {config.reference}'s return"
    if config.clip is not None:
        figure += f" (within {config.clip:g} of it)"
    figures = f"{figure} {before['return']:.5g} before, {best['return']:.5g} tuned"
    where = f"{config.workload.name}, {config.split} split, {config.seeds} seeds from {config.first_seed}"
    text = tuned_text([f"Tuned on {where}: {figures}.", found_by], config.policy["name"], params)
    write_text(out / "tuned.yaml", text)
    write_json(out / "tuning.json", {"command": found_by, "before": before, "tuned": best, "params": params})
    if config.save:
        save_tuned(policy_label(config.policy), text)


if __name__ == "__main__":
    sys.exit(main(None))
