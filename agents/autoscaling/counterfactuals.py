"""Counterfactual rollouts of autoscaling: what a few other things would have brought, done at one endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from agents.api.config import APIConfig
from agents.api.counterfactuals import Batch
from agents.autoscaling.features import Actions, encode_actions, encode_state, options
from agents.autoscaling.policy import LeversPolicy
from agents.learner import Budget, Task
from baselines.policy import Policy
from envs.autoscaling.action import LEVERS
from envs.autoscaling.config import AutoscalingConfig
from envs.autoscaling.env import make_spaces
from envs.autoscaling.episode import Episode
from envs.side_by_side import MAX_SEED

Observation = Mapping[str, NDArray[np.float32]]


class AutoscalingCounterfactuals:
    """Plays one episode after another; at sampled states it is forked once for each of a few actions.

    A sampled state is an endpoint's, drawn at random: there the actions differ, at the others the present policy's
    stands. Rollouts then follow the present policy, at first none: all is left as it is. Requests that still wait in
    the queue manager's lines when a rollout ends are charged as at the end of an episode, or to hold them would look
    free.

    Args:
        config: Settings of the agent.
        task: What is to be learned.
        rng: Of episodes, sampling and exploration.

    Raises:
        ValueError: A policy to start from is given; the first rollouts leave all as it is.
    """

    def __init__(self, config: APIConfig, task: Task, rng: np.random.Generator) -> None:
        if config.start is not None:
            raise ValueError(
                "agent.start must be null for env autoscaling: the first rollouts leave all as it is"
            )
        self.config, self.rng = config, rng
        self.episode = Episode(AutoscalingConfig(**{**task.training_arguments, "keep_records": False}))
        observation, self.action = make_spaces(self.episode)
        assert isinstance(observation, spaces.Dict)
        self.observation = observation
        self.present: LeversPolicy | None = None  # None: leave all as it is

    def follow(self, policy: Policy) -> None:
        """From now on this is the present policy."""
        assert isinstance(policy, LeversPolicy)
        self.present = policy

    def play(self, budget: Budget, batch: Batch) -> None:
        """One decision of the present policy or of chance, its state sampled now and then."""
        episode = self.episode
        if episode.done:
            episode.reset(int(self.rng.integers(MAX_SEED)))
        observation, mask = episode.observe(), episode.mask()
        action = self._choose(episode, observation, mask)
        possible = options(mask, self.action)
        if self.rng.random() * self.config.sample_every < 1.0:
            budget.count(self._sample(observation, possible, action, batch))
        if self.rng.random() < self.config.exploration:
            action = np.concatenate([self.rng.choice(rows) for rows in possible])
        episode.step(action)
        budget.count(1)

    def _choose(
        self, episode: Episode, observation: Observation, mask: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        if self.present is None:
            return episode.levers.nothing(episode.simulator)
        return self.present.choose(observation, mask)

    def _sample(
        self,
        observation: Observation,
        possible: Sequence[Actions],
        action: NDArray[np.int64],
        batch: Batch,
    ) -> int:
        """Adds the state of an endpoint, with the returns of some actions there; returns the decisions that took."""
        endpoint = int(self.rng.integers(len(possible)))
        rows, own = possible[endpoint], slice(endpoint * LEVERS, (endpoint + 1) * LEVERS)
        plain = self.episode.levers.nothing(self.episode.simulator)[own]
        musts = sorted({_row_of(rows, plain), _row_of(rows, action[own])})
        others = self.rng.permutation(np.setdiff1d(np.arange(len(rows)), musts))
        tried = [*musts, *others[: max(0, self.config.candidates - len(musts))].tolist()]
        returns = []
        for row in rows[tried]:
            first = action.copy()
            first[own] = row
            returns.append(self._rollout(first))
        batch.states.append(encode_state(observation, endpoint))
        batch.actions.append(encode_actions(observation, endpoint, rows[tried], self.action))
        batch.returns.append(np.array(returns))
        batch.chosen.append(tried.index(_row_of(rows, action[own])))
        return len(tried) * self.config.horizon

    def _rollout(self, action: NDArray[np.int64]) -> float:
        """Return of an action, followed by the present policy, on the arrivals that really come."""
        episode = self.episode.fork()
        total = episode.step(action).reward
        for _ in range(1, self.config.horizon):
            if episode.done:
                return total
            follow = None
            if self.present is not None:
                follow = self.present.choose(episode.observe(), episode.mask())
            total += episode.step(follow).reward
        return total + episode.standing_reward

    def advantages(self, returns: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Relative to what the best action costs at a state, so that quiet hours count as much as busy ones."""
        return [
            np.maximum((value - value.max()) / (abs(value.max()) + self.config.least_cost), self.config.worst)
            for value in returns
        ]


def _row_of(rows: Actions, action: NDArray[np.int64]) -> int:
    """Which row an endpoint's entries are; a lever that says nothing there may differ."""
    same = (rows == action).all(axis=1)
    if not same.any():
        same = (rows[:, [0, 2]] == action[[0, 2]]).all(axis=1)
    return int(same.argmax())
