"""What a log and the choices of policies in it come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.policy import Policy
from serving_gym.envs.registration import Environment
from serving_gym.runners.replaying.choices import Choices, choices_of
from serving_gym.runners.replaying.estimate import Logged, Settings, estimates
from serving_gym.runners.replaying.log import UNKNOWN, Coder, Log, read_log
from serving_gym.runners.replaying.outcomes import Outcomes, no_outcomes, recorded_outcomes, seen_outcomes
from serving_gym.runners.replaying.setting import Run
from serving_gym.runners.serving.served import served_environment

ANSWERED, FALLBACK = "policy as served", "fallback as served"
FEWEST = 50  # decisions with a known cost


@dataclass(frozen=True)
class Analysis:
    """A log, and what policies choose in it.

    Attributes:
        environment: Setting of the log.
        env: Its environment.
        log: The log.
        outcomes: Costs of the logged requests.
        choices: Choices of the policies.
        actions: By policy, theirs and those that a serving process wrote down.
    """

    environment: Environment
    env: Any
    log: Log
    outcomes: Outcomes
    choices: Choices
    actions: dict[str, NDArray[np.int64]]

    @classmethod
    def of(
        cls,
        file: Path,
        run: Run,
        environment: Environment,
        env: Any,
        policies: Mapping[str, Policy],
        most_cost: float,
        decisions: int,
        seed: int = 0,
        newest: bool = False,
    ) -> Analysis:
        """Reads a log and asks policies in its states.

        Args:
            file: The log.
            run: The run that wrote it.
            environment: Its setting.
            env: The environment of that setting.
            policies: By name.
            most_cost: Highest cost of a request.
            decisions: Most decisions to read.
            seed: Of the policies, where the log has none.
            newest: Whether to read the last decisions, not the first.

        Raises:
            ValueError: It is no log of that setting.
        """
        coder = Coder(served_environment(environment.name, env))
        log = read_log(file, coder, decisions, run.assignment, newest)
        choices = choices_of(policies, log, coder, seed)
        served = {} if (log.fallback == UNKNOWN).all() else {ANSWERED: log.answered, FALLBACK: log.fallback}
        outcomes = _outcomes(log, run, environment, env, most_cost)
        return cls(environment, env, log, outcomes, choices, choices.actions | served)

    def header(self) -> dict[str, Any]:
        """What the log holds."""
        log, cost = self.log, self.outcomes.cost
        known = ~np.isnan(cost)
        return {
            "env": self.environment.name,
            "logged_policies": list(log.policies),
            "decisions": len(log),
            "episodes": int(log.episode.max()) + 1,
            "seconds": float(np.sum(np.diff(log.now_s)[np.diff(log.episode) == 0])),
            "with_cost": int(known.sum()),
            "cost": {
                "mean": float(cost[known].mean()) if known.any() else None,
                "most": self.outcomes.most,
                "capped": self.outcomes.capped,
                "source": self.outcomes.source,
            },
            "random_decisions": int((log.propensity < 1.0 - 1e-9).sum()),
            "skipped_lines": log.skipped,
            "cut_off": log.cut_off,
            "failures": self.choices.failures,
        }

    def estimates(self, settings: Settings) -> dict[str, Any]:
        """Agreement of each policy with the log, and its estimated gains where costs are known.

        Args:
            settings: How to estimate.
        """
        log, cost = self.log, self.outcomes.cost
        done = log.taken != UNKNOWN
        agreement = {
            name: float((chosen == log.taken)[done].mean()) if done.any() else None
            for name, chosen in self.actions.items()
        }
        used = ~np.isnan(cost) & done
        if used.sum() < FEWEST:
            return {
                "policies": {name: {"agreement": share} for name, share in agreement.items()},
                "note": self._why_none(int(used.sum())),
            }
        features = self.choices.features
        chosen = {}
        for name, action in self.actions.items():
            known = np.where(action == UNKNOWN, log.taken, action)  # where it failed, the log's action stays
            chosen[name] = known[used], features(log, known)[used]
        logged = Logged(
            cost[used],
            log.taken[used],
            log.propensity[used],
            log.episode[used],
            features(log, log.taken)[used],
        )
        found = estimates(logged, chosen, settings, FALLBACK if FALLBACK in chosen else None)
        return {
            "policies": {name: found[name] | {"agreement": agreement[name]} for name in self.actions},
            "note": "",
        }

    def _why_none(self, used: int) -> str:
        if self.environment.name != "routing":
            return f"Gains are estimated in env=routing alone; a log of env={self.environment.name} has no costs."
        return f"Only {used} decisions have a known action and cost; an estimate needs at least {FEWEST}."


def _outcomes(log: Log, run: Run, environment: Environment, env: Any, most: float) -> Outcomes:
    if environment.name != "routing":
        return no_outcomes(log, most)
    slos = env.policy_spec.slos
    if run.requests is not None and "seed" in run.requests and (log.seed != UNKNOWN).all():
        return recorded_outcomes(log, run.requests, slos, most)
    return seen_outcomes(log, slos, most)
