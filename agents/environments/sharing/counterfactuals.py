"""Counterfactual rollouts of placement: returns of sending the request to other places."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.routing.counterfactuals import RoutingCounterfactuals, check_start
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.start import KEY
from serving_gym.agents.learners.learner import Budget, Task
from serving_gym.agents.learners.teacher import make_teacher
from serving_gym.baselines.common.place_score import PlaceScorePolicy
from serving_gym.baselines.policy import BatchPolicy
from serving_gym.envs.base.placement import Observations
from serving_gym.envs.sharing.batch import SharingBatch
from serving_gym.envs.sharing.config import SharingConfig
from serving_gym.envs.sharing.episode import SharingEpisode
from serving_gym.envs.sharing.spaces import make_spaces


class SharingCounterfactuals(RoutingCounterfactuals):
    """Plays a batch of episodes; at sampled states they are forked once for each candidate place.

    Args:
        config: Settings of the agent.
        task: The training task.
        rng: Draws episodes, sampled states and exploration.

    Raises:
        ValueError: the policy to start from cannot decide by the observation alone.
    """

    def __init__(self, config: APIConfig, task: Task, rng: np.random.Generator) -> None:
        self.config, self.rng = config, rng
        self.admission = False
        sharing = SharingConfig(**task.training_arguments)
        self._fleets: list[SharingBatch] = [  # type: ignore[assignment]
            SharingBatch([SharingEpisode(sharing) for _ in range(task.num_envs)])
        ]
        self._observations_of, self._turn = [None], 0
        observation, self.action = make_spaces(self.batch.episodes[0])
        assert isinstance(observation, spaces.Dict)
        self.observation = observation
        self.present = _start(config)
        check_start(self.present, task, observation)

    @property
    def batch(self) -> SharingBatch:  # type: ignore[override]
        """The episodes."""
        return self._fleets[0]

    def _act(self, observations: Observations) -> NDArray[np.int64]:
        masks = observations.masks.copy()
        masks[masks[:, :-1].any(axis=1), -1] = False  # a policy that may hold does so only where it must
        return super()._act(observations._replace(masks=masks))

    def _rollouts(
        self, owners: NDArray[np.intp], first: NDArray[np.int64], budget: Budget
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns of sending requests to places and following the present policy, on the arrivals of the episode.

        Args:
            owners: (M,) episodes to fork.
            first: (M,) place that each fork begins with.
            budget: Counts the decisions.
        """
        until_s = np.array([self._until_s(i) for i in owners])

        def decide(observations: Observations, going: NDArray[np.bool_]) -> NDArray[np.int64]:
            budget.count(int(going.sum()))
            return self._act(observations)

        budget.count(len(owners))
        returns = self.batch.branch(owners.tolist()).returns_until(first, until_s, decide)
        return returns, np.zeros(len(owners))

    def _until_s(self, i: int) -> float:
        """Time of the arrival at which a rollout ends: the same for all forks of an episode."""
        simulator = self.batch.episodes[i].simulator
        last = int(simulator.world.clock["next_arrival"][0]) - 1 + self.config.horizon
        if last >= len(simulator.workload):
            return np.inf
        return float(simulator.workload.arrival_s[last])


def _start(config: APIConfig) -> BatchPolicy:
    if config.start is None:
        return PlaceScorePolicy()
    policy = make_teacher(config.start, KEY)
    if not isinstance(policy, BatchPolicy):
        raise ValueError(
            f"{KEY} must be a policy that decides by the observation alone, as place_score does, "
            f"got {config.start.get('path', config.start['name'])!r}"
        )
    return policy
