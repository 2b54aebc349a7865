"""Counterfactual rollouts of DP/TP: returns of a few layouts at sampled states."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.agents.environments.dp_tp.memory import TrafficMemory
from serving_gym.agents.environments.dp_tp.score_policy import (
    Observation,
    Options,
    ScorePolicy,
    find_options,
    known_state,
    next_step,
)
from serving_gym.agents.environments.dp_tp.surge import SurgeWatch
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import Batch
from serving_gym.agents.learners.api.episode_counterfactuals import EpisodeCounterfactuals
from serving_gym.agents.learners.api.start import Start, compared
from serving_gym.agents.learners.learner import Budget, Task
from serving_gym.envs.base.lazy_observation import LazyObservation
from serving_gym.envs.base.vector_env import MAX_SEED
from serving_gym.envs.dp_tp.env import DPTPEnv
from serving_gym.envs.dp_tp.episode import DPTPEpisode
from serving_gym.envs.interface.layout import Layout

FloatArray = NDArray[np.float32]


class DPTPCounterfactuals(EpisodeCounterfactuals[DPTPEpisode, ScorePolicy]):
    """Plays one episode after another; at sampled states it is forked once for each candidate layout.

    The first state of an episode is always sampled: nothing is known yet, a layout costs nothing to begin with, and it
    tells most where traffic does not last.

    A rollout keeps to its layout for `commit` intervals and then follows the present policy; one that begins with what
    the policy to start from says follows on at once. Without such a policy the first rollouts keep the layout. Where
    `surges` count, states of a surge are all sampled, and rollouts decide as soon as there is one.

    Arguments are those of `EpisodeCounterfactuals`, less the environment.
    """

    policy_class = ScorePolicy

    def __init__(self, config: APIConfig, task: Task, rng: np.random.Generator) -> None:
        super().__init__(DPTPEnv(**task.training_arguments), config, task, rng)
        self.memory, self.watch = TrafficMemory(config.memory_s), SurgeWatch()
        self._heading: Layout | None = None  # where chance leads in more than one step
        self._lingers_until_s = 0.0  # what chance has begun with is kept to
        self._arrays, self._rollout_arrays = self._new_arrays(), self._new_arrays()

    def _new_arrays(self) -> dict[str, FloatArray]:
        return {name: np.empty(box.shape or (), np.float32) for name, box in self.observation.items()}

    def play(self, budget: Budget, batch: Batch) -> None:
        """Takes one decision, by the current policy or at random, and sometimes samples its state."""
        core = self.core
        if core.done:
            core.reset(int(self.rng.integers(MAX_SEED)))
            self.memory.reset()
            self.watch.reset()
            self._heading, self._lingers_until_s = None, 0.0
            if self.start is not None:
                self.start.reset(self.spec, int(self.rng.integers(MAX_SEED)))
        observation = _observed(core, self._arrays)
        known = known_state(observation, core.state, self.memory)
        options = self._options(core, observation, self.start, self.memory)
        chosen = self._choose(known, options)
        number = len(options.actions)
        first = core.state.now_s == 0.0
        surge = self.config.surges and self.watch.rises(_in_system(core))
        if number > 1 and (first or surge or self.samples()):
            budget.count(self._sample(known, options, chosen, batch))
        core.step(self._explored(options, chosen))
        budget.count(1)

    def _explored(self, options: Options, chosen: int) -> Any:
        """What is done: the choice, or what chance has begun with, to its end. First layouts are chance's at first."""
        state = self.core.state
        first = self.present is None and self.start is None and state.now_s == 0.0
        if first or self.explores():
            chosen = int(self.rng.integers(len(options.actions)))
            self._heading = options.wanted[chosen]
            if self.config.linger_s:
                self._lingers_until_s = state.now_s + self.rng.exponential(self.config.linger_s)
        elif self._heading is not None and self._heading != state.layout:
            return next_step(state, self._heading)
        elif state.now_s < self._lingers_until_s:
            chosen = options.stay
        else:
            self._heading = None
        return options.command(chosen, state)

    def _choose(self, known: FloatArray, options: Options) -> int:
        """Row that the present policy takes."""
        if self.present is not None:
            return self.present.choose(known, options)
        return options.stay if self.start is None else len(options.actions) - 1

    def _sample(self, known: FloatArray, options: Options, chosen: int, batch: Batch) -> int:
        """Adds the present state, with the returns of some of its actions; returns the decisions that took."""
        usual = options.stay if self.start is None else len(options.actions) - 1
        musts = sorted({usual, chosen})
        tried = compared(options.features, musts, self.config.candidates, self.rng, self.start is not None)
        if len(tried) < 2:
            return 0
        keeps = [self.start is None or row != usual for row in tried]
        batch.add(
            known,
            options.features[tried],
            np.array(
                [
                    self._rollout(options.command(row, self.core.state), options.wanted[row], kept)
                    for row, kept in zip(tried, keeps, strict=True)
                ]
            ),
            tried.index(chosen),
        )
        return len(tried) * (1 + self.config.horizon // self.config.stride)

    def _rollout(self, action: Any, wanted: Layout | None, keeps: bool = True) -> float:
        """Return of an action, followed by the present policy, on the arrivals of the episode.

        Args:
            action: What is done first.
            wanted: Where it leads in more than one step; None: in one.
            keeps: Whether it is kept to for `commit` intervals.
        """
        core, memory = self.core.fork(), self.memory.fork()
        start = None if self.start is None else self.start.fork()
        watch = SurgeWatch(_in_system(self.core)) if self.config.surges else None
        interval_s = core.config.decision_interval_s
        begin_s = core.state.now_s
        end_s = begin_s + self.config.horizon * interval_s
        commit_s = begin_s + self.config.commit * interval_s if keeps else begin_s
        if self.present is None and start is None:
            commit_s = end_s
        total, surge = _passed(core, action, interval_s, watch)
        memory.watch(core.state)
        while not core.done and core.state.now_s < end_s - 1e-9:
            if surge and commit_s < end_s:
                commit_s = begin_s
            if core.state.now_s < commit_s - 1e-9:
                span_s = min(commit_s, end_s) - core.state.now_s
                command = None
                if wanted is not None and core.state.layout != wanted:
                    span_s, command = min(interval_s, span_s), next_step(core.state, wanted)
            else:
                span_s, command = self.config.stride * interval_s, self._next(core, start, memory)
            reward, surge = _passed(core, command, span_s, watch)
            memory.watch(core.state)
            total += reward
        return total

    def _next(self, core: DPTPEpisode, start: Start | None, memory: TrafficMemory) -> Any:
        """The action of the current policy in a rollout."""
        if start is not None and self.follows_start(start):
            return start.act(LazyObservation(lambda: _observed(core, self._new_arrays())), core.state)
        assert self.present is not None
        observation = _observed(core, self._rollout_arrays)
        known = known_state(observation, core.state, memory)
        options = self._options(core, observation, start, memory)
        return options.command(self.present.choose(known, options), core.state)

    def _options(
        self, core: DPTPEpisode, observation: Observation, start: Start | None, memory: TrafficMemory
    ) -> Options:
        merges = memory.may_merge(core.state.now_s, self.config.dwell_s)
        return find_options(observation, core.state, core.mask(), start, self.config.even, merges)


def _passed(core: DPTPEpisode, action: Any, span_s: float, watch: SurgeWatch | None) -> tuple[float, bool]:
    """Carries out an action and lets time pass, to a surge at most where one is watched for.

    Args:
        core: An episode.
        action: What is done.
        span_s: Most seconds that pass.
        watch: Hears of each interval; None: surges do not matter.

    Returns:
        What came of it, and whether there is a surge.
    """
    if watch is None:
        return core.step(action, span_s).reward, False
    end_s, total, surge = core.simulator.now_s + span_s, 0.0, False
    while not core.done and not surge and core.simulator.now_s < end_s - 1e-9:
        total += core.step(action, min(core.config.decision_interval_s, end_s - core.simulator.now_s)).reward
        surge, action = watch.rises(_in_system(core)), None
    return total, surge


def _in_system(core: DPTPEpisode) -> int:
    """Requests that have arrived and not gone."""
    return int(core.simulator.world.cluster["num_in_flight"][0])


def _observed(core: DPTPEpisode, arrays: dict[str, FloatArray]) -> Observation:
    """What is seen, written into arrays."""
    core.observe_into(arrays["engines"], arrays["cluster"])
    return arrays
