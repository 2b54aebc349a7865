"""Counterfactual rollouts of deployment choice: returns of a few choices at sampled states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.agents.environments.deployment.features import encode_actions, encode_state
from serving_gym.agents.environments.deployment.policy import ChoicePolicy, usual_row
from serving_gym.agents.environments.deployment.proposal import Proposals
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import Batch
from serving_gym.agents.learners.api.episode_counterfactuals import EpisodeCounterfactuals
from serving_gym.agents.learners.api.start import Start, compared
from serving_gym.agents.learners.learner import Budget, Task
from serving_gym.baselines.policy import Action
from serving_gym.envs.base.lazy_observation import LazyObservation
from serving_gym.envs.base.vector_env import MAX_SEED
from serving_gym.envs.deployment.env import DeploymentEnv
from serving_gym.envs.deployment.episode import DeploymentEpisode
from serving_gym.envs.deployment.state import Deploy

SPREAD = 0  # the first choice: to stay, requests spread over all replicas
Observation = Mapping[str, NDArray[np.float32]]


class DeploymentCounterfactuals(EpisodeCounterfactuals[DeploymentEpisode, ChoicePolicy]):
    """Plays one episode after another; at sampled states it is forked once for each of a few choices.

    A rollout keeps to its choice, deployment and assignment, the assignment following the forecast; from `commit` spans
    on it follows the present policy. That is at first the one to start from, whose proposal is always among the
    choices; without one, all stays as it is.

    Arguments are those of `EpisodeCounterfactuals`, less the environment.
    """

    policy_class = ChoicePolicy

    def __init__(self, config: APIConfig, task: Task, rng: np.random.Generator) -> None:
        super().__init__(DeploymentEnv(**task.training_arguments), config, task, rng)
        self._proposals = Proposals(self.spec, (self.observation["replicas"].shape or (0,))[0])

    def play(self, budget: Budget, batch: Batch) -> None:
        """Takes one decision, by the current policy or at random, and sometimes samples its state."""
        core = self.core
        if core.done:
            core.reset(int(self.rng.integers(MAX_SEED)))
            if self.start is not None:
                self.start.reset(self.spec, int(self.rng.integers(MAX_SEED)))
        observation = core.observe()
        rows, proposed = self._options(core, observation, self.start)
        chosen = self._choose(observation, rows)
        possible = len(rows)
        if possible > 1 and self.samples():
            budget.count(self._sample(observation, rows, proposed, chosen, batch))
        if self.explores():
            chosen = int(self.rng.integers(possible))
        core.step(self._action(chosen, rows, proposed))
        budget.count(1)

    def _options(
        self, core: DeploymentEpisode, observation: Observation, start: Start | None
    ) -> tuple[NDArray[np.float32], Action]:
        """What describes the choices, (K, action_size), and the proposal that is the last of them, if one is."""
        if start is None:
            return encode_actions(observation), None
        proposed = start.act(observation, core.state)
        return encode_actions(
            observation, usual_row(observation, core.state, proposed, self._proposals)
        ), proposed

    def _choose(self, observation: Observation, rows: NDArray[np.float32]) -> int:
        if self.present is not None:
            return self.present.best(observation, rows)
        return SPREAD if self.start is None else len(rows) - 1

    def _action(self, row: int, rows: NDArray[np.float32], proposed: Action) -> Any:
        """The action for the environment."""
        return proposed if self.start is not None and row == len(rows) - 1 else row

    def _sample(
        self,
        observation: Observation,
        rows: NDArray[np.float32],
        proposed: Action,
        chosen: int,
        batch: Batch,
    ) -> int:
        """Adds the present state, with the returns of some of its choices; returns the decisions that took."""
        if self.start is None:
            usual = {number for number, choice in enumerate(self.core.candidates) if choice.stay}
        else:
            usual = {len(rows) - 1}
        musts = sorted(usual | {chosen})
        tried = compared(rows, musts, self.config.candidates, self.rng, self.start is not None)
        if len(tried) < 2:
            return 0
        returns = np.array([self._rollout(self._action(row, rows, proposed)) for row in tried])
        batch.add(encode_state(observation), rows[tried], returns, tried.index(chosen))
        return len(tried) * self.config.horizon

    def _rollout(self, action: Any) -> float:
        """Return of a choice, kept to and then followed by the present policy, on the arrivals of the episode."""
        core = self.core.fork()
        start = None if self.start is None else self.start.fork()
        stays = self.present is None and start is None
        commit = self.config.horizon if stays else self.config.commit
        proposed = isinstance(action, Deploy | None)
        apart = not proposed and self.core.candidates[action].apart
        total = core.step(action).reward
        for span in range(1, self.config.horizon):
            if core.done:
                break
            if span < commit and proposed:
                total += core.step(action).reward
            elif span < commit:
                deployment = core.simulator.deployment
                total += core.step(Deploy(deployment, core.shares_of(deployment, apart))).reward
            else:
                total += core.step(self._next(core, start)).reward
        return total

    def _next(self, core: DeploymentEpisode, start: Start | None) -> Any:
        """The action of the current policy in a rollout."""
        if start is not None and self.follows_start(start):
            return start.act(LazyObservation(core.observe), core.state)
        observation = core.observe()
        rows, proposed = self._options(core, observation, start)
        return self._action(self._choose(observation, rows), rows, proposed)
