"""What environments that place each request have in common: one decision at a time, or many side by side."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.env import SimulatedEnv
from serving_gym.envs.base.vector_env import BaseVectorEnv, BatchObservation

Observation = dict[str, NDArray[np.float32]]
PlacementSpaces = tuple[gym.Space[Any], gym.spaces.Discrete]


class Observations(NamedTuple):
    """What N policies see: R rows for places, of P features; Q features of the request, F of the cluster."""

    places: NDArray[np.float32]  # (N, R, P)
    request: NDArray[np.float32]  # (N, Q)
    cluster: NDArray[np.float32]  # (N, F)
    masks: NDArray[np.bool_]  # (N, R + 1): the places that can take the request, and to hold it

    @classmethod
    def empty(cls, number: int, places: tuple[int, int], request: int, cluster: int) -> Observations:
        """Room for `number` of them."""
        return cls(
            np.zeros((number, *places), np.float32),
            np.zeros((number, request), np.float32),
            np.zeros((number, cluster), np.float32),
            np.zeros((number, places[0] + 1), np.bool_),
        )

    def rows(self, which: Sequence[int]) -> Observations:
        """Those of some episodes alone."""
        which = list(which)
        return Observations(self.places[which], self.request[which], self.cluster[which], self.masks[which])

    def as_dict(self) -> BatchObservation:
        """What the observation space names, of all episodes."""
        return {"places": self.places, "request": self.request, "cluster": self.cluster}

    def first(self) -> Observation:
        """What the observation space names, of the first episode."""
        return {name: part[0] for name, part in self.as_dict().items()}


class Stepped(NamedTuple):
    """What a step brought N episodes."""

    observations: Observations
    rewards: NDArray[np.float64]  # (N,), weighted sums of the terms
    terminated: NDArray[np.bool_]  # (N,), whether every request has been served, refused or lost
    truncated: NDArray[np.bool_]  # (N,), whether the drain limit was reached
    dt_s: NDArray[np.float64]  # (N,), to the next decision


class PlacementEnv(SimulatedEnv[Observation]):
    """One request after another is placed."""

    _batch: Any
    _mask: NDArray[np.bool_]

    def __init__(
        self,
        render_mode: str | None,
        batch: Any,
        spaces: PlacementSpaces,
        make_renderer: Callable[[], Any],
    ) -> None:
        self._set_render_mode(render_mode)
        self._batch = batch
        self.core = batch.episodes[0]
        self.observation_space, self.action_space = spaces
        self._renderer = make_renderer() if render_mode else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins the episode that a seed stands for; `options={"split": ...}` chooses where it is drawn from."""
        chosen = self._seed_of(seed)
        observations: Observations = self._batch.reset([0], [chosen], (options or {}).get("split"))
        if self._renderer:
            self._renderer.begin(self.state)
        self._mask = observations.masks[0]
        return observations.first(), self._info(0.0, {}, "")

    def _shown(self, observations: Observations) -> Observation:
        """What is seen once a decision has been taken."""
        if self._renderer:
            self._renderer.record(self.state)
        self._mask = observations.masks[0]
        return observations.first()

    def action_masks(self) -> NDArray[np.bool_]:
        """(places + 1,), which actions are possible now."""
        return self._mask

    def fork(self) -> Self:
        """A copy of the episode that continues to the same numbers; it does not render."""
        copy = self._fork()
        copy._batch = self._batch.branch([0])
        copy.core = copy._batch.episodes[0]
        return copy


class PlacementVectorEnv(BaseVectorEnv):
    """Requests are placed in many episodes side by side, which one call of the kernel moves on."""

    episodes: Sequence[Any]
    _batch: Any

    def __init__(self, batch: Any, spaces: PlacementSpaces) -> None:
        self.episodes, self._batch = batch.episodes, batch
        self._lay_out(len(self.episodes), None, spaces)
        self._masks = np.zeros((self.num_envs, spaces[1].n), bool)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[BatchObservation, dict[str, Any]]:
        """Begins an episode in every place. An integer seed gives place i the episode of seed + i.

        `options={"split": ...}` chooses where these and the episodes that follow them are drawn from.
        """
        seeds = self._seeds(seed, options)
        self._standing = np.zeros(self.num_envs, bool)
        observations: Observations = self._batch.reset(range(self.num_envs), seeds, self._split)
        self._masks = observations.masks
        return observations.as_dict(), {"action_mask": self._masks}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[BatchObservation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one decision in every place."""
        if not self.episodes[0].begun:
            raise RuntimeError("no episode has begun; call reset()")
        observations, rewards, terminated, truncated, dt_s = self._step(np.asarray(actions, np.int64))
        infos: dict[str, Any] = {"dt": dt_s}
        rewards = np.where(self._standing, 0.0, rewards)
        over = np.flatnonzero((terminated | truncated) & ~self._standing).tolist()
        if over:
            self._keep_last(over, observations.as_dict(), observations.masks[over], infos)
        if not self.begins_anew:
            self._standing[over] = True
        elif over:
            fresh = self._batch.reset(over, [self._draw(i) for i in over], self._split)
            for batch, rows in zip(observations, fresh, strict=True):
                batch[over] = rows
        self._masks = observations.masks
        infos["action_mask"] = self._masks
        return observations.as_dict(), rewards, terminated, truncated, infos

    @abstractmethod
    def _step(self, actions: NDArray[np.int64]) -> Stepped:
        """Takes one decision in every place; an episode that ends has not begun anew yet."""

    def action_masks(self) -> NDArray[np.bool_]:
        """(num_envs, places + 1), which actions are possible now."""
        return self._masks
