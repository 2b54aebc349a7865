"""Counterfactual rollouts of routing: what sending the request elsewhere would have brought."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.place_adapter import context_of
from serving_gym.agents.environments.routing.guard import guarded
from serving_gym.agents.environments.spaces import check_observation
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import Batch, padded
from serving_gym.agents.learners.api.start import KEY
from serving_gym.agents.learners.learner import Budget, Task
from serving_gym.agents.learners.teacher import make_teacher
from serving_gym.agents.policies.network_policy import NetworkPolicy
from serving_gym.baselines.common.routers.linear_score import LinearScorePolicy
from serving_gym.baselines.policy import BatchPolicy, Policy
from serving_gym.envs.base.placement import Observations
from serving_gym.envs.base.vector_env import MAX_SEED
from serving_gym.envs.registration import make_env
from serving_gym.envs.routing.batch import RoutingBatch
from serving_gym.envs.routing.config import RoutingConfig
from serving_gym.envs.routing.episode import RoutingEpisode
from serving_gym.envs.routing.spaces import make_spaces
from serving_gym.envs.simulator.kernel.place_scores import PlaceScore, with_verdicts

_LARGEST_BATCH = 64  # forks of one call
_LEAST_ARRIVALS = 16  # of a rollout
_MOST_DECISIONS = 1 << 40  # of a rollout: its window alone ends it


class RoutingCounterfactuals:
    """Plays a batch of episodes; at sampled states they are forked once for each candidate place.

    Where there are several fleets (`Task.also`), it plays a decision on each in turn; on one of more places a rollout
    looks as many more arrivals ahead.

    All forks of a step run in one call of the kernel, in which the present policy decides as well. A request is never
    held where some place can take it, but where admission is a decision: then to hold, to refuse and to defer it are
    compared with the places.

    Args:
        config: Settings of the agent.
        task: The training task.
        rng: Draws episodes, sampled states and exploration.

    Raises:
        ValueError: the policy to start from does not decide inside the kernel.
    """

    observation: spaces.Dict  # what the environment shows
    action: spaces.Discrete  # what it takes

    def __init__(self, config: APIConfig, task: Task, rng: np.random.Generator) -> None:
        self.config, self.rng = config, rng
        routings = [RoutingConfig(**arguments) for arguments in task.places]
        self.objective, self.admission = routings[0].objective, routings[0].admission
        self._fleets = [
            RoutingBatch([RoutingEpisode(each) for _ in range(task.num_envs)]) for each in routings
        ]
        self._observations_of: list[Observations | None] = [None] * len(routings)
        self._turn = 0
        self._larger = [each.cluster.num_places / routings[0].cluster.num_places for each in routings]
        observation, self.action = make_spaces(self.batch.episodes[0])
        assert isinstance(observation, spaces.Dict)
        self.observation = observation
        self.present: BatchPolicy = _start(config)
        check_start(self.present, task, observation)
        self._compile(routings[0])

    @property
    def batch(self) -> RoutingBatch:
        """Episodes on the fleet whose turn it is."""
        return self._fleets[self._turn]

    @property
    def _observations(self) -> Observations | None:
        """Observations of the fleet whose turn it is; None: no episode has begun."""
        return self._observations_of[self._turn]

    @_observations.setter
    def _observations(self, observations: Observations) -> None:
        self._observations_of[self._turn] = observations

    @property
    def score(self) -> PlaceScore:
        """What rollouts follow, as the kernel has it."""
        assert isinstance(self.present, LinearScorePolicy | NetworkPolicy)
        assert self.present.in_kernel is not None
        return self.present.in_kernel

    def _compile(self, routing: RoutingConfig) -> None:
        """Compiles what playing and rollouts need, before any training time counts."""
        tried = RoutingBatch([RoutingEpisode(routing)])
        observations = tried.reset([0], [0])
        self._act(observations)
        if self.config.guard is not None:
            guarded(self.config.guard.numbers(), observations._asdict(), observations.masks)
        tried.roll(np.full(1, tried.hold), self.score, np.zeros(1), 1)

    def follow(self, policy: Policy) -> None:
        """Makes this the current policy."""
        assert isinstance(policy, NetworkPolicy)
        self.present = policy

    def play(self, budget: Budget, batch: Batch) -> None:
        """A decision of the present policy or of chance in every episode of a fleet, some of the states sampled."""
        self._turn = (self._turn + 1) % len(self._fleets)
        observations = self._begin_ended()
        actions = self._act(observations)
        able = self._able(observations)
        sampled = self._drawn(len(actions))
        sampled = sampled[able[sampled].sum(axis=1) > 1]
        if len(sampled):
            self._sample(sampled, observations, actions, budget, batch)
        explores = (self.rng.random(len(actions)) < self.config.exploration) & able.any(axis=1)
        for i in np.flatnonzero(explores):
            actions[i] = self.rng.choice(np.flatnonzero(able[i]))
        self._observations, _ = self.batch.step(actions)
        budget.count(len(actions))

    def _able(self, observations: Observations) -> NDArray[np.bool_]:
        """(N, actions that are compared), which are possible."""
        return observations.masks if self.admission else observations.masks[:, :-1]

    def _drawn(self, number: int) -> NDArray[np.int64]:
        """Episodes whose state is sampled: now and then many of them, so that their forks fill a batch."""
        forks_each = min(self.config.candidates, self.batch.num_rows)
        together = min(number, max(1, _LARGEST_BATCH // forks_each))
        if self.rng.random() * self.config.sample_every * together >= number:
            return np.zeros(0, np.int64)
        return np.sort(self.rng.choice(number, together, replace=False))

    def _begin_ended(self) -> Observations:
        """Begins an episode wherever there is none, and returns the observations."""
        number, observations = len(self.batch.episodes), self._observations
        over = list(range(number)) if observations is None else np.flatnonzero(self.batch.done).tolist()
        if over:
            fresh = self.batch.reset(over, self.rng.integers(MAX_SEED, size=len(over)).tolist())
            observations = observations or fresh
            for kept, rows in zip(observations, fresh, strict=True):
                kept[over] = rows
        assert observations is not None
        self._observations = observations
        return observations

    def _act(self, observations: Observations) -> NDArray[np.int64]:
        return self.present.act_batch(observations.as_dict(), observations.masks)

    def _sample(
        self,
        sampled: NDArray[np.intp],
        observations: Observations,
        actions: NDArray[np.int64],
        budget: Budget,
        batch: Batch,
    ) -> None:
        """Adds the states of some episodes, with the returns of some of their places."""
        able, seen = self._able(observations), observations.as_dict()
        candidates = [self._candidates(able[i], int(actions[i])) for i in sampled]
        owners = np.repeat(sampled, [len(places) for places in candidates])
        first = np.concatenate(candidates)
        returns = np.full(able.shape, np.nan)
        squares = returns.copy()
        for begin in range(0, len(owners), _LARGEST_BATCH):
            part = slice(begin, begin + _LARGEST_BATCH)
            rows = owners[part], first[part]
            returns[rows], squares[rows] = self._rollouts(*rows, budget)
        for i in sampled:
            state = np.concatenate([seen[key][i] for key in context_of(seen)])
            places = with_verdicts(seen["places"][i]) if self.admission else seen["places"][i].copy()
            kind = f"{self.batch.episodes[i].simulator.workload.name} on fleet {self._turn}"
            batch.add(state, places, returns[i], int(actions[i]), kind, squares[i])

    def _candidates(self, able: NDArray[np.bool_], present: int) -> NDArray[np.int64]:
        """The present choice and others, drawn where there are more than may be compared."""
        others = np.setdiff1d(np.flatnonzero(able), [present])
        extra = self.rng.permutation(others)[: self.config.candidates - 1]
        return np.array([present, *extra], np.int64)

    def _rollouts(
        self, owners: NDArray[np.intp], first: NDArray[np.int64], budget: Budget
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns of sending requests to places and then following the current policy, on the arrivals of the episode.

        Args:
            owners: (M,) episodes to fork.
            first: (M,) place that each fork begins with.
            budget: Counts the decisions.

        Returns:
            Returns, (M,), and what `agent.tail` weighs, (M,).
        """
        window_s = np.array([self._window_s(i) for i in owners])
        outcomes, decisions = self.batch.roll_branches(
            owners.tolist(), first, self.score, window_s, _MOST_DECISIONS
        )
        budget.count(decisions)
        return outcomes.rewards(self.objective), outcomes.squares

    def _window_s(self, i: int) -> float:
        """Time to the arrival at which a rollout ends: the same for all forks of an episode."""
        episode = self.batch.episodes[i]
        simulator = episode.simulator
        arrivals = round(self.config.horizon * self._larger[self._turn])
        if self.config.stays is not None:
            in_system = int(episode.desk.places["in_flight"].sum())
            arrivals = min(arrivals, max(_LEAST_ARRIVALS, math.ceil(self.config.stays * in_system)))
        last = int(simulator.world.cluster["next_arrival"][0]) - 1 + arrivals
        if last >= len(simulator.workload):
            return np.inf
        return float(simulator.workload.arrival_s[last]) - simulator.now_s

    def advantages(self, returns: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Returns less their mean at each state, over the root of its cost: chance grows with the load."""
        lengths = [len(row) for row in returns]
        table = padded(returns, max(lengths))
        cost = np.abs(np.nanmax(table, axis=1, keepdims=True)) + self.config.least_cost
        relative = (table - np.nanmean(table, axis=1, keepdims=True)) / np.sqrt(cost)
        return [row[:length] for row, length in zip(relative, lengths, strict=True)]


def check_start(policy: BatchPolicy, task: Task, observation: spaces.Dict) -> None:
    """Refuses a policy to start from that does not belong where it is to decide.

    Args:
        policy: The policy.
        task: The training task.
        observation: Observation space of the environment.

    Raises:
        ValueError: It is for another environment, or was trained to see something else.
    """
    env: Any = make_env(task.env, **task.training_arguments)
    policy.reset(env.policy_spec, task.seed)
    if isinstance(policy, NetworkPolicy):
        shown = {name: np.zeros(box.shape or ()) for name, box in observation.items()}
        check_observation(policy.name, policy.observation, shown, policy.adapter.rows, policy.any_length)


def _start(config: APIConfig) -> LinearScorePolicy | NetworkPolicy:
    if config.start is None:
        return LinearScorePolicy()
    policy = make_teacher(config.start, KEY)
    if not isinstance(policy, LinearScorePolicy | NetworkPolicy) or policy.in_kernel is None:
        raise ValueError(
            f"{KEY} must be a policy whose score runs inside the kernel, linear_score or a checkpoint of agent=api, "
            f"got {config.start.get('path', config.start['name'])!r}"
        )
    return policy
