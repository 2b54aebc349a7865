"""Replays logged decisions with other policies: what they would have chosen, and what that is estimated to gain.

    python -m runners.evaluate env=routing policy=jsq cluster=fleet_h100_x4 log_states=true explore=0.2 out=runs/logged
    python -m runners.replay runs/logged policies=[preserve,zoo/routing]
    python -m runners.replay runs/serve/DATE/decisions.jsonl policies=[jsq,preserve] cluster=fleet_h100_x4

The log is that of `runners.serve` or of `runners.evaluate log_states=true`, of env=routing; environment and cluster are
those of its run unless words say otherwise. The cost of a request is TTFT / SLO + TPOT / SLO, at most `most_cost`. For
each policy its mean is estimated by importance weights and by a doubly robust estimate (`runners.replaying.estimate`),
with 95 % intervals. Weights need a log with random decisions: `explore` of `runners.evaluate`, or a canary of
`runners.serve`. Both estimates change one decision at a time; `twin=true` serves the same arrivals in simulation with
each policy from beginning to end.

Writes `replay.json`, `choices.parquet` (one row a decision) and `requests_of_log.parquet` (the requests that the twin
of a serving process serves).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hydra.core.hydra_config import HydraConfig

from serving_gym.baselines.policy import Policy
from serving_gym.calibration.fields import check_at_least, check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.registration import Environment
from serving_gym.runners.command_line.cli import command
from serving_gym.runners.configuration.policies import load_policies, load_policy
from serving_gym.runners.configuration.schema import EnvironmentConfig
from serving_gym.runners.replaying.choices import Choices, choices_of
from serving_gym.runners.replaying.estimate import MODELS, Logged, Settings, estimates
from serving_gym.runners.replaying.log import UNKNOWN, Log, log_file, read_log
from serving_gym.runners.replaying.outcomes import Outcomes, recorded_outcomes, seen_outcomes
from serving_gym.runners.replaying.recording import Exploring
from serving_gym.runners.replaying.setting import Run, names_setting, run_of
from serving_gym.runners.replaying.twin import LOGGED, recorded_twin, run_twin, seen_twin
from serving_gym.runners.reporting.output import write_json, write_parquet
from serving_gym.runners.reporting.tables import print_results_in, print_table

ANSWERED, FALLBACK = "policy as served", "fallback as served"
_FEWEST = 50  # decisions with a known cost


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
        if self.env["name"] != "routing":
            raise ValueError(f"env={self.env['name']} cannot be replayed; env=routing can")


@command("replay", ReplayConfig)
def _replay(config: ReplayConfig, out: Path) -> None:
    """Runs the command."""
    file = log_file(Path(config.log))
    run = run_of(file)
    environment = config.environment
    if run.environment is not None and not names_setting(HydraConfig.get().overrides.task):
        environment = run.environment
    if environment.name != "routing":
        raise ValueError(f"log={config.log} is of env={environment.name}; env=routing is replayed")
    env: Any = environment.make().unwrapped
    spec, most = env.policy_spec, config.most_cost
    policies = load_policies(config.policies, env, "routing")
    log = read_log(file, len(spec.fleet), spec.slos, env.config.num_rows, config.decisions)
    outcomes = _outcomes(log, run, spec.slos, most)
    choices = choices_of(policies, log, env, config.seed)
    actions = choices.actions | _served(log)
    found: dict[str, Any] = _header(log, outcomes, environment, choices)
    found |= _estimates(config, log, outcomes, choices, actions)
    if config.twin:
        found["twin"] = _twin(config, environment, env, run, log, outcomes, policies, out)
    write_json(out / "replay.json", found)
    columns = {"episode": log.episode, "index": log.index, "taken": log.taken, "propensity": log.propensity}
    write_parquet(out / "choices.parquet", pd.DataFrame(columns | {"cost": outcomes.cost} | actions))
    _print(found)
    print_results_in(out)


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command; the log may stand by itself."""
    given = list(sys.argv[1:] if words is None else words)
    logs = [word for word in given if "=" not in word and not word.startswith("-")]
    rest = [word for word in given if word not in logs]
    return _replay([*rest, *(f"log={log}" for log in logs)])


def _outcomes(log: Log, run: Run, slos: Sequence[Any], most: float) -> Outcomes:
    if run.requests is not None and "seed" in run.requests and (log.seed != UNKNOWN).all():
        return recorded_outcomes(log, run.requests, slos, most)
    return seen_outcomes(log, slos, most)


def _served(log: Log) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """What a serving process wrote down: its policy's answers, and the fallback rule's choices."""
    if (log.fallback == UNKNOWN).all():
        return {}
    return {ANSWERED: log.answered, FALLBACK: log.fallback}


def _header(log: Log, outcomes: Outcomes, environment: Environment, choices: Choices) -> dict[str, Any]:
    known = ~np.isnan(outcomes.cost)
    return {
        "env": environment.name,
        "logged_policies": list(log.policies),
        "decisions": len(log),
        "episodes": int(log.episode.max()) + 1,
        "with_cost": int(known.sum()),
        "cost": {"mean": float(outcomes.cost[known].mean()) if known.any() else None,
                 "most": outcomes.most, "capped": outcomes.capped, "source": outcomes.source},
        "random_decisions": int((log.propensity < 1.0 - 1e-9).sum()),
        "skipped_lines": log.skipped,
        "cut_off": log.cut_off,
        "failures": choices.failures,
    }  # fmt: skip


def _estimates(
    config: ReplayConfig, log: Log, outcomes: Outcomes, choices: Choices, actions: Mapping[str, Any]
) -> dict[str, Any]:
    used = ~np.isnan(outcomes.cost) & (log.taken != UNKNOWN)
    agreement = {
        name: float((chosen == log.taken)[log.taken != UNKNOWN].mean())
        if (log.taken != UNKNOWN).any()
        else None
        for name, chosen in actions.items()
    }
    if used.sum() < _FEWEST:
        note = (
            f"Only {used.sum()} decisions have a known action and cost; an estimate needs at least {_FEWEST}."
        )
        return {
            "policies": {name: {"agreement": share} for name, share in agreement.items()},
            "note": note,
        }
    chosen = {}
    for name, action in actions.items():
        known = np.where(
            action == UNKNOWN, log.taken, action
        )  # where a policy failed, the log's own action stays
        chosen[name] = known[used], choices.features(log, known)[used]
    logged = Logged(
        outcomes.cost[used],
        log.taken[used],
        log.propensity[used],
        log.episode[used],
        choices.features(log, log.taken)[used],
    )
    found = estimates(logged, chosen, Settings(config.model, config.clip, config.seed))
    return {"policies": {name: found[name] | {"agreement": agreement[name]} for name in actions}, "note": ""}


def _twin(
    config: ReplayConfig,
    environment: Environment,
    env: Any,
    run: Run,
    log: Log,
    outcomes: Outcomes,
    policies: Mapping[str, Policy],
    out: Path,
) -> dict[str, Any]:
    slos = env.policy_spec.slos
    try:
        if run.policy is not None and (log.seed != UNKNOWN).all():
            own = load_policy(run.policy, "routing")
            baseline: Any = Exploring(own, run.explore, env.config.num_rows)
            baseline.name = log.policies[0]
            twin = recorded_twin(environment, sorted(set(log.seed.tolist())), baseline)
        else:
            twin = seen_twin(environment, env.core.classes, log, outcomes, out / "requests_of_log.parquet")
    except ValueError as error:
        return {"described": "", "why_not": str(error)}
    return {"described": twin.described, "policies": run_twin(twin, policies, slos, config.most_cost)}


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
