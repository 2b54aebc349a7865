"""Base classes of the environments that place one request per decision (routing, sharing), scalar and vector."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.env import Config, Observation, SimulatedEnv, State
from serving_gym.envs.base.vector_env import BatchObservation, BatchOutcome, SimulatedVectorEnv
from serving_gym.envs.interface.reward import Outcome


class Observations(NamedTuple):
    """Observations of N episodes: R rows of P features; Q features of the request, F of the cluster."""

    places: NDArray[np.float32]  # (N, R, P)
    request: NDArray[np.float32]  # (N, Q)
    cluster: NDArray[np.float32]  # (N, F)
    masks: NDArray[
        np.bool_
    ]  # (N, R + 1), action masks: a place each, and to hold the request; then what else there is
    admission: NDArray[np.float32]  # (N, A) features of a decision about admission; A = 0: it is none

    @classmethod
    def empty(
        cls,
        number: int,
        places: tuple[int, int],
        request: int,
        cluster: int,
        admission: int = 0,
        others: int = 0,
    ) -> Observations:
        """Zero observations of `number` episodes; `others`: actions that are no place and do not hold."""
        return cls(
            np.zeros((number, *places), np.float32),
            np.zeros((number, request), np.float32),
            np.zeros((number, cluster), np.float32),
            np.zeros((number, places[0] + 1 + others), np.bool_),
            np.zeros((number, admission), np.float32),
        )

    def rows(self, which: Sequence[int]) -> Observations:
        """Observations of some of the episodes."""
        which = list(which)
        return Observations(
            self.places[which],
            self.request[which],
            self.cluster[which],
            self.masks[which],
            self.admission[which],
        )

    def as_dict(self) -> BatchObservation:
        """Observations of all episodes, by key of the observation space."""
        parts = {"places": self.places, "request": self.request, "cluster": self.cluster}
        return parts | {"admission": self.admission} if self.admission.shape[1] else parts

    def first(self) -> Observation:
        """Observation of the first episode, by key of the observation space."""
        return {name: part[0] for name, part in self.as_dict().items()}


class PlacementEnv(SimulatedEnv[Config, State]):
    """Places one request per decision; the episode is a batch of one.

    Attributes:
        batch_class: Class of the batch that steps a list of episodes.
    """

    batch_class: ClassVar[type[Any]]
    _batch: Any
    _observations: Observations

    def _set_up(self, core: Any, render_mode: str | None) -> None:
        super()._set_up(core, render_mode)
        self._batch = self.batch_class([core])

    def _begin(self, seed: int, split: str | None) -> None:
        self._observations = self._batch.reset([0], [seed], split)

    def _advance(self, action: Any) -> Outcome:
        self._observations, outcome = self._place(action)
        return outcome

    @abstractmethod
    def _place(self, action: Any) -> tuple[Observations, Outcome]:
        """Takes an action."""

    def _observe(self) -> Observation:
        return self._observations.first()

    def action_masks(self) -> NDArray[np.bool_]:
        """Action mask, (actions,)."""
        return self._observations.masks[0]

    def _fork_core(self, copy: Self) -> None:
        copy._batch = self._batch.branch([0])
        copy.core = copy._batch.episodes[0]


class PlacementVectorEnv(SimulatedVectorEnv):
    """Places requests in many episodes, all stepped by one call of the kernel."""

    _batch: Any

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **config: Any) -> None:
        super().__init__(num_envs, render_mode, **config)
        self._batch = self.env_class.batch_class(self.episodes)

    def _begin(self, rows: list[int], seeds: list[int]) -> tuple[BatchObservation, NDArray[np.bool_]]:
        observations: Observations = self._batch.reset(rows, seeds, self._split)
        return observations.as_dict(), observations.masks

    @abstractmethod
    def _advance(self, actions: NDArray[np.int64], going: NDArray[np.bool_]) -> BatchOutcome:
        """Steps the episodes that have not ended."""

    def _stop(self, rows: list[int]) -> None:
        self._batch.stop(rows)
