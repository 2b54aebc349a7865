"""Replays logged decisions with other policies: what they would have chosen, and what that is estimated to gain.

    python -m runners.evaluate env=routing policy=jsq cluster=fleet_h100_x4 log_states=true explore=0.2 out=runs/logged
    python -m runners.replay runs/logged policies=[preserve,zoo/routing]
    python -m runners.replay runs/serve/DATE/decisions.jsonl policies=[jsq,preserve] cluster=fleet_h100_x4

The log is that of `runners.serve`, of any environment, or of `runners.evaluate log_states=true`, of env=routing;
environment and cluster are those of its run unless words say otherwise. In env=routing the cost of a request is
TTFT / SLO + TPOT / SLO, at most `most_cost`. For each policy its mean is estimated by importance weights and by a
doubly robust estimate (`runners.replaying.estimate`), with 95 % intervals. Weights need a log with random decisions:
`explore` of `runners.evaluate`, or a canary of `runners.serve`. Both estimates change one decision at a time;
`twin=true` serves the same arrivals in simulation with each policy from beginning to end.

Writes `replay.json`, `choices.parquet` (one row a decision) and `requests_of_log.parquet` (the requests that the twin
of a serving process serves).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from hydra.core.hydra_config import HydraConfig

from serving_gym.baselines.policy import Policy
from serving_gym.calibration.fields import check_at_least, check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.command_line.cli import command
from serving_gym.runners.configuration.policies import load_policies, load_policy
from serving_gym.runners.configuration.schema import EnvironmentConfig
from serving_gym.runners.replaying.analysis import Analysis
from serving_gym.runners.replaying.estimate import MODELS, Settings
from serving_gym.runners.replaying.log import UNKNOWN, log_file
from serving_gym.runners.replaying.recording import Exploring
from serving_gym.runners.replaying.setting import Run, names_setting, run_of
from serving_gym.runners.replaying.twin import LOGGED, recorded_twin, run_twin, seen_twin
from serving_gym.runners.reporting.output import write_json, write_parquet
from serving_gym.runners.reporting.tables import print_results_in, print_table


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(EnvironmentConfig):
    """Configuration of `runners.replay`.

    Attributes:
        log: Decision log, or a run directory with one.
        policies: Policies to replay.
        out: Run directory.
        model: Model of the costs, lightgbm or ridge.
        clip: Largest importance weight.
        most_cost: Highest cost of a request, which a lost one has too.
        decisions: Most decisions to read.
        twin: Whether to serve the same arrivals in simulation.
        seed: Of policies, model and intervals.
    """

    log: str
    policies: tuple[str, ...]
    out: str
    model: str = "lightgbm"
    clip: float = 20.0
    most_cost: float = 20.0
    decisions: int = 20_000
    twin: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("model", self.model, MODELS)
        check_positive(self, "clip", "most_cost", finite=True)
        check_at_least(self, 1, "decisions")
        check_at_least(self, 0, "seed")


@command("replay", ReplayConfig)
def _replay(config: ReplayConfig, out: Path) -> None:
    """Runs the command."""
    file = log_file(Path(config.log))
    run = run_of(file)
    environment = config.environment
    if run.environment is not None and not names_setting(HydraConfig.get().overrides.task):
        environment = run.environment
    env: Any = environment.make().unwrapped
    policies = load_policies(config.policies, env, environment.name)
    analysis = Analysis.of(
        file, run, environment, env, policies, config.most_cost, config.decisions, config.seed
    )
    found = analysis.header() | analysis.estimates(Settings(config.model, config.clip, config.seed))
    if config.twin:
        found["twin"] = _twin(config, analysis, run, policies, out)
    write_json(out / "replay.json", found)
    log = analysis.log
    columns = {"episode": log.episode, "now_s": log.now_s, "taken": log.taken, "propensity": log.propensity}
    if len(log.index):
        columns |= {"index": log.index, "cost": analysis.outcomes.cost}
    write_parquet(out / "choices.parquet", pd.DataFrame(columns | analysis.actions))
    _print(found)
    print_results_in(out)


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command; the log may stand by itself."""
    given = list(sys.argv[1:] if words is None else words)
    logs = [word for word in given if "=" not in word and not word.startswith("-")]
    rest = [word for word in given if word not in logs]
    return _replay([*rest, *(f"log={log}" for log in logs)])


def _twin(
    config: ReplayConfig, analysis: Analysis, run: Run, policies: Mapping[str, Policy], out: Path
) -> dict[str, Any]:
    """Mean costs of the policies in simulation, on the log's requests."""
    log, env, environment = analysis.log, analysis.env, analysis.environment
    if environment.name != "routing":
        return {"described": "", "why_not": "it serves requests of env=routing"}
    try:
        if run.policy is not None and (log.seed != UNKNOWN).all():
            baseline = Exploring(load_policy(run.policy, "routing"), run.explore, env.config.num_rows)
            baseline.name = log.policies[0]
            twin = recorded_twin(environment, sorted(set(log.seed.tolist())), baseline)
        else:
            file = out / "requests_of_log.parquet"
            twin = seen_twin(environment, env.core.classes, log, analysis.outcomes, file)
    except ValueError as error:
        return {"described": "", "why_not": str(error)}
    found = run_twin(twin, policies, env.policy_spec.slos, config.most_cost)
    return {"described": twin.described, "policies": found}


def _print(found: Mapping[str, Any]) -> None:
    twins = found.get("twin", {}).get("policies", {})
    rows = [
        [
            name,
            entry["agreement"],
            *(_gain(entry.get("gain", {}).get(key)) for key in ("doubly_robust", "ips")),
            entry.get("effective_sample_size"),
            _percent(twins[name]["gain"]) if name in twins else None,
        ]
        for name, entry in found["policies"].items()
    ]
    cost = found["cost"]["mean"]
    title = (
        f"{found['decisions']:,} decisions of {', '.join(found['logged_policies'])}, mean cost "
        f"{'unknown' if cost is None else f'{cost:.3g}'} (TTFT / SLO + TPOT / SLO); gains in it"
    )
    headings = ["policy", "chooses\nas logged", "doubly robust [95 %]", "importance-weighted [95 %]",
                "effective\nsample", "simulated\ntwin"]  # fmt: skip
    print_table(title, headings, rows)
    if LOGGED in twins:
        print(f"Twin: {found['twin']['described']}; mean cost there {twins[LOGGED]['value']:.3g}.")
    for sentence in _notes(found):
        print(sentence)


def _notes(found: Mapping[str, Any]) -> list[str]:
    said = [f"{name}: {entry['note']}" for name, entry in found["policies"].items() if entry.get("note")]
    said += [f"{name}: {failure}" for name, failure in found["failures"].items()]
    if found["note"]:
        said.append(found["note"])
    if why := found.get("twin", {}).get("why_not"):
        said.append(f"No simulated twin: {why}.")
    if found["cut_off"]:
        said.append("The log's last line has no end and is left out.")
    said += [f"{count} lines are left out: {reason}." for reason, count in found["skipped_lines"].items()]
    return said


def _gain(gain: Mapping[str, Any] | None) -> str | None:
    if gain is None:
        return None
    low, high = gain["ci95"]
    return f"{_percent(gain['mean'])} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _percent(share: float) -> str:
    return f"{100.0 * share:+.1f} %"


if __name__ == "__main__":
    sys.exit(main(None))
