"""The training loop: rounds of a learner, validation, best checkpoint, and saves to resume from."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
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
from serving_gym.envs.base.placement import PlacementVectorEnv
from serving_gym.envs.interface.metrics import to_jsonable
from serving_gym.envs.registration import Environment
from serving_gym.runners.configuration.train_config import TrainConfig
from serving_gym.runners.configuration.typed import field_values
from serving_gym.runners.reporting.output import write_jsonl
from serving_gym.runners.reporting.trackers import Tracker
from serving_gym.runners.rollouts.rollout import Episode, VectorEpisode, run_episode, run_vector_episodes
from serving_gym.runners.tuning.tuned_file import typed_command

METRICS, PROGRESS = "metrics.jsonl", "progress.json"
VECTOR_ENVS = ("routing", "sharing")  # environments whose episodes one call of the kernel steps together
_LEAST_COST = 1e-9  # reward


class Training:
    """One training run in its directory.

    Args:
        config: Configuration of the command.
        learner: The learner.
        out: Run directory.
    """

    def __init__(self, config: TrainConfig, learner: Learner, out: Path) -> None:
        self.config, self.learner, self.out = config, learner, out
        self.budget = Budget(config.steps, config.minutes)
        self.best_return, self.best_steps, self.validations = -np.inf, 0, 0
        self.start_steps: int | None = None  # of the first policy on these validation episodes
        self.start_actions = self.best_actions = ""  # digests of its decisions in them
        self.last_return = np.nan
        arguments = {**config.environment.arguments, "split": "validation"}
        self.settings = [
            Environment.of(config.env["name"], each) for each in config.agent_config.places(arguments)
        ]
        self.settings += [each.changed(split="validation") for each in config.validation_fleets.values()]
        self.envs: list[Any] = [setting.make() for setting in self.settings]
        self._vector_env = self._make_vector_env()
        self.first_costs: list[float] = []  # of a validation episode in each environment, before training
        if config.resume is not None:
            self._restore()
        else:
            (out / METRICS).write_text("", encoding="utf-8")

    def run(self, tracker: Tracker, bar: tqdm[Any]) -> None:
        """Trains until the budget is used up; data collected by then is still learned from.

        Raises:
            KeyboardInterrupt: the user stopped it; the training state is saved.
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
        """Compiles the kernel for validation, outside of the time budget: begins an episode and decides once."""
        (env, *_), policy = self.envs, self.learner.policy()
        observation, _ = env.reset(seed=0)
        policy.reset(env.unwrapped.policy_spec, 0)
        env.step(policy.act(observation, env.unwrapped.state))

    @property
    def validation_jobs(self) -> list[tuple[int, int]]:
        """Seed and environment of each validation episode."""
        count = max(self.config.validation_seeds, len(self.envs))
        return [(seed, seed % len(self.envs)) for seed in range(count)]

    @property
    def improved(self) -> bool:
        """Whether the best policy decides differently from the first one on the validation episodes."""
        return self.best_steps != self.start_steps and self.best_actions != self.start_actions

    def validation_return(self, returns: Sequence[float]) -> float:
        """Mean return over the validation episodes.

        With several environments, each return is divided by the mean cost of an episode there before training.

        Args:
            returns: In the order of `validation_jobs`.
        """
        if len(self.envs) == 1:
            return float(np.mean(returns))
        settings = [setting for _, setting in self.validation_jobs]
        return float((np.asarray(returns) / np.array(self.first_costs)[settings]).mean())

    def validation_rows(self) -> list[dict[str, Any]]:
        """Validations of this run on its present episodes, from `metrics.jsonl`, one for each step."""
        lines = (self.out / METRICS).read_text(encoding="utf-8").splitlines()
        rows = [row for row in map(_parsed, lines) if row and row["kind"] == "validation"]
        return list({row["steps"]: row for row in rows if row["steps"] >= (self.start_steps or 0)}.values())

    def _validate(self, tracker: Tracker) -> None:
        """Evaluates the policy on the validation episodes and saves it if it is the best so far."""
        episodes = self._validation_episodes()
        returns = [episode.metrics["return"] for episode in episodes]
        self.validations = int(self.budget.progress * self.config.validations) + 1
        if len(self.envs) > 1 and not self.first_costs:
            self.first_costs = [
                max(float(np.abs(returns[place :: len(self.envs)]).mean()), _LEAST_COST)
                for place in range(len(self.envs))
            ]
        figures: dict[str, float] = {
            name: float(np.mean([episode.metrics[name] for episode in episodes]))
            for name in ("return", "slo_attainment", "ttft_p99_s", "tpot_p50_s")
            if name in episodes[0].metrics
        }
        figures["return"] = self.last_return = self.validation_return(returns)
        self._keep_if_best(_digest([episode.actions for episode in episodes]))
        self._record("validation", {**figures, "best_return": self.best_return}, tracker)

    def _keep_if_best(self, actions: str) -> None:
        """Saves the policy if its return is the highest so far and its decisions differ from the best one's."""
        if self.start_steps is None:
            self.start_steps, self.start_actions = self.budget.steps, actions
        if self.last_return > self.best_return and actions != self.best_actions:
            self.best_return, self.best_steps, self.best_actions = (
                self.last_return,
                self.budget.steps,
                actions,
            )
            with replacing(self.out / CHECKPOINT) as folder:
                self._write_policy(folder)

    def _make_vector_env(self) -> PlacementVectorEnv | None:
        """A vector environment of all validation episodes, if one call of the kernel steps all of them."""
        name, count = self.config.env["name"], len(self.validation_jobs)
        if len(self.envs) > 1 or count == 1 or name not in VECTOR_ENVS:
            return None
        env: Any = self.settings[0].make_vector(count, autoreset_mode=AutoresetMode.DISABLED)
        return cast(PlacementVectorEnv, env)

    def _validation_episodes(self) -> Sequence[Episode | VectorEpisode]:
        """Runs the present policy on every validation episode."""
        jobs = self.validation_jobs
        if self._vector_env is not None:
            policies = [self.learner.policy() for _ in jobs]
            spec = self.envs[0].unwrapped.policy_spec
            episodes = run_vector_episodes(self._vector_env, policies, spec, [seed for seed, _ in jobs])
            if episodes is not None:
                return episodes
            self._vector_env = None
        policy = self.learner.policy()
        return [run_episode(self.envs[setting], policy, seed) for seed, setting in jobs]

    def _record(self, kind: str, figures: Mapping[str, float], tracker: Tracker) -> None:
        """Logs to `metrics.jsonl` and to the tracker."""
        steps = self.budget.steps
        row = {"kind": kind, "steps": steps, "minutes": round(self.budget.elapsed_s / 60.0, 4), **figures}
        with (self.out / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(to_jsonable(row), allow_nan=False) + "\n")
        tracker.log({f"{kind}/{name}": value for name, value in figures.items()}, steps)

    def _save_last(self) -> None:
        """Saves the state to resume from."""
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
                "start_steps": self.start_steps,
                "start_actions": self.start_actions,
                "best_actions": self.best_actions,
            }
            (folder / PROGRESS).write_text(json.dumps(state), encoding="utf-8")

    def _restore(self) -> None:
        """Restores the last save; later log entries are dropped."""
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
        self.start_steps = state.get("start_steps", 0)
        self.start_actions, self.best_actions = (
            state.get(f"{which}_actions", "") for which in ("start", "best")
        )
        of_others = len(self.first_costs) != (len(self.envs) if len(self.envs) > 1 else 0)
        if of_others or read_config(folder)["workload"] != plain(self.config.workload):
            self.best_return, self.first_costs = -np.inf, []  # the best return was on other episodes
            self.start_steps, self.start_actions, self.best_actions = None, "", ""
        path = self.out / METRICS
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        write_jsonl(path, [row for row in map(_parsed, lines) if row and row["steps"] <= self.budget.steps])

    def _bring(self, came_from: Path) -> None:
        """Copies the state of a run, to continue it in this directory."""
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
        }
        results = {
            "validation return": self.last_return,
            "validation episodes": len(self.validation_jobs),
        }
        write_description(
            folder, field_values(config), observation, action, figures, results, typed_command("train")
        )


def _digest(actions: Sequence[Sequence[Any]]) -> str:
    """Digest of the decisions of several episodes: equal if two policies decide the same."""
    return hashlib.sha256(json.dumps(to_jsonable(actions)).encode()).hexdigest()


def _parsed(line: str) -> dict[str, Any] | None:
    """A line of metrics, or None for an incomplete line of a killed process."""
    try:
        row: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return row
