"""Wrappers of vector environments for learners: extra observations, other actions, other rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from serving_gym.agents.environments.adapter import Adapter, Observation
from serving_gym.agents.environments.spaces import entries, one_hot
from serving_gym.agents.learners.teacher import Teacher
from serving_gym.agents.networks.networks import BASELINE, MASK

BatchObservation = dict[str, NDArray[np.float32]]
Step = tuple[BatchObservation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]
_LAST = np.float32(-1e30)  # below every score, above what is impossible


class _ShowsActions(VectorWrapper):
    """Shows a number between 0 and 1 for each entry of the action, as one more part of the observation."""

    part: str

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        shown, action = env.single_observation_space, env.single_action_space
        assert isinstance(shown, spaces.Dict)
        assert isinstance(action, spaces.Discrete | spaces.MultiDiscrete)
        self.action, self.num_actions = action, sum(entries(action))
        self.single_observation_space = with_part(shown, self.part, self.num_actions)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, **kwargs: Any) -> tuple[BatchObservation, dict[str, Any]]:
        """Begins all episodes."""
        observation, infos = self.env.reset(**kwargs)
        ended = np.arange(self.num_envs)
        return {**observation, self.part: self.shown(observation, infos["action_mask"], ended)}, infos

    def step(self, actions: NDArray[np.int64]) -> Step:
        """Takes one decision in every environment."""
        observation, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = np.flatnonzero(terminated | truncated)
        for i in ended:
            infos["final_obs"][i][self.part] = self.shown_at_the_end(infos, int(i))
        part = self.shown(observation, infos["action_mask"], ended)
        return {**observation, self.part: part}, rewards, terminated, truncated, infos

    def shown(
        self, observation: Observation, masks: NDArray[np.bool_], begun: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """(num_envs, actions).

        Args:
            observation: Batch of N.
            masks: (num_envs, actions), which are possible.
            begun: Places in which a new episode has begun.
        """
        raise NotImplementedError

    def shown_at_the_end(self, infos: dict[str, Any], i: int) -> NDArray[np.float32]:
        """(actions,), in the last state of an episode; here nothing, as there is nothing to decide."""
        return np.zeros(self.num_actions, np.float32)


class ShowsMask(_ShowsActions):
    """Adds the action mask to the observation."""

    part = MASK

    def shown(
        self, observation: Observation, masks: NDArray[np.bool_], begun: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """The mask."""
        return masks.astype(np.float32)

    def shown_at_the_end(self, infos: dict[str, Any], i: int) -> NDArray[np.float32]:
        """The last mask."""
        last: NDArray[np.float32] = infos["final_info"]["action_mask"][i].astype(np.float32)
        return last


class ShowsBaseline(_ShowsActions):
    """Adds a baseline's action to the observation.

    Args:
        teacher: The baseline, beside its environment.
    """

    part = BASELINE

    def __init__(self, teacher: Teacher) -> None:
        super().__init__(teacher.env)
        self.teacher = teacher

    def shown(
        self, observation: Observation, masks: NDArray[np.bool_], begun: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """One-hot of its choice."""
        self.teacher.begin(begun)
        return one_hot(self.teacher.actions(observation, masks), self.action)


class Weighted(VectorWrapper):
    """Actions are weights of a linear score of action features; the possible action with the highest score is taken.

    Args:
        env: The environment.
        adapter: Of it.

    Raises:
        ValueError: nothing describes its actions.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], adapter: Adapter) -> None:
        super().__init__(env)
        self.adapter = adapter
        assert isinstance(env.single_observation_space, spaces.Dict)
        self.single_action_space = weight_space(adapter, env.single_observation_space)
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def reset(self, **kwargs: Any) -> tuple[BatchObservation, dict[str, Any]]:
        """Begins all episodes."""
        self._seen, infos = self.env.reset(**kwargs)
        self._masks = infos["action_mask"]
        return self._seen, infos

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Takes one decision in every episode; `actions` is (num_envs, weights)."""
        scores = weighed(self.adapter, self._seen, actions, self._masks.shape[1])
        chosen = np.where(self._masks, scores, -np.inf).argmax(axis=1)
        step: Step = self.env.step(chosen)
        self._seen, self._masks = step[0], step[-1]["action_mask"]
        return step


class Penalised(VectorWrapper):
    """Rewards minus a price for every SLO miss, (reward - multiplier x cost) / (1 + multiplier).

    Attributes:
        multiplier: The price.
        missed_shares: Of the episodes that have ended since somebody emptied the list.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], multiplier: float) -> None:
        super().__init__(env)
        self.multiplier = multiplier
        self.missed_shares: list[float] = []

    def step(self, actions: NDArray[np.int64]) -> Step:
        """Takes one decision in every environment."""
        observation, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = infos["missed_share"]
        self.missed_shares += ended[~np.isnan(ended)].tolist()
        rewards = (rewards - self.multiplier * infos["cost"]) / (1.0 + self.multiplier)
        return observation, rewards, terminated, truncated, infos


def with_part(observation: spaces.Dict, part: str, number: int) -> spaces.Dict:
    """An observation with one more part, a number between 0 and 1 for each entry of the action."""
    return spaces.Dict({**observation.spaces, part: spaces.Box(0.0, 1.0, (number,), np.float32)})


def weight_space(adapter: Adapter, observation: spaces.Dict) -> spaces.Box:
    """Weights between -1 and 1, one for each feature of an action.

    Raises:
        ValueError: nothing describes actions.
    """
    nothing = {key: np.zeros((1, *(part.shape or ())), np.float32) for key, part in observation.items()}
    return spaces.Box(-1.0, 1.0, (adapter.action_rows(nothing).shape[2],), np.float32)


def weighed(
    adapter: Adapter, observation: Observation, weights: NDArray[np.float32], num_actions: int
) -> NDArray[np.float32]:
    """(N, actions) scores; an action that nothing describes comes last.

    Args:
        adapter: Of the environment.
        observation: Batch of N.
        weights: (N, features).
        num_actions: Number of actions.
    """
    rows = adapter.action_rows(observation)
    scores = np.full((len(rows), num_actions), _LAST, np.float32)
    scores[:, : rows.shape[1]] = np.einsum("nrf,nf->nr", rows, weights)
    return scores
