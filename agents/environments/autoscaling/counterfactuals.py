"""Counterfactual rollouts of autoscaling: returns of a few actions at one endpoint, at sampled states."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.agents.environments.autoscaling.features import Actions, encode_actions, encode_state
from serving_gym.agents.environments.autoscaling.policy import (
    LeversPolicy,
    Observation,
    Options,
    find_options,
)
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import Batch
from serving_gym.agents.learners.api.episode_counterfactuals import EpisodeCounterfactuals
from serving_gym.agents.learners.api.start import Start, compared
from serving_gym.agents.learners.learner import Budget, Task
from serving_gym.envs.autoscaling.action import LEVERS
from serving_gym.envs.autoscaling.env import AutoscalingEnv
from serving_gym.envs.autoscaling.episode import AutoscalingEpisode
from serving_gym.envs.base.lazy_observation import LazyObservation
from serving_gym.envs.base.vector_env import MAX_SEED


class AutoscalingCounterfactuals(EpisodeCounterfactuals[AutoscalingEpisode, LeversPolicy]):
    """Plays one episode after another; at sampled states it is forked once for each of a few actions.

    A sampled state is an endpoint's, drawn at random: there the actions differ, at the others the present policy's
    stands. A rollout leaves all as its action made it for `commit` decisions, for an instance that is stopped again at
    once shows nothing, and follows the present policy from there; one that begins with what the policy to start from
    says follows on at once. Without such a policy the first rollouts leave all as it is. Requests that still wait in
    the queue manager's lines when a rollout ends are charged as at the end of an episode, or to hold them would look
    free.

    Arguments are those of `EpisodeCounterfactuals`, less the environment.
    """

    policy_class = LeversPolicy

    def __init__(self, config: APIConfig, task: Task, rng: np.random.Generator) -> None:
        super().__init__(
            AutoscalingEnv(**{**task.training_arguments, "keep_records": False}), config, task, rng
        )

    def play(self, budget: Budget, batch: Batch) -> None:
        """Takes one decision, by the current policy or at random, and sometimes samples its state."""
        episode = self.core
        if episode.done:
            episode.reset(int(self.rng.integers(MAX_SEED)))
            if self.start is not None:
                self.start.reset(self.spec, int(self.rng.integers(MAX_SEED)))
        observation = episode.observe()
        possible = self._options(episode, observation, self.start)
        chosen = self._choose(episode, observation, possible)
        if self.samples():
            budget.count(self._sample(observation, possible, chosen, batch))
        if self.explores():
            chosen = [int(self.rng.integers(len(rows))) for rows in possible.rows]
        episode.step(possible.action(chosen))
        budget.count(1)

    def _options(self, episode: AutoscalingEpisode, observation: Observation, start: Start | None) -> Options:
        state = None if start is None else episode.state
        return find_options(episode.mask(), self.action, start, observation, state, episode.spec)

    def _choose(self, episode: AutoscalingEpisode, observation: Observation, possible: Options) -> list[int]:
        """(P,) rows that the present policy takes."""
        if self.present is not None:
            return self.present.choose(observation, possible)
        if possible.started:
            return list(possible.usual)
        return _plain(episode, possible)

    def _sample(self, observation: Observation, possible: Options, chosen: list[int], batch: Batch) -> int:
        """Adds the state of an endpoint, with the returns of some actions there; returns the decisions that took."""
        endpoint = int(self.rng.integers(len(possible.rows)))
        rows = possible.rows[endpoint]
        usual = possible.usual if possible.started else _plain(self.core, possible)
        musts = sorted({usual[endpoint], chosen[endpoint]})
        features = encode_actions(observation, endpoint, rows, self.action, possible.started)
        tried = compared(features, musts, self.config.candidates, self.rng, possible.started)
        if len(tried) < 2:
            return 0
        returns = []
        for row in tried:
            varied = [row if number == endpoint else own for number, own in enumerate(chosen)]
            keeps = not (possible.started and row == usual[endpoint])
            returns.append(self._rollout(possible.action(varied), keeps))
        batch.add(
            encode_state(observation, endpoint),
            features[tried],
            np.array(returns),
            tried.index(chosen[endpoint]),
        )
        return len(tried) * self.config.horizon

    def _rollout(self, action: Any, keeps: bool = True) -> float:
        """Return of an action, followed by the present policy, on the arrivals of the episode.

        Args:
            action: What is done first.
            keeps: Whether it is kept to for `commit` decisions.
        """
        episode = self.core.fork()
        start = None if self.start is None else self.start.fork()
        interval_s, horizon = episode.config.decision_interval_s, self.config.horizon
        stays = self.present is None and start is None
        held = horizon if stays else min(self.config.commit, horizon) if keeps else 1
        total = episode.step(action, held * interval_s).reward
        for _ in range(held, horizon):
            if episode.done:
                return total
            total += episode.step(self._next(episode, start)).reward
        return total + episode.standing_reward

    def _next(self, episode: AutoscalingEpisode, start: Start | None) -> Any:
        """The action of the current policy in a rollout."""
        if start is not None and self.follows_start(start):
            return start.act(LazyObservation(episode.observe), episode.state)
        assert self.present is not None
        observation = episode.observe()
        possible = self._options(episode, observation, start)
        return possible.action(self.present.choose(observation, possible))


def _plain(episode: AutoscalingEpisode, possible: Options) -> list[int]:
    """(P,) rows that leave all as it is."""
    nothing = episode.levers.nothing(episode.simulator).reshape(-1, LEVERS)
    return [_row_of(rows, own) for rows, own in zip(possible.rows, nothing, strict=True)]


def _row_of(rows: Actions, action: NDArray[np.int64]) -> int:
    """Which row an endpoint's entries are; a lever that says nothing there may differ."""
    same = (rows == action).all(axis=1)
    if not same.any():
        same = (rows[:, [0, 2]] == action[[0, 2]]).all(axis=1)
    return int(same.argmax())
