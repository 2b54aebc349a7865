"""The training loop: rounds of a learner, validation, the best policy kept, and everything saved to go on from."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from tqdm import tqdm

from serving_gym.agents.checkpoint import (
    CHECKPOINT,
    LAST,
    plain,
    read_config,
    replacing,
    standing,
    write_description,
)
from serving_gym.agents.learners.learner import Budget, Learner
from serving_gym.envs.interface.metrics import to_jsonable
from serving_gym.envs.registration import make_env
from serving_gym.runners.configuration.train_config import TrainConfig
from serving_gym.runners.reporting.output import write_jsonl
from serving_gym.runners.reporting.trackers import Tracker
from serving_gym.runners.rollouts.rollout import run_episode

METRICS, PROGRESS = "metrics.jsonl", "progress.json"
_LEAST_COST = 1e-9  # reward


class Training:
    """One training run in its directory.

    Args:
        config: What was asked for.
        learner: What learns.
        out: The run's directory.
    """

    def __init__(self, config: TrainConfig, learner: Learner, out: Path) -> None:
        self.config, self.learner, self.out = config, learner, out
        self.budget = Budget(config.steps, config.minutes)
        self.best_return, self.best_steps, self.validations = -np.inf, 0, 0
        self.last_return = np.nan
        arguments = {**config.environment.arguments, "split": "validation"}
        self.envs: list[Any] = [
            make_env(config.env["name"], **place) for place in config.agent_config.places(arguments)
        ]
        self.first_costs: list[float] = []  # of a validation episode in each environment, before training
        if config.resume is not None:
            self._restore()
        else:
            (out / METRICS).write_text("", encoding="utf-8")

    def run(self, tracker: Tracker, bar: tqdm[Any]) -> None:
        """Trains until the budget is used up; what is left to learn from then is learned from, whatever time it takes.

        Raises:
            KeyboardInterrupt: the user stopped it; what was learned is saved.
        """

        def show(progress: float) -> None:
            bar.n = int(100 * progress)
            bar.set_postfix_str(
                f"{self.budget.steps:,} steps, validation {self.last_return:.4g}", refresh=False
            )
            bar.update(0)

        self._compile()
        self.budget.on_progress = show
        self.budget.started_s = saved_s = time.monotonic()
        try:
            if self.validations == 0:
                self._validate(tracker)
                self._save_last()
            tried = True
            while not self.budget.over:
                self._record("train", self.learner.improve(self.budget), tracker)
                tried = False
                if self.budget.progress * self.config.validations >= self.validations or self.budget.over:
                    self._validate(tracker)
                    tried = True
                elif time.monotonic() - saved_s < self.config.save_every_s:
                    continue
                self._save_last()
                saved_s = time.monotonic()
            if figures := self.learner.finish(self.budget):
                self._record("train", figures, tracker)
            if figures or not tried:
                self._validate(tracker)
                self._save_last()
        except KeyboardInterrupt:
            self._save_last()
            raise

    def _compile(self) -> None:
        """Compiles what a validation episode needs, which is no training: begins one and decides once."""
        (env, *_), policy = self.envs, self.learner.policy()
        observation, _ = env.reset(seed=0)
        policy.reset(env.unwrapped.policy_spec, 0)
        env.step(policy.act(observation, env.unwrapped.state))

    def _validate(self, tracker: Tracker) -> None:
        """Tries the policy on the validation episodes and keeps it if it is the best so far.

        Where they are of several environments, each counts in shares of what an episode cost there before training.
        """
        policy = self.learner.policy()
        places = [seed % len(self.envs) for seed in range(max(self.config.validation_seeds, len(self.envs)))]
        episodes = [run_episode(self.envs[place], policy, seed) for seed, place in enumerate(places)]
        figures: dict[str, float] = {
            name: float(np.mean([episode.metrics[name] for episode in episodes]))
            for name in ("return", "slo_attainment", "ttft_p99_s", "tpot_p50_s")
            if name in episodes[0].metrics
        }
        self.validations = int(self.budget.progress * self.config.validations) + 1
        if len(self.envs) > 1:
            returns = np.array([episode.metrics["return"] for episode in episodes])
            costs = [
                float(np.abs(returns[np.equal(places, place)]).mean()) for place in range(len(self.envs))
            ]
            self.first_costs = self.first_costs or [max(cost, _LEAST_COST) for cost in costs]
            figures["return"] = float((returns / np.array(self.first_costs)[places]).mean())
        self.last_return = figures["return"]
        if self.last_return > self.best_return:
            self.best_return, self.best_steps = self.last_return, self.budget.steps
            with replacing(self.out / CHECKPOINT) as folder:
                self._write_policy(folder)
        self._record("validation", {**figures, "best_return": self.best_return}, tracker)

    def _record(self, kind: str, figures: Mapping[str, float], tracker: Tracker) -> None:
        """Appends a line to `metrics.jsonl`, and tells the tracker."""
        steps = self.budget.steps
        row = {"kind": kind, "steps": steps, "minutes": round(self.budget.elapsed_s / 60.0, 4), **figures}
        with (self.out / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(to_jsonable(row), allow_nan=False) + "\n")
        tracker.log({f"{kind}/{name}": value for name, value in figures.items()}, steps)

    def _save_last(self) -> None:
        """Saves what is needed to go on."""
        with replacing(self.out / LAST) as folder:
            self._write_policy(folder)
            self.learner.save_training(folder)
            state = {
                "steps": self.budget.steps,
                "elapsed_s": self.budget.elapsed_s,
                "best_return": self.best_return,
                "best_steps": self.best_steps,
                "validations": self.validations,
                "last_return": self.last_return,
                "first_costs": self.first_costs,
            }
            (folder / PROGRESS).write_text(json.dumps(state), encoding="utf-8")

    def _restore(self) -> None:
        """Goes on where the last save was; what was logged after it is dropped."""
        came_from = Path(str(self.config.resume))
        if came_from.resolve() != self.out.resolve():
            self._bring(came_from)
        folder = standing(self.out / LAST)
        self.learner.restore(folder)
        state = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
        self.budget.steps, self.budget.spent_s = state["steps"], state["elapsed_s"]
        self.best_return, self.best_steps = state["best_return"], state["best_steps"]
        self.validations, self.last_return = state["validations"], state["last_return"]
        self.first_costs = state.get("first_costs", [])
        of_others = len(self.first_costs) != (len(self.envs) if len(self.envs) > 1 else 0)
        if of_others or read_config(folder)["workload"] != plain(self.config.workload):
            self.best_return, self.first_costs = -np.inf, []  # what was best was so on other episodes
        path = self.out / METRICS
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        write_jsonl(path, [row for row in map(_parsed, lines) if row and row["steps"] <= self.budget.steps])

    def _bring(self, came_from: Path) -> None:
        """Copies what a run is at, to go on with it here."""
        for name in (CHECKPOINT, LAST):
            shutil.copytree(standing(came_from / name), self.out / name)
        if (came_from / METRICS).is_file():
            shutil.copy(came_from / METRICS, self.out / METRICS)

    def _write_policy(self, folder: Path) -> None:
        self.learner.save_policy(folder)
        observation, action = self.envs[0].observation_space, self.envs[0].action_space
        assert isinstance(observation, spaces.Dict)
        assert isinstance(action, spaces.Discrete | spaces.MultiDiscrete)
        config = self.config
        figures = {
            "steps": self.budget.steps,
            "minutes": self.budget.elapsed_s / 60.0,
            "seed": config.seed,
            "validation return": self.last_return,
            "validation episodes": max(config.validation_seeds, len(self.envs)),
        }
        write_description(folder, vars(config), observation, action, figures)


def _parsed(line: str) -> dict[str, Any] | None:
    """A line of metrics, or None for one that a killed process left unfinished."""
    try:
        row: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return row
